"""torchvision's VisionTransformer (torchvision.models.vit_b_16 and others); compared with 0.28.

Square images, class token, erf GELU, eps 1e-6. The layers of the mlp are `0` and `3` in version 2 of its MLPBlock,
`linear_1` and `linear_2` in version 1; the class loads both. Its files come without a config.json.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Refusal, always, count, length
from ..rules import Row
from .modules import TOKEN, TOKENS, headless, module_rows, oblong
from .plain_vit import PLAIN_VIT

BLOCK = "encoder.layers.encoder_layer_"
MLP = {"1": ("linear_1", "linear_2"), "2": ("0", "3")}


def rows(c: ViTConfig, mlp: tuple[str, str] = MLP["2"]) -> list[Row]:
    """The rows of a network."""
    modules = {"patch": "conv_proj.", "norm": "encoder.ln.", "head_hidden": "heads.pre_logits.", "head": "heads.head."}
    for i in range(c.depth):
        ours, theirs = f"blocks.{i}.", f"{BLOCK}{i}."
        modules |= {
            f"{ours}norm1": f"{theirs}ln_1.",
            f"{ours}norm2": f"{theirs}ln_2.",
            f"{ours}attention.query": f"{theirs}self_attention.in_proj_",
        }
        modules |= {f"{ours}attention.out": f"{theirs}self_attention.out_proj."}
        modules |= {f"{ours}mlp.fc{n}": f"{theirs}mlp.{name}." for n, name in enumerate(mlp, 1)}
    packed = [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in range(c.depth)]
    return module_rows(
        c, modules, packed, {"cls_token": ("class_token", TOKEN), "position": ("encoder.pos_embedding", TOKENS)}
    )


def fields(mlp: tuple[str, str]) -> Mapping[str, Field]:
    """Where config fields come from; no tensor shows heads and the image's size."""
    return PLAIN_VIT | {
        "image": Field(),
        "heads": Field(),
        "channels": Field(solve=length("conv_proj.weight", 1)),
        "eps": always(1e-6),
        "activation": always("gelu"),
        "patch": Field(solve=length("conv_proj.weight", 2)),
        "width": Field(solve=length("conv_proj.weight", 0)),
        "depth": Field(solve=lambda names: count(names, rf"{BLOCK}(\d+)\..*") or None),
        "hidden": Field(solve=length(f"{BLOCK}0.mlp.{mlp[0]}.weight", 0)),
        "classes": Field(solve=length("heads.head.weight", 0)),
        "head_hidden": Field(solve=length("heads.pre_logits.weight", 0, 0)),
    }


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that its constructor cannot build."""
    return oblong(c) + headless(c)


def cannot_state(c: ViTConfig) -> list[str]:
    """A clause for images that are not RGB: the constructor takes no number of channels, so users replace the stem."""
    return [] if c.channels == 3 else [f"channels is {c.channels}, but its constructor makes 3"]


def layout(version: str) -> Layout:
    """The layout of one version of MLPBlock."""
    mlp = MLP[version]
    signature = (r"conv_proj\.weight", rf"{BLOCK}\d+\.mlp\.{mlp[0]}\.weight")
    title = f"torchvision's VisionTransformer, with mlp.{mlp[0]}"
    return Layout(
        dialect="torchvision",
        version=version,
        title=title,
        network=ViTConfig,
        fields=fields(mlp),
        rows=functools.partial(rows, mlp=mlp),
        signature=signature,
        containers=("torch", "safetensors"),
        refusals=(
            Refusal("network", cannot_hold),
            Refusal("statement", cannot_state),
        ),
        proven="torchvision 0.28.0",
    )


LAYOUTS = tuple(map(layout, MLP))
