"""The image tower of OpenAI's CLIP (and of OpenCLIP's own ViT): no bias in the stem, a norm before the blocks, eps 1e-5.

The projection into the space shared with text is our head: (D, K), without a bias. OpenAI's weights have the quick
GELU, most of OpenCLIP's the exact one, under the same names. Whole files hold the tower under `visual.`, beside the
one of text; the tower alone goes without that.
"""

from __future__ import annotations

import functools
import re

from vit_jax.config import ViTConfig

from ..layout import PLAIN_VIT, Field, Layout, always, count, length
from ..rules import Row
from .modules import Tensors, module_rows, oblong

TEXT = (
    r"token_embedding\.weight|positional_embedding|transformer\..*|ln_final\..*|text_projection|logit_(scale|bias)|attn_mask",
)
SETTINGS = (r"input_resolution|context_length|vocab_size",)  # numbers that OpenAI's files hold as tensors


def rows(c: ViTConfig, prefix: str = "") -> list[Row]:
    """The tensors of a network."""
    modules = {"patch": "conv1.", "pre_norm": "ln_pre.", "norm": "ln_post."}
    for i in range(c.depth):
        mine, its = f"blocks.{i}.", f"transformer.resblocks.{i}."
        modules |= {
            f"{mine}norm1": f"{its}ln_1.",
            f"{mine}norm2": f"{its}ln_2.",
            f"{mine}attention.query": f"{its}attn.in_proj_",
        }
        modules |= {
            f"{mine}attention.out": f"{its}attn.out_proj.",
            f"{mine}mlp.fc1": f"{its}mlp.c_fc.",
            f"{mine}mlp.fc2": f"{its}mlp.c_proj.",
        }
    packed = [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in range(c.depth)]
    tensors: Tensors = {
        "cls_token": ("class_embedding", None),
        "position": ("positional_embedding", None),
        "head.kernel": ("proj", None),
    }
    return module_rows(c, modules, packed, tensors, prefix)


def limits(c: ViTConfig) -> list[str]:
    """What its class cannot be told."""
    return oblong(c) + ([] if c.classes else ["classes is 0, it always has a projection"])


def layout(version: str, prefix: str, title: str) -> Layout:
    """The layout of a tower with something before its names."""
    block = f"{prefix}transformer.resblocks."
    fields = PLAIN_VIT | {
        "image": Field(), "heads": Field(), "activation": Field(("quick_gelu", "gelu")), "eps": always(1e-5), "stem_bias": always(False),
        "pre_norm": always(True), "head_bias": always(False), "patch": Field(solve=length(f"{prefix}conv1.weight", 2)),
        "channels": Field(solve=length(f"{prefix}conv1.weight", 1)), "width": Field(solve=length(f"{prefix}conv1.weight", 0)),
        "classes": Field(solve=length(f"{prefix}proj", 1)), "hidden": Field(solve=length(f"{block}0.mlp.c_fc.weight", 0)),
        "depth": Field(solve=lambda names: count(names, rf"{re.escape(block)}(\d+)\..*") or None),
    }  # fmt: skip
    marks = (rf"{prefix}class_embedding", rf"{prefix}conv1\.weight", rf"{prefix}proj", rf"{block}0\.mlp\.c_fc\.weight")
    return Layout(
        "clip",
        version,
        title,
        ViTConfig,
        fields,
        functools.partial(rows, prefix=prefix),
        marks,
        ("torch", "safetensors"),
        limits,
        beside=(*TEXT, *SETTINGS) if prefix else (),
        proven="timm 1.0.31",
    )


LAYOUTS = (
    layout("whole", "visual.", "OpenAI's CLIP, its image tower; the one of text is left out"),
    layout("", "", "the image tower of OpenAI's CLIP alone"),
)
