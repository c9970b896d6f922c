"""timm's Eva: EVA, EVA-02, DINOv3, Perception Encoder and RoPE-ViT, with timm's config.json (timm_eva_folder.py).

Compared with 1.0.31. Names are those of VisionTransformer (timm.py), but layer scales are gamma_1 and gamma_2, norms
may stand inside attention and mlp, and learned rotary frequencies of all blocks are one tensor. Keys have no bias in
most of these networks: beside a packed qkv, q_bias and v_bias are then tensors of their own. Attention pooling takes
all tokens. Computed rotary positions leave no trace in a file, and neither do norms after the branches: an
architecture's name, a config.json or the user states them.

Versions: `gate-apart` has the gate of the mlp as a layer of its own, fc1_g beside fc1_x (DINOv3's larger sizes);
`apart` has query, key and value so, too (EVA-02 Base and Large).
"""

from __future__ import annotations

import functools
from typing import Any

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Json, Layout, Names, Refusal, always, has, length
from . import timm
from .dinov2 import activation
from .huggingface import PROBLEMS
from .timm_eva_folder import cannot_state, read_side, write_side

Q_BIAS = has("blocks.0.attn.qkv.bias", "blocks.0.attn.q_bias", "blocks.0.attn.q_proj.bias")
ALIKE = "the names are also those of timm's VisionTransformer or DeiT III, which have no rotary positions"


def _idle_unless(rotary: tuple[str, ...], value: Any, *others: Any, places: str = "") -> Field:
    """A field of rotary positions: `value`, without effect, unless they are of a kind in `rotary` (and of `places`)."""

    def follow(names: Names, known: Json) -> Any:
        used = known["rotary"] in rotary and (not places or known.get("rotary_places") in (None, places))
        return None if used else value

    return Field((value, *others) if others else (), follow=follow)


def heads(names: Names) -> int | None:
    """A solver: the number of heads, where learned frequencies or norms of queries show it."""
    return length("rope.freqs", 2)(names) or timm.heads(names)


