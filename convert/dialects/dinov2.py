"""DINOv2's own names where they are not timm's: registers (without positions, the class token has one) and the gated mlp.

Other networks of DINOv2, and those of DINO and MAE, are under timm's names; what serves their training alone (mask
token, MAE's decoder) is left out there.
"""

from __future__ import annotations

import dataclasses

from vit_jax.config import ViTConfig

from ..layout import Field, Json, Layout, Names, always, has, length
from ..rules import Row, carried
from . import timm


def rows(c: ViTConfig) -> list[Row]:
    """timm's, renamed; and the mask token, which only training needs."""

    def name(theirs: str) -> str:
        theirs = "register_tokens" if theirs == "reg_token" else theirs
        return theirs.replace(".mlp.fc1.", ".mlp.w12.").replace(".mlp.fc2.", ".mlp.w3.") if c.gated else theirs

    renamed = [dataclasses.replace(r, theirs=tuple(map(name, r.theirs)), optional=frozenset()) for r in timm.rows(c)]
    return [*renamed, carried("mask_token", (1, c.width))]


def activation(names: Names, said: Json) -> str:
    """The gate is SiLU's, the plain mlp's function the exact GELU."""
    return "silu" if said["gated"] else "gelu"


def hidden(names: Names) -> int | None:
    """The width inside the mlp."""
    return length("blocks.0.mlp.w3.weight", 1)(names) or length("blocks.0.mlp.fc2.weight", 1)(names)


def limits(c: ViTConfig) -> list[str]:
    """What is not DINOv2, or has timm's names."""
    reasons = {
        "without registers and a gated mlp its names are timm's": not (c.registers or c.gated),
        "its mlp is gated by SiLU or plain with GELU": c.activation != ("silu" if c.gated else "gelu"),
        "its query, key and value have biases together or not at all": len({c.query_bias, c.key_bias, c.value_bias})
        > 1,
        "heads do not divide width": bool(c.width % c.heads),
    }
    return [reason for reason, holds in reasons.items() if holds]


FIELDS = timm.FIELDS | {
    "registers": Field(solve=length("register_tokens", 1, 0)), "gated": Field(solve=has("blocks.0.mlp.w12.weight")), "hidden": Field(solve=hidden),
    "activation": Field(("gelu", "silu"), follow=activation), "out_bias": always(True), "mlp_bias": always(True), "qk_norm": always(False),
    "cls_token": always(True), "cls_position": always(True), "register_position": always(False), "position": always("learned"),
    "distill_token": always(False), "distill_head": always(False), "stem_bias": always(True), "stem_norm": always(False), "pre_norm": always(False),
    "eps": always(1e-6), "pool": always("cls"), "classes": always(0), "final_norm": always(True), "head_norm": always(False),
}  # fmt: skip
LAYOUTS = (
    Layout(
        "dinov2", "", "DINOv2 with registers or a gated mlp, from its own repository", ViTConfig, FIELDS, rows,
        (r"patch_embed\.proj\.weight", r"blocks\.0\.attn\.qkv\.weight", r"register_tokens|blocks\.0\.mlp\.w12\.weight"), ("torch", "safetensors"),
        limits, proven="timm 1.0.31",
    ),
)  # fmt: skip
