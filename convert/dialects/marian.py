"""Marian as Hugging Face transformers saves it (versions 4 and 5; compared with 5.23), with its config.json.

Post-norm, fixed sinusoidal positions (all sines, then all cosines), a bias of the logits, embeddings shared or not.
BART, mBART and M2M-100 (bart.py, mbart.py, m2m_100.py) and the old Flax classes (flax_seq2seq.py) use its blocks and
side files. The classes without a head (MarianModel, BartModel, MBartModel) save the same tensors without the prefix
`model.`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.transformer_config import TransformerConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal, always, count, declared_fields, length, statement
from ..operations import TRANSPOSE, Constant, Operation, Order, Tie
from ..rules import Row, row, tied
from .plain_transformer import PLAIN_TRANSFORMER
from .special_ids import check_in_vocabulary, check_known

# ------------------------------------------------------------------------------------------- names

PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
PARTS = {
    "encoder": {"attention": "self_attn", "norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"},
    "decoder": {
        "self_attention": "self_attn",
        "norm1": "self_attn_layer_norm",
        "cross_attention": "encoder_attn",
        "norm2": "encoder_attn_layer_norm",
        "norm3": "final_layer_norm",
    },
}
STACKS = {"source": "encoder", "target": "decoder"}
BEFORE = {"embedding": "embed_tokens", "position": "embed_positions", "norm": "layernorm_embedding"}


def module(path: str) -> str:
    """transformers' module for one of ours: encoder.blocks.0.mlp.fc1 is model.encoder.layers.0.fc1."""
    stack, *inner = path.split(".")
    match inner:
        case ["blocks", i, "mlp", layer]:
            return f"model.{stack}.layers.{i}.{layer}"
        case ["blocks", i, part, *projection]:
            return ".".join([f"model.{stack}.layers.{i}.{PARTS[stack][part]}", *(PROJECTIONS[p] for p in projection)])
        case [name] if stack in STACKS:
            return f"model.{STACKS[stack]}.{BEFORE[name]}"
        case ["norm"]:
            return f"model.{stack}.layer_norm"
    return "lm_head"


@dataclass(frozen=True)
class Style:
    """How a framework names parameters, and the axes of its matrices; `base`: the class without a head."""

    separator: str
    leaves: Mapping[str, str]
    matrix: tuple[Operation, ...]
    base: bool = False

    def name(self, module: str, leaf: str) -> str:
        """A tensor's name, from its module and the last part of our name."""
        path = module.removeprefix("model.") if self.base else module
        return f"{path}.".replace(".", self.separator) + self.leaves[leaf]


TORCH = Style(
    ".",
    {"kernel": "weight", "scale": "weight", "bias": "bias", "embedding": "weight", "position": "weight"},
    (TRANSPOSE,),
)
BASE = replace(TORCH, base=True)


def signature(style: Style, embedding_norm: bool, final_norm: bool, bias: bool) -> tuple[str, ...]:
    """The signature of a file of one of these networks, which differ in their norms and in the bias of the logits."""

    def mark(there: bool, module: str, leaf: str) -> str:
        return ("" if there else "!") + re.escape(style.name(module, leaf))

    return (
        "final_logits_bias" if bias else "!final_logits_bias",
        *(
            mark(True, module(f"{path}.query"), "kernel")
            for path in ("encoder.blocks.0.attention", "decoder.blocks.0.cross_attention")
        ),
        mark(embedding_norm, module("source.norm"), "scale"),
        mark(final_norm, module("encoder.norm"), "scale"),
    )


# -------------------------------------------------------------------------------------------- rows

UNTIED = f"{Tie.remedy}, or state tie_word_embeddings false in its config.json if both are"  # as transformers 5 does


