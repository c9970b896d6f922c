"""State dicts of torch.nn.Transformer and (version `encoder`) torch.nn.TransformerEncoder; compared with torch 2.13.

They map vectors to vectors and hold no embeddings, positions or head. Query, key and value are packed; both stacks of a
Transformer end in a norm. Masks come from the caller of the module: the config's `causal` says which one is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from vit_jax.models.transformer_config import TransformerConfig

from ..layout import Field, Layout, Names, Refusal, always, count, has, length
from ..operations import TRANSPOSE, Concat
from ..rules import Row, row
from .plain_transformer import PLAIN_TRANSFORMER

PARTS = (
    (r"\.blocks\.", ".layers."),
    (r"\.(self_)?attention\b", ".self_attn"),
    (r"\.cross_attention\b", ".multihead_attn"),
    (r"\.out$", ".out_proj"),
    (r"\.mlp\.fc", ".linear"),
)
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def rows(c: TransformerConfig) -> list[Row]:
    """The rows of a network."""
    out, outer = [], "" if c.decoder_depth else "encoder."  # TransformerEncoder alone has no prefix
    for name, shape in c.shapes().items():
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


def cannot_hold(c: TransformerConfig) -> list[str]:
    """Clauses for a network without an encoder, and for one with biases in its matrices only, or in its norms only."""
    out = [] if c.encoder_depth else ["encoder_depth is 0, it has an encoder"]
    same = c.bias == c.norm_bias  # one flag of the module for both
    return out if same else [*out, f"bias is {c.bias} but norm_bias is {c.norm_bias}, it has both or neither"]


def _transformer_cannot_hold(c: TransformerConfig) -> list[str]:
    """The same, and a clause for a network without a decoder."""
    return cannot_hold(c) + (
        [] if c.decoder_depth else ["decoder_depth is 0, it has a decoder (torch-transformer@encoder has none)"]
    )


def fields(encoder: str, **special: Field) -> dict[str, Field]:
    """The fields that both modules have in common (`encoder` is the prefix of the encoder), and `special` ones."""
    first = f"{encoder}layers.0."
    return {
        **PLAIN_TRANSFORMER,
        "width": Field(solve=length(f"{first}norm1.weight", 0)),
        "hidden": Field(solve=length(f"{first}linear1.weight", 0)),
        "encoder_depth": Field(solve=depth(encoder)),
        "bias": Field(solve=has(f"{first}linear1.bias")),
        "norm_bias": Field(solve=has(f"{first}norm1.bias")),
        "heads": Field(),
        "activation": Field(("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")),
        "norm_first": Field(),
        "eps": Field(),
        "position": always("none"),
        "max_length": always(0),
        **special,
    }


def depth(stack: str) -> Callable[[Names], int]:
    """A solver: the number of layers of a stack."""
    return lambda names: count(names, re.escape(stack) + r"layers\.(\d+)\.norm1\.weight")


PACKED = r"layers\.0\.self_attn\.in_proj_weight"
LAYOUTS = (
    Layout(
        dialect="torch-transformer",
        version="encoder",
        title="torch.nn.TransformerEncoder",
        network=TransformerConfig,
        fields=fields("", decoder_depth=always(0), final_norm=Field(solve=has("norm.weight")), causal=always(True)),
        rows=rows,
        signature=(PACKED, r"!layers\.0\.multihead_attn\.in_proj_weight"),
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", cannot_hold),),
        proven="torch 2.13.0",
    ),
    Layout(
        dialect="torch-transformer",
        version="",
        title="torch.nn.Transformer",
        network=TransformerConfig,
        fields=fields(
            "encoder.", decoder_depth=Field(solve=depth("decoder.")), final_norm=always(True), causal=Field()
        ),
        rows=rows,
        signature=(rf"encoder\.{PACKED}", r"encoder\.norm\.weight", rf"decoder\.{PACKED}", r"decoder\.norm\.weight"),
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", _transformer_cannot_hold),),
        proven="torch 2.13.0",
    ),
)
