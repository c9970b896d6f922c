"""Google's ViTs as .npz: github.com/google-research/vision_transformer.

These are the files of "How to train your ViT?" (Steiner et al. 2022, arXiv 2106.10270) and older ones. Names and axes
are Flax's: kernels are (in, out), attention has an axis for heads, patches are (p, q, c, d). The published files use
the names of Flax before Linen (`pre-linen`), which all readers of such files accept; the repository's code today writes
Linen's (`linen`). Both compute tanh GELU, with eps 1e-6.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Names, Refusal, always, count, has, length
from ..operations import BfloatAsVoid, Operation, Order
from ..rules import Row, row
from .plain_vit import PLAIN_VIT

# The modules of a block: norm 1, attention, norm 2, mlp. Linen numbers each class, older Flax all modules together.
LINEN = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
PRE_LINEN = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
POSITION = "Transformer/posembed_input/pos_embedding"
TOP = {
    "patch": "embedding",
    "cls_token": "cls",
    "position": POSITION,
    "norm": "Transformer/encoder_norm",
    "head_hidden": "pre_logits",
    "head": "head",
}


def _inside_block(modules: tuple[str, ...]) -> dict[str, str]:
    """{module of our block: module of theirs}."""
    norm1, attention, norm2, mlp = modules
    parts = {f"attention.{name}": f"{attention}/{name}" for name in ("query", "key", "value", "out")}
    return {"norm1": norm1, **parts, "norm2": norm2, "mlp.fc1": f"{mlp}/Dense_0", "mlp.fc2": f"{mlp}/Dense_1"}


def rows(config: ViTConfig, modules: tuple[str, ...]) -> list[Row]:
    """One row for each parameter."""
    return [
        row(their_name(name, TOP, modules), name, shape, BfloatAsVoid(), *order(config, name))
        for name, shape in config.shapes().items()
    ]


def their_name(name: str, top: Mapping[str, str], modules: tuple[str, ...]) -> str:
    """The file's name of a parameter."""
    if name in top:
        return top[name]
    path, _, leaf = name.rpartition(".")
    if block := re.fullmatch(r"blocks\.(\d+)\.(.*)", path):
        return f"Transformer/encoderblock_{block[1]}/{_inside_block(modules)[block[2]]}/{leaf}"
    return f"{top[path]}/{leaf}"


def order(config: ViTConfig, name: str) -> list[Operation]:
    """The operations between a tensor's axes and its parameter's; attention has an axis for heads."""
    (p, q), c, heads = pair(config.patch), config.channels, {"h": config.heads, "e": config.resolved_head_width}
    if re.fullmatch(r"cls_token|pool\.probe", name):
        return [Order("1 1 d", "d")]
    if name == "position":
        return [Order("1 n d", "n d")]
    if name == "patch.kernel":
        return [Order("p q c d", "(p q c) d", dict(p=p, q=q, c=c))]
    if re.fullmatch(r".*\b(query|key|value)\.kernel", name):
        return [Order("d h e", "d (h e)", heads)]
    if re.fullmatch(r".*\b(query|key|value)\.bias", name):
        return [Order("h e", "(h e)", heads)]
    if re.fullmatch(r".*\bout\.kernel", name):
        return [Order("h e d", "(h e) d", heads)]
    return []


def patch(names: Names) -> list[int] | None:
    """A solver: [height, width] of a patch."""
    shape = names.get("embedding/kernel", ())
    return list(shape[:2]) if len(shape) == 4 else None


def fields(modules: tuple[str, ...]) -> dict[str, Field]:
    """Where config fields come from: shapes give all but the image's size."""
    block = "Transformer/encoderblock_0/"
    return PLAIN_VIT | {
        "image": Field(),
        "patch": Field(solve=patch),
        "channels": Field(solve=length("embedding/kernel", 2)),
        "width": Field(solve=length("embedding/kernel", 3)),
        "depth": Field(solve=lambda names: count(names, rf"Transformer/encoderblock_(\d+)/{modules[0]}/scale")),
        "heads": Field(solve=length(f"{block}{modules[1]}/query/kernel", 1)),
        "hidden": Field(solve=length(f"{block}{modules[3]}/Dense_0/kernel", 1)),
        "eps": always(1e-6),
        "activation": always("gelu_tanh"),
        "cls_token": Field((True, False), has("cls")),
        "pool": Field(("cls", "mean"), lambda names: "cls" if "cls" in names else "mean"),
        "head_hidden": Field(solve=length("pre_logits/bias", 0, 0)),
        "classes": Field(solve=length("head/bias", 0, 0)),
    }


def cannot_hold(config: ViTConfig) -> list[str]:
    """A clause where class token and pooling do not match: the layout has that token only if it is pooled."""
    return (
        []
        if config.cls_token == (config.pool == "cls")
        else [
            f"cls_token is {config.cls_token} and pool {config.pool!r}, but there is a class token only for pool 'cls'"
        ]
    )


def _layout(version: str, title: str, modules: tuple[str, ...]) -> Layout:
    signature = (re.escape(POSITION), f"Transformer/encoderblock_0/{modules[1]}/query/kernel", "!(MAPHead_0/)?probe")
    return Layout(
        dialect="augreg",
        version=version,
        title=title,
        network=ViTConfig,
        covers=True,
        fields=fields(modules),
        rows=functools.partial(rows, modules=modules),
        signature=signature,
        containers=("npz",),
        refusals=(Refusal("network", cannot_hold),),
        proven="timm 1.0.31",
    )


LAYOUTS = (
    _layout("linen", "Google's vision_transformer, Linen's names", LINEN),
    _layout("pre-linen", "Google's vision_transformer", PRE_LINEN),
)
