"""State dicts of CaptioningTransformer, the captioner of Stanford's course CS231n (assignment 3), in two generations.

A decoder whose memory is one projected vector a picture. Both generations are post-norm with one eps and no norm after
the blocks, and name query, key, value and proj alike. That of 2021 has ReLU and torch's names (multihead_attn, linear1,
norm1), that of 2025 has GELU and names of its own (cross_attn, ffn.fc1, norm_self). The buffer `positional_encoding.pe`
holds sinusoids that each student's own code computed, which differ in their last bits: they are read as learned
positions. Of a network that computes its positions, ours are written there. The number of heads is in no tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from vit_jax.config.dotted import value_at
from vit_jax.models.captioner_config import CaptionerConfig

from ..layout import Field, Layout, Refusal, always, count, length
from ..operations import TRANSPOSE, Constant
from ..rules import Row, row
from .modules import LEAVES, TOKENS
from .plain_transformer import PLAIN_TRANSFORMER

POSITIONS, LAYERS = "positional_encoding.pe", "transformer.layers."
OUTSIDE = {"memory": "visual_projection", "head": "output"}
ATTENTION = {"query": "query", "key": "key", "value": "value", "out": "proj"}
FIRST = {
    "self_attention": "self_attn", "cross_attention": "multihead_attn", "norm1": "norm1", "norm2": "norm2",
    "norm3": "norm3", "mlp.fc1": "linear1", "mlp.fc2": "linear2",
}  # fmt: skip
SECOND = {
    "self_attention": "self_attn", "cross_attention": "cross_attn", "norm1": "norm_self", "norm2": "norm_cross",
    "norm3": "norm_ffn", "mlp.fc1": "ffn.fc1", "mlp.fc2": "ffn.fc2",
}  # fmt: skip


def rows(c: CaptionerConfig, names: Mapping[str, str]) -> list[Row]:
    """One row for each parameter, and one for the positions where they are computed."""
    out = []
    for name, shape in c.shapes().items():
        path, _, leaf = name.rpartition(".")
        if name == "target.embedding":
            out.append(row("embedding.weight", name, shape))
        elif name == "target.position":
            out.append(row(POSITIONS, name, shape, TOKENS))
        else:
            turned = (TRANSPOSE,) if leaf == "kernel" else ()
            out.append(row(f"{module(path, names)}.{LEAVES[leaf]}", name, shape, *turned))
    if c.text.position != "learned":
        positions = Constant(lambda: sinusoids(c.text.max_length, c.text.width))
        out.append(Row((POSITIONS,), (), (), (positions,)))
    return out


def module(path: str, names: Mapping[str, str]) -> str:
    """The course's module for one of ours: decoder.blocks.0.mlp.fc1 is transformer.layers.0.linear1 or .ffn.fc1."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    _, _, i, inside = path.split(".", 3)
    if inside in names:
        return f"{LAYERS}{i}.{names[inside]}"
    attention, _, part = inside.partition(".")
    return f"{LAYERS}{i}.{names[attention]}.{ATTENTION[part]}"


def sinusoids(rows: int, width: int) -> np.ndarray:
    """The positions [1, rows, D], float32, of t / 10000^(2i/D): sines in even columns and cosines in odd ones."""
    angles = np.arange(rows)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    out = np.zeros((1, rows, width), np.float32)
    out[0, :, ::2], out[0, :, 1::2] = np.sin(angles), np.cos(angles)
    return out


def fields(names: Mapping[str, str], activation: str) -> dict[str, Field]:
    """The fields of a generation. It has no ViT: that part of a config is as it is where the memory is vectors."""
    usual, hidden = CaptionerConfig(), f"{LAYERS}0.{names['mlp.fc1']}.bias"
    depth = functools.partial(count, pattern=rf"transformer\.layers\.(\d+)\.{names['norm1']}\.weight")
    return {
        "memory": always("vectors"),
        "memory_width": Field(solve=length("visual_projection.weight", 1)),
        **{name: always(value_at(usual, name)) for name in CaptionerConfig.function_fields() if name[:4] == "vit."},
        **{f"text.{name}": field for name, field in PLAIN_TRANSFORMER.items()},
        "text.width": Field(solve=length("embedding.weight", 1)),
        "text.hidden": Field(solve=length(hidden, 0)),
        "text.heads": Field(),
        "text.encoder_depth": always(0),
        "text.decoder_depth": Field(solve=lambda given: depth(given) or None),
        "text.activation": always(activation),
        "text.norm_first": always(False),
        "text.final_norm": always(False),
        "text.eps": always(1e-5),
        "text.target_vocabulary": Field(solve=length("embedding.weight", 0)),
        "text.position": Field(("learned", "interleaved"), usual="learned"),
        "text.max_length": Field(solve=length(POSITIONS, 1)),
        "text.outputs": Field(solve=length("output.weight", 0)),
    }


def cannot_hold(c: CaptionerConfig) -> list[str]:
    """Clauses for a network without ids as inputs, a head over all of them, or a longest caption."""
    text, out = c.text, []
    if not text.target_vocabulary:
        out.append("text.target_vocabulary is 0, but the layout's inputs are ids")
    elif text.outputs != text.target_vocabulary:
        out.append(
            f"text.outputs is {text.outputs}, but the layout has one for each of the {text.target_vocabulary} words"
        )
    return out + ([] if text.max_length else ["text.max_length is 0, but the layout has a longest caption"])


def layout(version: str, names: Mapping[str, str], activation: str) -> Layout:
    """The layout of a generation, by the year in which the course first handed it out."""
    first = f"{LAYERS}0.".replace(".", r"\.")
    marks = (f"{names['cross_attention']}.query.weight", f"{names['mlp.fc1']}.weight", f"{names['norm3']}.weight")
    return Layout(
        dialect="cs231n",
        version=version,
        title=f"CS231n's captioner, as handed out from {version} on",
        network=CaptionerConfig,
        fields=fields(names, activation),
        rows=functools.partial(rows, names=names),
        signature=(
            r"visual_projection\.weight", r"positional_encoding\.pe",
            *(first + mark.replace(".", r"\.") for mark in marks),
        ),
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", cannot_hold),),
    )  # fmt: skip


LAYOUTS = (layout("2021", FIRST, "relu"), layout("2025", SECOND, "gelu"))
