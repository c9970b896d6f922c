"""T5 and mT5 as the Flax classes of Hugging Face transformers saved them (version 4; compared with 4.55).

flax_model.msgpack, whole or in shards, with the modules of the torch files (t5.py) and matrices (in, out). T5 1.1,
Flan-T5, LM-adapted T5, ByT5 and UL2 are T5 here too. These classes divide what enters the head by sqrt(D) exactly where
the head is tied, and a file has lm_head exactly where it is not: so the tensors tell both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from vit_jax.models.transformer_config import TransformerConfig

from ..layout import Facts, Field, Json, Layout, Refusal
from ..rules import Row, row
from . import t5
from .flax_names import field_of_flax

HEAD = "lm_head/kernel"
LEAVES = {"kernel": "kernel", "scale": "weight", "table": "embedding"}


def rows(c: TransformerConfig) -> list[Row]:
    """One row for each parameter."""
    out = []
    for name, shape in c.shapes().items():
        leaf = name.rpartition(".")[2]
        theirs = f"{t5.module(c, name)}.{LEAVES[leaf]}" if leaf != "embedding" else "shared.embedding"
        out.append(row(theirs.replace(".", "/"), name, shape))
    return out


def fields(kind: t5.Class) -> dict[str, Field]:
    """The fields of a class."""
    table = {name: field_of_flax(field) for name, field in t5.fields(kind, False, (True, False)).items()}
    if not kind:
        table["tie"] = Field(("all", "embeddings"), solve=lambda names: "embeddings" if HEAD in names else "all")
        table["scale_output"] = Field((True, False), solve=lambda names: HEAD not in names)
    return table


def read_side(layout: Layout, files: Mapping[str, Json]) -> Facts:
    """As of torch's files, but for what the tensors tell."""
    facts = t5.read_side(layout, files)
    for name in ("tie", "scale_output"):
        facts.config.pop(name, None)
    return facts


def cannot_hold(c: TransformerConfig, kind: t5.Class) -> list[str]:
    """Clauses for a network that the Flax classes cannot hold."""
    out = t5.cannot_hold(c, kind, False)
    if not kind and c.scale_output != c.tied_head:
        out.append(
            f"scale_output is {c.scale_output} and the head {'is tied' if c.tied_head else 'has its own table'}, but "
            "these classes scale exactly where it is tied"
        )
    return out


def _layout(kind: t5.Class) -> Layout:
    """The layout of a class."""
    decoder = "decoder/block/0/layer/1/EncDecAttention/q/kernel"
    unclear = "a network with a tied head has the same tensors"
    out = Layout(
        dialect="flax-t5",
        version=kind,
        title=f"T5 and mT5 of transformers' old Flax classes{t5.TITLES[kind]}",
        network=TransformerConfig,
        fields=fields(kind),
        rows=rows,
        signature=(
            "encoder/block/0/layer/0/SelfAttention/q/kernel",
            "encoder/block/0/layer/1/DenseReluDense/wo/kernel",
            f"!{decoder}" if kind == "encoder" else decoder,
            *([f"!{HEAD}"] if kind else []),
        ),
        containers=("msgpack",),
        tokenizer=True,
        extras=() if kind else t5.IDS,
        in_float16=t5.IN_FLOAT16,
        refusals=(
            Refusal("network", functools.partial(cannot_hold, kind=kind)),
            *([Refusal("choice", unclear)] if kind == "base" else []),
        ),
        read_side=lambda files: read_side(out, files),
        write_side=lambda c, known: t5.write_side(out, c, known, "t5", kind),
        proven="transformers 4.55.4",
    )
    return out


LAYOUTS = (_layout("encoder"), _layout("base"), _layout(""))
