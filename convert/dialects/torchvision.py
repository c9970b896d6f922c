"""torchvision's VisionTransformer (torchvision.models.vit_b_16 and its kin): square images, class token, erf GELU, eps 1e-6.

Two generations of names for the mlp: `linear_1` and `linear_2` in state dicts before version 2 of its MLPBlock,
`0` and `3` since. The class itself loads both. Files come alone: no config.json and no statistics beside them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from vit_jax.config import ViTConfig

from ..layout import PLAIN_VIT, Field, Layout, always, count, length
from ..rules import Row
from .modules import TOKEN, TOKENS, module_rows, oblong

BLOCK = "encoder.layers.encoder_layer_"
MLP = {"1": ("linear_1", "linear_2"), "2": ("0", "3")}


def rows(c: ViTConfig, mlp: tuple[str, str] = MLP["2"]) -> list[Row]:
    """The tensors of a network; `mlp` are the names of its two linear layers."""
    modules = {"patch": "conv_proj.", "norm": "encoder.ln.", "head_hidden": "heads.pre_logits.", "head": "heads.head."}
    for i in range(c.depth):
        mine, its = f"blocks.{i}.", f"{BLOCK}{i}."
        modules |= {
            f"{mine}norm1": f"{its}ln_1.",
            f"{mine}norm2": f"{its}ln_2.",
            f"{mine}attention.query": f"{its}self_attention.in_proj_",
        }
        modules |= {f"{mine}attention.out": f"{its}self_attention.out_proj."}
        modules |= {f"{mine}mlp.fc{n}": f"{its}mlp.{name}." for n, name in enumerate(mlp, 1)}
    packed = [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in range(c.depth)]
    return module_rows(
        c, modules, packed, {"cls_token": ("class_token", TOKEN), "position": ("encoder.pos_embedding", TOKENS)}
    )


def fields(mlp: tuple[str, str]) -> Mapping[str, Field]:
    """Where the config comes from: heads and the image are in no tensor."""
    return PLAIN_VIT | {
        "image": Field(), "heads": Field(), "channels": Field(solve=length("conv_proj.weight", 1)), "eps": always(1e-6), "activation": always("gelu"),
        "patch": Field(solve=length("conv_proj.weight", 2)), "width": Field(solve=length("conv_proj.weight", 0)),
        "depth": Field(solve=lambda names: count(names, rf"{BLOCK}(\d+)\..*") or None), "hidden": Field(solve=length(f"{BLOCK}0.mlp.{mlp[0]}.weight", 0)),
        "classes": Field(solve=length("heads.head.weight", 0)), "head_hidden": Field(solve=length("heads.pre_logits.weight", 0, 0)),
    }  # fmt: skip


def limits(c: ViTConfig) -> list[str]:
    """What its constructor cannot be told."""
    return oblong(c) + ([] if c.classes else ["classes is 0, it always has a head"])


def unstated(c: ViTConfig) -> list[str]:
    """Its constructor makes the stem of colour images; one of other channels has been put in its place."""
    return [] if c.channels == 3 else [f"channels is {c.channels}, its constructor takes 3"]


def layout(version: str) -> Layout:
    """The layout of one generation of names."""
    mlp = MLP[version]
    marks = (r"conv_proj\.weight", rf"{BLOCK}\d+\.mlp\.{mlp[0]}\.weight")
    title = f"torchvision's VisionTransformer, with mlp.{mlp[0]}"
    return Layout(
        "torchvision",
        version,
        title,
        ViTConfig,
        fields(mlp),
        functools.partial(rows, mlp=mlp),
        marks,
        ("torch", "safetensors"),
        limits,
        unstated,
        proven="torchvision 0.28.0",
    )


LAYOUTS = tuple(map(layout, MLP))
