"""DINOv3's Vision Transformer as its repository saves it: github.com/facebookresearch/dinov3 (read at 6876159).

Query, key and value are packed, and the bias of all three goes with a mask that is 0 for the key: that third may hold
anything, and is carried along. The periods of the rotary
positions are a tensor. In the published files they are rounded to bfloat16, which is another function than that of the
exact ones (by 5e-4): no shape tells which, so `rotary_periods` has to be stated, and the tensor is checked against it.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Names, Refusal, always, count, has, length
from ..operations import Concat, Constant
from ..rules import CARRIED, Row, passthrough
from .dinov2 import activation, solve_hidden
from .modules import TOKEN, TOKENS, Tensors, module_rows
from .plain_vit import PLAIN_VIT
from .timm import patch

BLOCK = {
    "norm1": "norm1.",
    "attention.query": "attn.qkv.",  # with key and value
    "attention.out": "attn.proj.",
    "norm2": "norm2.",
}
PLAIN = {"mlp.fc1": "mlp.fc1.", "mlp.fc2": "mlp.fc2."}
GATED = {"mlp.gate": "mlp.w1.", "mlp.fc1": "mlp.w2.", "mlp.fc2": "mlp.w3."}
PERIODS = "rope_embed.periods"
TRAINING = ("weight", "bias")  # of local_cls_norm, a norm of the class token that only training on crops uses


def rows(c: ViTConfig) -> list[Row]:
    """One row for each tensor; and those of tensors that only training needs."""
    modules, packed = {"patch": "patch_embed.proj.", "norm": "norm."}, []
    tensors: Tensors = {"cls_token": ("cls_token", TOKEN), "register_tokens": ("storage_tokens", TOKENS)}
    for i in range(c.depth):
        block = f"blocks.{i}."
        modules |= {block + ours: block + theirs for ours, theirs in (BLOCK | (GATED if c.gated else PLAIN)).items()}
        tensors |= {f"{block}scale{n}": (f"{block}ls{n}.gamma", None) for n in (1, 2)}
        packed.append(tuple(f"{block}attention.{part}" for part in ("query", "key", "value")))
    biased = c.query_bias and c.value_bias
    made = [_mask_key_bias(r, c) for r in module_rows(replace(c, key_bias=biased), modules, packed, tensors)]
    told = f"its periods are not {c.rotary_base:g}^(4k/{c.resolved_head_width}), {c.rotary_periods}"
    fixed = Row((PERIODS,), (), (), (Constant(lambda: periods(c), 0, told),))
    aside = [passthrough(f"local_cls_norm.{leaf}", (c.width,)) for leaf in TRAINING]
    return [passthrough("mask_token", (1, c.width)), *aside, fixed, *made]


def _mask_key_bias(r: Row, c: ViTConfig) -> Row:
    """The row of a packed bias with its mask, which removes the bias of the key; any other row as it is."""
    if not r.theirs[0].endswith("attn.qkv.bias"):
        return r
    d = c.heads * c.resolved_head_width
    mask = np.repeat(np.array([1, 0, 1], np.float32), d)
    fixed = Constant(lambda: mask, 1, "its mask is not 1 for query and value and 0 for key")
    (bias,), (query, _, value) = r.theirs, r.ours
    return Row((bias, f"{bias}_mask"), (query, CARRIED + bias, value), ((d,),) * 3, (fixed, Concat(0, (d, d, d))))


def periods(c: ViTConfig) -> np.ndarray:
    """The periods of the rotary positions on an axis [Dh/4]: base^(4k / Dh), float64 or rounded to bfloat16."""
    exact = c.rotary_base ** (4.0 * np.arange(c.resolved_head_width // 4) / c.resolved_head_width)
    return exact.astype({"exact": np.float64, "bfloat16": ml_dtypes.bfloat16}[c.rotary_periods]).astype(np.float64)


# ------------------------------------------------------------------------------------------ config


def heads(names: Names) -> int | None:
    """A solver: the number of heads, from the periods, of which there are four times fewer than values of a head."""
    width, quarter = length("patch_embed.proj.weight", 0)(names), length(PERIODS, 0)(names)
    return width // (4 * quarter) if width and quarter else None


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that the class does not have."""
    reasons = {
        "query and value both have biases or both have none": c.query_bias != c.value_bias,
        "the mlp is gated by SiLU, or plain with GELU": c.activation != ("silu" if c.gated else "gelu"),
        "heads do not divide width": bool(c.width % c.heads),
    }
    return [reason for reason, holds in reasons.items() if holds]


BIASED = has("blocks.0.attn.qkv.bias")
FIELDS = PLAIN_VIT | {
    "image": Field(),
    "patch": Field(solve=patch),
    "channels": Field(solve=length("patch_embed.proj.weight", 1)),
    "width": Field(solve=length("patch_embed.proj.weight", 0)),
    "depth": Field(solve=lambda names: count(names, r"blocks\.(\d+)\.norm1\.weight") or None),
    "heads": Field(solve=heads),
    "hidden": Field(solve=solve_hidden),
    "gated": Field(solve=has("blocks.0.mlp.w1.weight")),
    "activation": Field(("gelu", "silu"), follow=activation),
    "query_bias": Field(solve=BIASED),
    "key_bias": always(False),
    "value_bias": Field(solve=BIASED),
    "out_bias": Field(solve=has("blocks.0.attn.proj.bias")),
    "mlp_bias": Field(solve=has("blocks.0.mlp.w1.bias", "blocks.0.mlp.fc1.bias")),
    "registers": Field(solve=length("storage_tokens", 1, 0)),
    "layer_scale": always(1.0),
    "position": always("none"),
    "rotary": always("axial"),
    "rotary_periods": Field(("exact", "bfloat16")),
    "eps": always(1e-5),
    "classes": always(0),
}
LAYOUTS = (
    Layout(
        dialect="dinov3",
        version="",
        title="DINOv3, from its own repository",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=(
            r"patch_embed\.proj\.weight",
            r"blocks\.0\.attn\.qkv\.weight",
            r"blocks\.0\.ls1\.gamma",
            r"rope_embed\.periods",
        ),
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", cannot_hold),),
        resizes=lambda c: "timm",  # it stores no positions
        proven="timm 1.0.31",
    ),
)
