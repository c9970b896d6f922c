"""The state dict of torch.nn.Transformer: query, key and value packed; vectors in, vectors out.

It holds no embeddings, positions or head, and both stacks end in a norm. Which tokens may be seen is not the
module's but its caller's, as a mask: the config's `causal` says what he gives.
"""

from __future__ import annotations

import re

from vit_jax.config import TransformerConfig, parameters

from ..layout import Field, Layout, always, count, has, length
from ..rules import TRANSPOSE, Concat, Row, row

PARTS = (
    (r"\.blocks\.", ".layers."), (r"\.(self_)?attention\b", ".self_attn"), (r"\.cross_attention\b", ".multihead_attn"), (r"\.out$", ".out_proj"),
    (r"\.mlp\.fc", ".linear"),
)  # fmt: skip
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def rows(c: TransformerConfig) -> list[Row]:
    """A row for each tensor of the module."""
    out, shapes = [], parameters(c)
    for name, shape in shapes.items():
        path, _, leaf = name.rpartition(".")
        turned = (TRANSPOSE,) if leaf == "kernel" else ()
        attention, _, part = path.rpartition(".")
        if part == "query":
            ours = tuple(f"{attention}.{p}.{leaf}" for p in ("query", "key", "value"))
            packed = Concat(0, (c.width,) * 3)
            out.append(Row((f"{module(attention)}.in_proj_{LEAVES[leaf]}",), ours, (shape,) * 3, (packed, *turned)))
        elif part not in ("key", "value"):
            out.append(row(f"{module(path)}.{LEAVES[leaf]}", name, shape, *turned))
    return out


def module(path: str) -> str:
    """torch's module for one of ours: encoder.blocks.0.attention is encoder.layers.0.self_attn."""
    for ours, theirs in PARTS:
        path = re.sub(ours, theirs, path)
    return path


def limits(c: TransformerConfig) -> list[str]:
    """Its `bias` is that of linear maps and norms."""
    return [] if c.bias == c.norm_bias else [f"bias is {c.bias} but norm_bias is {c.norm_bias}, it has both or neither"]


FIELDS = {
    "width": Field(solve=length("encoder.layers.0.norm1.weight", 0)), "hidden": Field(solve=length("encoder.layers.0.linear1.weight", 0)),
    "encoder_depth": Field(solve=lambda names: count(names, r"encoder\.layers\.(\d+)\.norm1\.weight")),
    "decoder_depth": Field(solve=lambda names: count(names, r"decoder\.layers\.(\d+)\.norm1\.weight")),
    "bias": Field(solve=has("encoder.layers.0.linear1.bias")), "norm_bias": Field(solve=has("encoder.layers.0.norm1.bias")),
    "heads": Field(), "activation": Field(), "norm_first": Field(), "eps": Field(), "causal": Field(),
    "head_width": always(0), "final_norm": always(True), "positions": always("none"), "position_offset": always(0), "max_length": always(0),
    "source_vocabulary": always(0), "target_vocabulary": always(0), "scale_embedding": always(False), "embedding_norm": always(False),
    "tie": always("none"), "outputs": always(0), "output_bias": always(True),
}  # fmt: skip

LAYOUTS = (
    Layout(
        "torch-transformer", "", "torch.nn.Transformer", TransformerConfig, FIELDS, rows,
        tuple(rf"{stack}\.{name}" for stack in ("encoder", "decoder") for name in (r"layers\.0\.self_attn\.in_proj_weight", r"norm\.weight")),
        ("torch", "safetensors"), limits, proven="torch 2.13.0",
    ),
)  # fmt: skip