def rows(c: TransformerConfig, style: Style = TORCH) -> list[Row]:
    """The rows of a network. Sinusoids are optional, but in the class without a head."""
    out = []
    for name, shape in c.shapes().items():
        path, _, leaf = name.rpartition(".")
        if name == "head.bias":
            out.append(row("final_logits_bias", name, shape, Order("1 v", "v")))
        elif leaf == "embedding":
            remedy = UNTIED if c.tie == "decoder" else Tie.remedy
            out.append(tied([style.name(m, leaf) for m in tables(c, path)], name, shape, remedy))
        elif leaf == "position":
            out.append(row(style.name(module(name), leaf), name, shape))
        else:
            out.append(row(style.name(module(path), leaf), name, shape, *(style.matrix if leaf == "kernel" else ())))
    if c.position == "concatenated":
        for side in STACKS:
            name = style.name(module(f"{side}.position"), "position")
            positions = Constant(lambda: sinusoids(c.max_length, c.width))
            out.append(Row((name,), (), (), (positions,), frozenset() if style.base else frozenset({name})))
    return out


def tables(c: TransformerConfig, side: str) -> list[str]:
    """The modules that share a side's table of embeddings: the one that is written, then those that may have copies."""
    own = [module(f"{side}.embedding")]
    if c.one_embedding:
        own = ["model.shared", module("source.embedding"), *own]
    return [*own, "lm_head"] if c.tied_head and side == "target" else own


def sinusoids(length: int, width: int) -> np.ndarray:
    """Marian's positions, float32 [length, D]: all sines of t / 10000^(2i/D), then all cosines, computed in float64."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


# ------------------------------------------------------------------------------------------ fields

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "swish": "silu",
    "silu": "silu",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}
WRITTEN_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "silu": "swish",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}


def activation(value: Any) -> str:
    """Our name of an activation."""
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise UserError(
            "config.json",
            f"activation_function is {value!r}, but the networks here have {', '.join(ACTIVATIONS)}",
            "it cannot be converted",
        )
    return ACTIVATIONS[value]


def stated_activation(default: str) -> Field:
    """The activation, as config.json states it; `default` is that of the class in transformers."""
    known, encode = tuple(WRITTEN_ACTIVATIONS), WRITTEN_ACTIVATIONS.__getitem__
    return Field(known, key="activation_function", decode=activation, encode=encode, default=default)


def fields(style: Style, **special: Field) -> dict[str, Field]:
    """The fields that all these networks have in common, and `special`, those of one of them."""

    def size(name: str, leaf: str) -> Callable[[Names], Any]:
        return length(style.name(f"model.decoder.layers.0.{name}", leaf), 0)

    def depth(stack: str) -> Callable[[Names], Any]:
        pattern = style.name(f"model.{stack}.layers.N.fc1", "bias").replace(".", r"\.").replace("N", r"(\d+)")
        return lambda names: count(names, pattern) or None

    return {
        **PLAIN_TRANSFORMER,
        "width": Field(solve=size("final_layer_norm", "scale"), key="d_model"),
        "hidden": Field(solve=size("fc1", "bias"), key="encoder_ffn_dim"),
        "encoder_depth": Field(solve=depth("encoder"), key="encoder_layers"),
        "decoder_depth": Field(solve=depth("decoder"), key="decoder_layers"),
        "heads": Field(key="encoder_attention_heads", default=16),
        "activation": stated_activation("gelu"),
        "scale_embedding": Field(key="scale_embedding", default=False),
        "outputs": always(0) if style.base else Field(solve=length("final_logits_bias", 1)),
        "eps": always(1e-5),
        **special,
    }


SOURCE_TABLES, TARGET_TABLES = ("model.encoder.embed_tokens",), ("model.decoder.embed_tokens", "lm_head")


def table_rows(style: Style, side: str) -> Callable[[Names], Any]:
    """A solver: the number of rows of a side's table; of a file without it, those of one that it is tied to."""
    both = SOURCE_TABLES + TARGET_TABLES if side == "source" else TARGET_TABLES + SOURCE_TABLES
    named = [style.name(m, "embedding") for m in ("model.shared", *both)]
    return lambda names: next((names[n][0] for n in named if names.get(n)), None)


# -------------------------------------------------------------------------------------- side files

IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")  # that every config.json must have
MORE_IDS = ("bos_token_id", "forced_eos_token_id")
# Values of IDS and MORE_IDS that the classes of transformers use where no file states them.
IDS_OF: dict[str, tuple[int | None, ...]] = {
    "marian": (58100, 0, 58100, None, 0), "bart": (1, 2, 2, 0, 2), "mbart": (1, 2, None, 0, 2),
    "m2m_100": (1, 2, 2, 0, None),
}  # fmt: skip
# Settings of generation that older files have in config.json.
GENERATION = (
    *("max_length", "min_length", "num_beams", "length_penalty"),
    *("early_stopping", "no_repeat_ngram_size", "bad_words_ids"),
)
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


def _check_config(config: Json, model_type: str) -> None:
    """Raise UserError where a config.json is of other weights, or of a network that there is none of here."""
    if (found := config.get("model_type", model_type)) != model_type:
        what = f"config.json: model_type is {found!r}"
        if found in IDS_OF:
            raise UserError(
                f"{what} but the tensors have the names of {model_type!r}",
                remedy="give the config.json of these weights",
            )
        raise UserError(
            f"{what}, a class whose tensors have the names of {model_type!r} and that no layout here reads",
            remedy="it cannot be converted",
        )
    for name in ("attention_heads", "ffn_dim"):
        one, other = config.get(f"encoder_{name}"), config.get(f"decoder_{name}")
        if None not in (one, other) and one != other:
            raise UserError(
                "config.json",
                f"encoder_{name} is {one!r} but decoder_{name} is {other!r}, and both stacks of a network here have "
                "the same",
                "it cannot be converted",
            )
    if config.get("share_encoder_decoder_embeddings", True) and not config.get("tie_word_embeddings", True):
        raise UserError(
            "config.json",
            "tie_word_embeddings is false while embeddings are shared, which versions 4 and 5 of transformers read "
            "differently",
            "re-save it tied",
        )


def facts(
    layout: Layout, files: Mapping[str, Json], model_type: str, ids: Mapping[str, int | None], base: bool
) -> Facts:
    """Facts from config.json and generation_config.json."""
    if "config.json" not in files:
        return Facts()
    config = files["config.json"]
    _check_config(config, model_type)
    shared, tied = config.get("share_encoder_decoder_embeddings", True), config.get("tie_word_embeddings", True)
    fields = {"tie": _ties(shared, tied, base), **{name: config[name] for name in DROPOUTS if name in config}}
    if "dropout" in fields:
        fields["embedding_dropout"] = fields["dropout"]
    generation = files.get("generation_config.json") or {name: config[name] for name in GENERATION if name in config}
    extra = {name: config.get(name, generation.get(name, ids[name])) for name in (*IDS, *MORE_IDS)}
    _check_padding(model_type, extra)
    return Facts(
        {**declared_fields(layout, config), **fields},
        extra={**extra, **({"generation": generation} if generation else {})},
    )


def _check_padding(model_type: str, ids: Mapping[str, Any]) -> None:
    """Raise UserError where M2M-100 pads with another id than 1: its positions begin with the one after that id."""
    pad = ids["pad_token_id"]
    if model_type == "m2m_100" and pad != 1:
        raise UserError(
            "config.json",
            f"pad_token_id is {pad!r}, and its first token would have the position after that, but in the network "
            "here the first token has position 2",
            "it cannot be converted",
        )


def _ties(shared: bool, tied: bool, base: bool) -> str:
    """The config's `tie`: whether source and target share a table of embeddings, and the head is tied to one."""
    if base:
        return "embeddings" if shared else "none"
    return "all" if shared else "decoder" if tied else "none"


