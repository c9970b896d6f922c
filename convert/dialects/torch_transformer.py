"""The state dicts of torch.nn.Transformer and torch.nn.TransformerEncoder: query, key and value packed; vectors in, vectors out.

They hold no embeddings, positions or head; both stacks of a Transformer end in a norm. Which tokens may be seen is not the
module's but its caller's, as a mask: the config's `causal` says what he gives.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from vit_jax.config import TransformerConfig, shapes

from ..layout import Field, Layout, Names, always, count, has, length
from ..rules import TRANSPOSE, Concat, Row, row

PARTS = (
    (r"\.blocks\.", ".layers."), (r"\.(self_)?attention\b", ".self_attn"), (r"\.cross_attention\b", ".multihead_attn"), (r"\.out$", ".out_proj"),
    (r"\.mlp\.fc", ".linear"),
)  # fmt: skip
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def rows(c: TransformerConfig) -> list[Row]:
    """A row for each tensor of the module."""
    out, outer = [], "" if c.decoder_depth else "encoder."  # an encoder alone has no name to itself
    for name, shape in shapes(c).items():
        path, _, leaf = name.rpartition(".")
        turned = (TRANSPOSE,) if leaf == "kernel" else ()
        attention, _, part = path.rpartition(".")
        if part == "query":
            ours = tuple(f"{attention}.{p}.{leaf}" for p in ("query", "key", "value"))
            packed = Concat(0, (c.width,) * 3)
            out.append(
                Row(
                    (f"{module(attention).removeprefix(outer)}.in_proj_{LEAVES[leaf]}",),
                    ours,
                    (shape,) * 3,
                    (packed, *turned),
                )
            )
        elif part not in ("key", "value"):
            out.append(row(f"{module(path).removeprefix(outer)}.{LEAVES[leaf]}", name, shape, *turned))
    return out


def module(path: str) -> str:
    """Transformer's module for one of ours: encoder.blocks.0.attention is encoder.layers.0.self_attn."""
    for ours, theirs in PARTS:
        path = re.sub(ours, theirs, path)
    return path


def limits(c: TransformerConfig) -> list[str]:
    """`bias` is that of linear maps and norms."""
    return [] if c.bias == c.norm_bias else [f"bias is {c.bias} but norm_bias is {c.norm_bias}, it has both or neither"]


def limits_of_both(c: TransformerConfig) -> list[str]:
    """A Transformer has both stacks."""
    return limits(c) + (
        [] if c.decoder_depth else ["decoder_depth is 0, it has a decoder (torch-transformer@encoder has none)"]
    )


def fields(encoder: str, **own: Field) -> dict[str, Field]:
    """What the two have in common, by the name before the encoder's layers; and `own`, what one has for itself."""
    first = f"{encoder}layers.0."
    return {
        "width": Field(solve=length(f"{first}norm1.weight", 0)), "hidden": Field(solve=length(f"{first}linear1.weight", 0)),
        "encoder_depth": Field(solve=depth(encoder)), "bias": Field(solve=has(f"{first}linear1.bias")), "norm_bias": Field(solve=has(f"{first}norm1.bias")),
        "heads": Field(), "activation": Field(), "norm_first": Field(), "eps": Field(), "head_width": always(0), "position": always("none"),
        "position_offset": always(0), "max_length": always(0), "source_vocabulary": always(0), "target_vocabulary": always(0),
        "scale_embedding": always(False), "embedding_norm": always(False), "tie": always("none"), "outputs": always(0), "output_bias": always(True), **own,
    }  # fmt: skip


def depth(stack: str) -> Callable[[Names], int]:
    """A solver: the layers of a stack."""
    return lambda names: count(names, re.escape(stack) + r"layers\.(\d+)\.norm1\.weight")


PACKED = r"layers\.0\.self_attn\.in_proj_weight"
LAYOUTS = (
    Layout(
        "torch-transformer", "encoder", "torch.nn.TransformerEncoder", TransformerConfig,
        fields("", decoder_depth=always(0), final_norm=Field(solve=has("norm.weight")), causal=always(True)), rows,
        (PACKED, r"!layers\.0\.multihead_attn\.in_proj_weight"), ("torch", "safetensors"), limits, proven="torch 2.13.0",
    ),
    Layout(
        "torch-transformer", "", "torch.nn.Transformer", TransformerConfig,
        fields("encoder.", decoder_depth=Field(solve=depth("decoder.")), final_norm=always(True), causal=Field()), rows,
        (rf"encoder\.{PACKED}", r"encoder\.norm\.weight", rf"decoder\.{PACKED}", r"decoder\.norm\.weight"),
        ("torch", "safetensors"), limits_of_both, proven="torch 2.13.0",
    ),
)  # fmt: skip
