"""big_vision's ViT as .npz: github.com/google-research/big_vision.

Axes are those of augreg.py, names differ. Versions: blocks one by one (`loop`), blocks stacked along a first axis
(`scan`), and two of 2021 that big_vision's reader still converts. Where n positions make n - 1 a square, that reader
takes the first for the class token, and so does this layout; otherwise positions are added before the class token.
Positions computed as sines and cosines are not stored.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import isqrt

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Names, Refusal, always, has, length
from ..operations import BfloatAsVoid, Stack
from ..rules import Row, row
from . import augreg
from .augreg import LINEN

STACKED = "Transformer/encoderblock/"


@dataclass(frozen=True)
class Version:
    """One version of big_vision's files: its names of tensors, and what else is its own."""

    name: str
    title: str
    position: str = "pos_embedding"
    pool: str = "MAPHead_0/"  # prefix of the names of attention pooling
    scan: bool = False  # the blocks are stacked, each kind of tensor in one
    tanh: bool = True  # whether a hidden layer of the head is known to have tanh; else its files do not tell

    @property
    def top(self) -> dict[str, str]:
        """{our module or token: its name in the file}, without blocks."""
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
    """One row for each parameter; where blocks are stacked, one for each parameter of a block."""
    out = []
    for name, shape in config.shapes().items():
        theirs, operations = augreg.their_name(name, version.top, LINEN), augreg.order(config, name)
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
    """Whether big_vision's reader takes the first of this many positions for the class token's."""
    return isqrt(rows) ** 2 + 1 == rows


def fields(version: Version) -> dict[str, Field]:
    """Where config fields come from: shapes give all but the image's size, and pooling where they leave it open."""

    def pool(names: Names) -> str | None:  # mean pooling and the first patch as the output look the same
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


def cannot_hold(config: ViTConfig) -> list[str]:
    """Clauses for a network that big_vision cannot pool, or whose positions its reader would misunderstand."""
    out = augreg.cannot_hold(config)
    if config.position_trained != (config.position == "learned"):
        out.append(
            f"position is {config.position!r} and position_trained {config.position_trained}, but exactly the learned "
            "positions are trained"
        )
    has_position = config.cls_token and config.cls_position
    if has_position and config.position != "learned":
        out.append("the class token has a computed position, but computed positions are added before that token")
    elif config.position == "learned" and class_row(config.position_rows) != has_position:
        out.append(
            f"position has {config.position_rows} rows, of which big_vision's reader would take "
            f"{'none' if has_position else 'the first'} for the class token"
        )
    return out


def _layout(version: Version) -> Layout:
    first = STACKED if version.scan else "Transformer/encoderblock_0/"
    signature = [
        r"embedding/kernel",
        f"{first}MultiHeadDotProductAttention_0/query/kernel",
        "!Transformer/posembed_input/.*",
    ]
    signature.append("!probe" if version.pool else "probe")
    signature.append(
        "!Transformer/pos_embedding" if version.position == "pos_embedding" else "Transformer/pos_embedding"
    )
    return Layout(
        dialect="big-vision",
        version=version.name,
        title=version.title,
        network=ViTConfig,
        covers=True,
        fields=fields(version),
        rows=functools.partial(rows, version=version),
        signature=tuple(signature),
        containers=("npz",),
        refusals=(Refusal("network", cannot_hold),),
        proven="timm 1.0.31",
    )


OLDER = "Transformer/pos_embedding"
LAYOUTS = tuple(
    _layout(version)
    for version in (
        Version("2021-inlined", "big_vision ViT of 2021, attention pooling at the top", OLDER, pool="", tanh=False),
        Version("2021", "big_vision ViT of 2021", OLDER, tanh=False),
        Version("scan", "big_vision ViT, blocks stacked", scan=True),
        Version("loop", "big_vision ViT"),
    )
)