def files(
    layout: Layout, c: TransformerConfig, known: Facts, model_type: str, architecture: str, base: bool
) -> dict[str, Json]:
    """The files beside weights."""
    check_known(layout, (name for name in IDS if name not in known.extra))
    ids = {name: known.extra.get(name) for name in (*IDS, *MORE_IDS)}
    _check_padding(model_type, ids)
    check_in_vocabulary(ids, min(c.source_vocabulary, c.target_vocabulary))
    config = {
        "model_type": model_type,
        "architectures": [architecture],
        "is_encoder_decoder": True,
        **statement(layout, c),
        "decoder_attention_heads": c.heads,
        "decoder_ffn_dim": c.hidden,
        "vocab_size": c.source_vocabulary,
        "tie_word_embeddings": c.one_embedding or c.tied_head,
        **{name: getattr(c, name) for name in DROPOUTS},
        **ids,
    }
    if model_type == "marian":
        config |= {"decoder_vocab_size": c.target_vocabulary, "share_encoder_decoder_embeddings": c.one_embedding}
    if base:
        return {"config.json": config}
    return {"config.json": config, "generation_config.json": {**ids, **known.extra.get("generation", {})}}


def layout(
    *,
    model_type: str,
    architecture: str,
    special: Mapping[str, Field],
    norms: tuple[bool, bool],
    bias: bool = True,
    style: Style = TORCH,
    dialect: str = "",
    version: str = "",
    **more: Any,
) -> Layout:
    """The layout of one of these networks in one framework."""
    ids = dict(zip((*IDS, *MORE_IDS), IDS_OF[model_type], strict=True))
    embedding_norm, final_norm = norms
    out = Layout(
        dialect=dialect or model_type,
        version=version,
        network=TransformerConfig,
        fields=fields(style, **special),
        rows=functools.partial(rows, style=style),
        signature=signature(style, embedding_norm, final_norm, bias and not style.base),
        tokenizer=True,
        extras=IDS,
        read_side=lambda given: facts(out, given, model_type, ids, style.base),
        write_side=lambda c, known: files(out, c, known, model_type, architecture, style.base),
        **more,
    )
    return out


# ------------------------------------------------------------------------------------------ Marian


def cannot_hold(c: TransformerConfig, base: bool = False) -> list[str]:
    """Clauses for a network without ids as inputs, a head over all target words, or a longest sequence."""
    out = []
    if c.outputs != c.target_vocabulary and not base:
        out.append(f"outputs is {c.outputs}, but the layout has one for each of the {c.target_vocabulary} target words")
    for side in ("source_vocabulary", "target_vocabulary"):
        if not getattr(c, side):
            out.append(f"{side} is 0, but the layout's inputs are ids")
    return out + ([] if c.max_length else ["max_length is 0, but the layout has a longest sequence"])


def special_fields(style: Style, allowed: tuple[str, ...]) -> dict[str, Field]:
    """The fields in which Marian differs from the others."""
    shared, *own = (
        [style.name(m, "embedding") for m in modules] for modules in (("model.shared",), SOURCE_TABLES, TARGET_TABLES)
    )

    def tie(names: Names) -> str | None:
        """None where source and target have a table each: they may be copies of one."""
        one = bool({*shared} & names.keys()) or not all({*its} & names.keys() for its in own)
        return _ties(True, True, style.base) if one else None

    return {
        "norm_first": always(False),
        "final_norm": always(False),
        "position": always("concatenated"),
        "max_length": Field(
            solve=length(style.name("model.encoder.embed_positions", "position"), 0),
            key="max_position_embeddings",
            default=1024,
        ),
        "source_vocabulary": Field(solve=table_rows(style, "source")),
        "target_vocabulary": Field(solve=table_rows(style, "target")),
        "tie": Field(allowed, solve=tie, usual=_ties(False, True, style.base)),
    }


LAYOUTS = (
    layout(
        model_type="marian",
        architecture="MarianModel",
        version="base",
        title="Hugging Face Marian without its head",
        special=special_fields(BASE, ("embeddings", "none")),
        norms=(False, False),
        style=BASE,
        refusals=(Refusal("network", functools.partial(cannot_hold, base=True)),),
        proven="transformers 5.23.0",
    ),
    layout(
        model_type="marian",
        architecture="MarianMTModel",
        title="Hugging Face Marian",
        special=special_fields(TORCH, ("all", "decoder", "none")),
        norms=(False, False),
        refusals=(Refusal("network", cannot_hold),),
        proven="transformers 5.23.0",
    ),
)
