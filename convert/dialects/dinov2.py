"""DINOv2 with registers or a gated mlp, as its repository saves it: github.com/facebookresearch/dinov2.

The names are timm's but for registers (which have no positions) and the gated mlp. DINOv2's other networks, DINO and
MAE use timm's names throughout: see timm.py, which leaves out tensors that only their training needs.
"""

from __future__ import annotations

import dataclasses

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Json, Layout, Names, Refusal, always, has, length
from ..rules import Row, passthrough
from . import timm


def rows(c: ViTConfig) -> list[Row]:
    """The rows of timm's layout under other names; and the mask token, which only training needs."""

    def name(theirs: str) -> str:
        theirs = "register_tokens" if theirs == "reg_token" else theirs
        return theirs.replace(".mlp.fc1.", ".mlp.w12.").replace(".mlp.fc2.", ".mlp.w3.") if c.gated else theirs

    renamed = [dataclasses.replace(r, theirs=tuple(map(name, r.theirs)), optional=frozenset()) for r in timm.rows(c)]
    return [*renamed, passthrough("mask_token", (1, c.width))]


def activation(names: Names, known: Json) -> str:
    """The activation: SiLU for the gated mlp, exact GELU for the plain one."""
    return "silu" if known["gated"] else "gelu"


def solve_hidden(names: Names) -> int | None:
    """A solver: the hidden width of the mlp."""
    return length("blocks.0.mlp.w3.weight", 1)(names) or length("blocks.0.mlp.fc2.weight", 1)(names)


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that DINOv2 does not have, or that it saves under timm's names."""
    qkv_biases = {c.query_bias, c.key_bias, c.value_bias}
    reasons = {
        "without registers and a gated mlp DINOv2's names are those of timm": not (c.registers or c.gated),
        "DINOv2's mlp is gated by SiLU, or plain with GELU": c.activation != ("silu" if c.gated else "gelu"),
        "DINOv2's query, key and value all have biases or all have none": len(qkv_biases) > 1,
        "heads do not divide width": bool(c.width % c.heads),
    }
    return [reason for reason, holds in reasons.items() if holds]


FIELDS = (
    timm.FIELDS
    | timm.PLAIN_NORMS
    | {
        "registers": Field(solve=length("register_tokens", 1, 0)),
        "gated": Field(solve=has("blocks.0.mlp.w12.weight")),
        "hidden": Field(solve=solve_hidden),
        "activation": Field(("gelu", "silu"), follow=activation),
        "out_bias": always(True),
        "mlp_bias": always(True),
        "qk_norm": always(False),
        "cls_token": always(True),
        "cls_position": always(True),
        "register_position": always(False),
        "position": always("learned"),
        "distill_token": always(False),
        "distill_head": always(False),
        "stem_bias": always(True),
        "stem_norm": always(False),
        "pre_norm": always(False),
        "eps": always(1e-6),
        "pool": always("cls"),
        "classes": always(0),
        "final_norm": always(True),
        "head_norm": always(False),
    }
)
LAYOUTS = (
    Layout(
        dialect="dinov2",
        version="",
        title="DINOv2 with registers or a gated mlp, from its own repository",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=(
            r"patch_embed\.proj\.weight",
            r"blocks\.0\.attn\.qkv\.weight",
            r"register_tokens|blocks\.0\.mlp\.w12\.weight",
        ),
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", cannot_hold),),
        proven="timm 1.0.31",
    ),
)
