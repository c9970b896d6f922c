"""State dicts of the from-scratch encoder-decoder in the teaching notebooks, which takes vectors and scores D classes.

Each head has Linears of its own. Post-norm, ReLU, no masks, no norms after the stacks; a head is D // H wide, so all
heads together may be narrower than D. Positions are sin(t) and cos(t) in turn and are not stored. The notebook's
forward pass ends in a softmax; our network ends before it.
"""

from __future__ import annotations

import re

from vit_jax.models.transformer_config import TransformerConfig

from ..layout import Field, Layout, Names, Refusal, always, count, length
from ..operations import TRANSPOSE, Concat, Reversed
from ..rules import Row, row
from .plain_transformer import PLAIN_TRANSFORMER

LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
# The modules of a block: each attention and the mlp is inside a residual module that adds and norms.
PARTS = {
    "encoder": {"attention": "attention.sublayer", "norm1": "attention.norm", "norm2": "feed_forward.norm"},
    "decoder": {
        "self_attention": "attention_1.sublayer",
        "norm1": "attention_1.norm",
        "cross_attention": "attention_2.sublayer",
        "norm2": "attention_2.norm",
        "norm3": "feed_forward.norm",
    },
}
INNER = {"query": "q", "key": "k", "value": "v", "out": "linear", "fc1": "0", "fc2": "2"}


def rows(c: TransformerConfig) -> list[Row]:
    """One row for each parameter; query, key and value have one tensor for each head."""
    out = []
    for name, shape in c.shapes().items():
        path, _, leaf = name.rpartition(".")
        turned = (TRANSPOSE,) if leaf == "kernel" else ()
        if path.endswith((".query", ".key", ".value")):
            attention, _, part = module(path).rpartition(".")
            heads = tuple(f"{attention}.heads.{h}.{part}.{LEAVES[leaf]}" for h in range(c.heads))
            out.append(
                Row(heads, (name,), (shape,), (Reversed(Concat(0, (c.resolved_head_width,) * c.heads)), *turned))
            )
        else:
            out.append(row(f"{module(path)}.{LEAVES[leaf]}", name, shape, *turned))
    return out


def module(path: str) -> str:
    """The notebook's module for one of ours: encoder.blocks.0.mlp.fc1 is encoder.layers.0.feed_forward.sublayer.0."""
    if path == "head":
        return "decoder.linear"
    stack, _, i, part, *inner = path.split(".")
    part = "feed_forward.sublayer" if part == "mlp" else PARTS[stack][part]
    return ".".join([f"{stack}.layers.{i}.{part}", *(INNER[name] for name in inner)])


def heads(names: Names) -> int:
    """A solver: the number of heads."""
    return count(names, r"encoder\.layers\.0\.attention\.sublayer\.heads\.(\d+)\.q\.weight")


FIRST = "encoder.layers.0."
FIELDS = {
    **PLAIN_TRANSFORMER,
    "width": Field(solve=length(f"{FIRST}attention.norm.weight", 0)),
    "hidden": Field(solve=length(f"{FIRST}feed_forward.sublayer.0.bias", 0)),
    "heads": Field(solve=heads),
    "head_width": Field(solve=length(f"{FIRST}attention.sublayer.heads.0.q.bias", 0)),
    "encoder_depth": Field(solve=lambda names: count(names, r"encoder\.layers\.(\d+)\.feed_forward\.norm\.weight")),
    "decoder_depth": Field(solve=lambda names: count(names, r"decoder\.layers\.(\d+)\.feed_forward\.norm\.weight")),
    "outputs": Field(solve=length("decoder.linear.bias", 0)),
    "activation": always("relu"),
    "eps": always(1e-5),
    "norm_first": always(False),
    "final_norm": always(False),
    "causal": always(False),
    "position": always("one_frequency"),
    "max_length": always(0),
}


def cannot_hold(c: TransformerConfig) -> list[str]:
    """Clauses for a network without an encoder, and for one without as many outputs as a token is wide."""
    out = [] if c.encoder_depth else ["encoder_depth is 0, the layout has an encoder"]
    return out if c.outputs == c.width else [*out, f"outputs is {c.outputs}, but the layout has width many, {c.width}"]


LAYOUTS = (
    Layout(
        dialect="notebook-transformer",
        version="",
        title="the notebooks' encoder-decoder, without the softmax at its end",
        network=TransformerConfig,
        fields=FIELDS,
        rows=rows,
        signature=tuple(
            re.escape(f"{stack}.layers.0.{part}.sublayer.heads.0.q.weight")
            for stack, part in (("encoder", "attention"), ("decoder", "attention_2"))
        ),
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", cannot_hold),),
    ),
)
