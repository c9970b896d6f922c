"""big_vision's ViT .npz (github.com/google-research/big_vision): augreg's orders, and its own places.

Versions: blocks one by one (loop), blocks stacked along a leading axis (scan), and two older ones (2021) that its reader
mends. That reader takes the first of n positions for the class token's where n - 1 is a square, and so do we. Positions
are added before the class token otherwise; those by sines and cosines are not stored.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import isqrt

from vit_jax.config import ViTConfig, shapes

from ..layout import Field, Layout, Names, always, has, length
from ..rules import BfloatAsVoid, Row, Stack, row
from . import augreg
from .augreg import LINEN

STACKED = "Transformer/encoderblock/"


@dataclass(frozen=True)
class Version:
    """Where the versions differ."""

    name: str
    title: str
    position: str = "pos_embedding"
    pool: str = "MAPHead_0/"  # what stands before the names of attention pooling
    scan: bool = False
    tanh: bool = True  # always after the hidden layer of a head: it came with these names
    proven: str = ""

    @property
    def top(self) -> dict[str, str]:
        """{module or token of ours: its name there}, but for blocks."""
        attention = {
            f"pool.{name}": f"{self.pool}MultiHeadDotProductAttention_0/{name}"
            for name in ("query", "key", "value", "out")
        }
        mlp = {f"pool.mlp.fc{i + 1}": f"{self.pool}MlpBlock_0/Dense_{i}" for i in (0, 1)}
        return augreg.TOP | {
            "position": self.position,
            "pool.probe": f"{self.pool}probe",
            "pool.norm": f"{self.pool}LayerNorm_0",
            **attention,
            **mlp,
        }


def rows(config: ViTConfig, version: Version) -> list[Row]:
    """One row for each parameter; where blocks are stacked, one for each of a block."""
    out = []
    for name, shape in shapes(config).items():
        theirs, operations = augreg.place(name, version.top, LINEN), augreg.order(config, name)
        if not (version.scan and name.startswith("blocks.")):
            out.append(row(theirs, name, shape, BfloatAsVoid(), *operations))
        elif name.startswith("blocks.0."):
            ours = tuple(f"blocks.{i}.{name.removeprefix('blocks.0.')}" for i in range(config.depth))
            stacked = theirs.replace("encoderblock_0", "encoderblock", 1)
            out.append(
                Row((stacked,), ours, (shape,) * config.depth, (BfloatAsVoid(), Stack(config.depth), *operations))
            )
    return out


def class_row(rows: int) -> bool:
    """Whether its reader takes the first of so many positions for the class token's."""
    return isqrt(rows) ** 2 + 1 == rows


def fields(version: Version) -> dict[str, Field]:
    """The table: shapes tell all but the image's, and what is pooled where there is neither class token nor probe."""

    def pool(names: Names) -> str | None:  # "gap" and "0", the first patch, look the same
        return "cls" if "cls" in names else "map" if f"{version.pool}probe" in names else None

    table = augreg.fields(LINEN) | {
        "pool": Field(("cls", "mean", "map"), pool) if version.pool else always("map"),
        "position": Field(
            ("learned", "sincos2d"), lambda names: "learned" if version.position in names else "sincos2d"
        ),
        "position_trained": Field((True, False), has(version.position)),
        "cls_position": Field((True, False), lambda names: class_row(length(version.position, 1, 0)(names))),
    }
    if not version.tanh:
        table["head_activation"] = Field(("tanh", "none"))
    if version.scan:
        table |= {
            "depth": Field(solve=length(f"{STACKED}LayerNorm_0/scale", 0)),
            "heads": Field(solve=length(f"{STACKED}MultiHeadDotProductAttention_0/query/kernel", 2)),
            "hidden": Field(solve=length(f"{STACKED}MlpBlock_0/Dense_0/kernel", 2)),
        }
    return table


def limits(config: ViTConfig) -> list[str]:
    """What its code pools, and what its reader makes of positions."""
    out = augreg.limits(config)
    if config.position_trained != (config.position == "learned"):
        out.append(
            f"position is {config.position!r} and position_trained {config.position_trained}, it trains learned ones alone"
        )
    placed = config.cls_token and config.cls_position
    if placed and config.position != "learned":
        out.append("the class token has a computed position, it adds those before that token")
    elif config.position == "learned" and class_row(config.position_rows) != placed:
        out.append(
            f"of {config.position_rows} positions its reader {'takes none' if placed else 'takes the first'} for the class token's"
        )
    return out


def _layout(version: Version) -> Layout:
    first = STACKED if version.scan else "Transformer/encoderblock_0/"
    marks = [
        r"embedding/kernel",
        f"{first}MultiHeadDotProductAttention_0/query/kernel",
        "!Transformer/posembed_input/.*",
    ]
    marks.append("!probe" if version.pool else "probe")
    marks.append("!Transformer/pos_embedding" if version.position == "pos_embedding" else "Transformer/pos_embedding")
    return Layout(
        "big-vision",
        version.name,
        version.title,
        ViTConfig,
        fields(version),
        functools.partial(rows, version=version),
        tuple(marks),
        ("npz",),
        limits,
        proven=version.proven,
    )


LAYOUTS = tuple(
    _layout(version)
    for version in (
        Version(
            "2021-inlined",
            "big_vision ViT of 2021, attention pooling at the top",
            "Transformer/pos_embedding",
            "",
            tanh=False,
        ),
        Version("2021", "big_vision ViT of 2021", "Transformer/pos_embedding", tanh=False),
        Version("scan", "big_vision ViT, blocks stacked", scan=True, proven="timm 1.0.31"),
        Version("loop", "big_vision ViT", proven="timm 1.0.31"),
    )
)