FIELDS = (
    timm.FIELDS
    | timm.PLAIN_NORMS
    | {
        "heads": Field(solve=heads),
        "activation": Field(("gelu", "silu"), follow=activation),
        "stem_norm": always(False),
        "distill_token": always(False),
        "distill_head": always(False),
        "position": Field(("learned", "none"), solve=lambda names: "learned" if "pos_embed" in names else "none"),
        "rotary": Field(("none", "axial", "mixed"), lambda names: "mixed" if "rope.freqs" in names else None),
        "rotary_places": _idle_unless(("axial", "mixed"), "centres", "indices"),
        "rotary_pairs": _idle_unless(("axial", "mixed"), "halves", "neighbours"),
        "rotary_first": _idle_unless(("axial", "mixed"), "rows", "columns"),
        "rotary_base": _idle_unless(("axial",), 100.0),
        "rotary_offset": _idle_unless(("axial", "mixed"), 0.0, places="indices"),
        "rotary_grid": _idle_unless(("axial", "mixed"), 0, places="indices"),
        "branch_norm": Field((False, True), solve=timm.branch_norm),
        "attention_norm": Field(solve=has("blocks.0.attn.norm.weight")),
        "mlp_norm": Field(solve=has("blocks.0.mlp.norm.weight")),
        "final_norm": Field(solve=has("norm.weight")),
        "head_norm": Field(solve=has("fc_norm.weight")),
        "layer_scale": Field(solve=lambda names: float(has("blocks.0.gamma_1")(names))),
        "query_bias": Field(solve=Q_BIAS),
        "key_bias": Field(solve=has("blocks.0.attn.qkv.bias", "blocks.0.attn.k_proj.bias")),
        "value_bias": Field(solve=Q_BIAS),
        "out_bias": always(True),
        "mlp_bias": always(True),
        "pool": Field(
            ("cls", "mean", "map", "map_all"), lambda names: "map_all" if "attn_pool.latent" in names else None
        ),
        "pool_heads": Field(follow=lambda names, known: None if known["pool"] in ("map", "map_all") else 0),
        "pool_hidden": Field(solve=length("attn_pool.mlp.fc1.weight", 0, 0)),
    }
)


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that timm's class cannot build."""
    prefix = {c.cls_position} if c.cls_token else set()
    prefix |= {c.register_position} if c.registers else set()
    indices = c.rotary == "none" or c.rotary_places == "indices"
    reasons = {
        "stem_bias and pre_norm are equal, but timm has exactly one of the two": c.stem_bias == c.pre_norm,
        "timm's query and value both have biases or both have none": c.query_bias != c.value_bias,
        "timm's key has a bias only with those of query and value": c.key_bias and not c.query_bias,
        "timm's tokens before the patches all have positions or all have none": len(prefix) > 1
        and c.position != "none",
        "timm's attention pooling takes all tokens (map_all)": c.pool == "map" and bool(c.prefix),
        "timm's attention pooling has a plain mlp": c.pool in ("map", "map_all") and c.gated,
        f"the mlp has {c.activation}, but timm's has silu with a gate and gelu without": c.activation
        != ("silu" if c.gated else "gelu"),
        "with norms after its branches timm's block has no layer scale and no qk_norm": c.branch_norm
        and bool(c.layer_scale or c.qk_norm),
        "timm's learned rotary positions turn neighbours by indices, without offset and reference grid": c.rotary
        == "mixed"
        and (c.rotary_pairs, c.rotary_places, c.rotary_offset, c.rotary_grid) != ("neighbours", "indices", 0.0, 0),
        "timm's rotary positions of centres have no offset and no reference grid": not indices
        and bool(c.rotary_offset or c.rotary_grid),
        "heads do not divide width": bool(c.width % c.heads),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _alike(names: Names | None) -> list[str]:
    """A clause where a file has no tensor that only this class has."""
    names = names or {}
    own = any(name in names for name in ("blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight", "rope.freqs"))
    return [] if own or ("blocks.0.gamma_1" in names and "pos_embed" not in names) else [ALIKE]


GATE = r"blocks\.0\.mlp\.fc1_g\.weight"
BODY = (r"patch_embed\.proj\.weight", r"blocks\.0\.norm1\.weight", r"!register_tokens", r"!blocks\.0\.ls1\.gamma")
FUSED, APART = r"blocks\.0\.attn\.qkv\.weight", r"blocks\.0\.attn\.q_proj\.weight"


def layout(version: str, title: str, signature: tuple[str, ...], **forms: bool) -> Layout:
    """One version of the layout."""
    return Layout(
        dialect="timm-eva",
        version=version,
        title=f"timm's Eva{title}",
        network=ViTConfig,
        fields=FIELDS | ({"gated": always(True), "activation": always("silu")} if forms else {}),
        rows=lambda c: timm.rows(c, scale="gamma_{}", **forms),
        signature=(*BODY, *signature),
        containers=("safetensors", "torch"),
        refusals=(
            Refusal("shapes", timm.axes(4)),
            Refusal("choice", _alike),
            Refusal("network", cannot_hold),
            Refusal("statement", cannot_state),
        ),
        read_side=read_side,
        covers=True,
        write_side=functools.partial(write_side, apart=forms.get("separate", False), gate_apart=bool(forms)),
        outputs=lambda c: PROBLEMS,
        proven="timm 1.0.31",
        outside=timm.TRAINING_ONLY,
    )


LAYOUTS = (
    layout("apart", ", with query, key and value apart", (APART, GATE), separate=True, separate_gate=True),
    layout("gate-apart", ", with the gate of its mlp apart", (FUSED, GATE), separate_gate=True),
    layout("", " (EVA, EVA-02, DINOv3, Perception Encoder, RoPE-ViT)", (FUSED, r"blocks\.0\.mlp\.fc1\.weight")),
)
