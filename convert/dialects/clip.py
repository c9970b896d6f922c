"""The image tower of OpenAI's CLIP, and of OpenCLIP's ViTs under the same names.

No bias in the stem, a norm before the blocks, eps 1e-5. The projection into the space shared with text is the head
here: [D, K], without a bias. OpenAI's weights use quick GELU, most of OpenCLIP's the exact GELU; no tensor says which.
Version `whole` is a file of both towers, with the image tower under `visual.`; the plain version has that tower alone.
"""

from __future__ import annotations

import functools
import re

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Refusal, always, count, length
from ..rules import Row
from .modules import Tensors, module_rows, oblong
from .open_clip_config import read_side
from .plain_vit import PLAIN_VIT

TEXT = (
    r"token_embedding\.weight|positional_embedding|transformer\..*|ln_final\..*|"
    r"text_projection|logit_(scale|bias)|attn_mask",
)
SETTINGS = (r"input_resolution|context_length|vocab_size",)  # OpenAI's files hold these numbers as tensors


def rows(c: ViTConfig, prefix: str = "") -> list[Row]:
    """The rows of a network."""
    modules = {"patch": "conv1.", "pre_norm": "ln_pre.", "norm": "ln_post."}
    for i in range(c.depth):
        ours, theirs = f"blocks.{i}.", f"transformer.resblocks.{i}."
        modules |= {
            f"{ours}norm1": f"{theirs}ln_1.",
            f"{ours}norm2": f"{theirs}ln_2.",
            f"{ours}attention.query": f"{theirs}attn.in_proj_",
        }
        modules |= {
            f"{ours}attention.out": f"{theirs}attn.out_proj.",
            f"{ours}mlp.fc1": f"{theirs}mlp.c_fc.",
            f"{ours}mlp.fc2": f"{theirs}mlp.c_proj.",
        }
    packed = [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in range(c.depth)]
    tensors: Tensors = {
        "cls_token": ("class_embedding", None),
        "position": ("positional_embedding", None),
        "head.kernel": ("proj", None),
    }
    return module_rows(c, modules, packed, tensors, prefix)


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that CLIP's class cannot build."""
    return oblong(c) + ([] if c.classes else ["classes is 0, but the layout always has a projection"])


def layout(version: str, prefix: str, title: str) -> Layout:
    """The layout of an image tower."""
    block = f"{prefix}transformer.resblocks."
    fields = PLAIN_VIT | {
        "image": Field(),
        "heads": Field(),
        "activation": Field(("quick_gelu", "gelu")),
        "eps": always(1e-5),
        "stem_bias": always(False),
        "pre_norm": always(True),
        "head_bias": always(False),
        "patch": Field(solve=length(f"{prefix}conv1.weight", 2)),
        "channels": Field(solve=length(f"{prefix}conv1.weight", 1)),
        "width": Field(solve=length(f"{prefix}conv1.weight", 0)),
        "classes": Field(solve=length(f"{prefix}proj", 1)),
        "hidden": Field(solve=length(f"{block}0.mlp.c_fc.weight", 0)),
        "depth": Field(solve=lambda names: count(names, rf"{re.escape(block)}(\d+)\..*") or None),
    }
    signature = (
        rf"{prefix}class_embedding",
        rf"{prefix}conv1\.weight",
        rf"{prefix}proj",
        rf"{block}0\.mlp\.c_fc\.weight",
    )
    return Layout(
        dialect="clip",
        version=version,
        title=title,
        network=ViTConfig,
        covers=True,
        fields=fields,
        rows=functools.partial(rows, prefix=prefix),
        signature=signature,
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", cannot_hold),),
        outside=(*TEXT, *SETTINGS) if prefix else (),
        outputs=lambda c: ("embedding",),
        read_side=read_side,
        proven="timm 1.0.31",
    )


LAYOUTS = (
    layout("whole", "visual.", "OpenAI's CLIP, its image tower; the text tower is left out"),
    layout("", "", "the image tower of OpenAI's CLIP alone"),
)
