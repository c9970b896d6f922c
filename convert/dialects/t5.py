"""T5, mT5 and UMT5 as Hugging Face transformers saves them (versions 4 and 5; compared with 5.23), with config.json.

Raffel et al. 2020 (arXiv 1910.10683), and what descends from it under the same names: T5 1.1, Flan-T5, LM-adapted T5,
ByT5 and UL2 are T5 to config.json. RMS norms first, no biases, scores that are not scaled, and a bias of the scores by
distance: one table a stack (T5, mT5), or one in each block (UMT5). The classes without a head (T5Model) save the same
tensors, those of an encoder alone (T5EncoderModel) its part of them.

Whether the head is a table of its own shows in the tensors. What config.json states of it, tie_word_embeddings, has
meant different things: since 5.0 transformers saves true there for every T5, and scale_decoder_outputs beside it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from vit_jax.errors import UserError
from vit_jax.models.transformer_config import TransformerConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal, always, count, declared_fields, has, length, statement
from ..operations import TRANSPOSE, Tie
from ..rules import Row, row, tied
from .plain_transformer import PLAIN_TRANSFORMER
from .special_ids import check_in_vocabulary, check_known

Class = Literal["", "base", "encoder"]  # with a head, without, and the encoder alone

# ------------------------------------------------------------------------------------------- names

LAYERS = {  # {stack: {our part: its place in a block}}
    "encoder": {"attention": "0.SelfAttention", "norm1": "0.layer_norm", "mlp": "1.DenseReluDense"}
    | {"norm2": "1.layer_norm"},
    "decoder": {"self_attention": "0.SelfAttention", "norm1": "0.layer_norm", "cross_attention": "1.EncDecAttention"}
    | {"norm2": "1.layer_norm", "mlp": "2.DenseReluDense", "norm3": "2.layer_norm"},
}
LINEAR = {"query": "q", "key": "k", "value": "v", "out": "o", "fc2": "wo", "relative": "relative_attention_bias"}
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"
FIRST = "encoder.block.0.layer."


def module(c: TransformerConfig, name: str) -> str:
    """transformers' module for one of our parameters that is not an embedding."""
    match name.split("."):
        case ["head", _]:
            return "lm_head"
        case [stack, "norm", _]:
            return f"{stack}.final_layer_norm"
        case [stack, "relative", _]:
            return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        case [stack, "blocks", i, part, *inner, _]:
            of_mlp = {"fc1": "wi_1", "gate": "wi_0"} if c.gated else {"fc1": "wi"}
            return ".".join([f"{stack}.block.{i}.layer.{LAYERS[stack][part]}", *((LINEAR | of_mlp)[p] for p in inner)])
    raise AssertionError(name)


def rows(c: TransformerConfig) -> list[Row]:
    """The rows of a network; the table of relative positions is stored as ours, [buckets, heads]."""
    out = []
    for name, shape in c.shapes().items():
        if name.endswith(".embedding"):
            copies = (HEAD,) if c.tied_head else ()
            out.append(tied([*(TABLES if c.decoder_depth else TABLES[:2]), *copies], name, shape, _UNTIED))
        else:
            out.append(
                row(f"{module(c, name)}.weight", name, shape, *([TRANSPOSE] if name.endswith(".kernel") else []))
            )
    return out


_UNTIED = f"{Tie.remedy}, or give `fields tie=embeddings` if the head has a table of its own"

# ------------------------------------------------------------------------------------------ fields

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATIONS |= {"silu": "silu", "swish": "silu", "quick_gelu": "quick_gelu"}
WRITTEN = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu", "quick_gelu": "quick_gelu"}


def read_feed_forward(stated: Any) -> tuple[str, bool]:
    """(our activation, whether it is gated) by feed_forward_proj; in gated-gelu the GELU is that of tanh."""
    text = str(stated)
    gated, activation = text.startswith("gated-"), text.removeprefix("gated-")
    activation = "gelu_new" if text == "gated-gelu" else activation
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UserError(
            "config.json",
            f"feed_forward_proj is {stated!r}, but the networks here have {known}, or gated- before one of them",
            "it cannot be converted",
        )
    return ACTIVATIONS[activation], gated


def write_feed_forward(c: TransformerConfig) -> str:
    """The inverse. A gate with the GELU of erf has no word there: see `cannot_hold`."""
    return "gated-gelu" if c.gated and c.activation == "gelu_tanh" else f"{'gated-' * c.gated}{WRITTEN[c.activation]}"


def rows_of(*names: str) -> Callable[[Names], Any]:
    """A solver: the number of rows of the first of these tensors that a file has."""
    return lambda given: next((given[name][0] for name in names if given.get(name)), None)


def depth(stack: str) -> Callable[[Names], Any]:
    """A solver: the number of blocks of a stack."""
    return lambda names: count(names, rf"{stack}\.block\.(\d+)\.layer\.0\.layer_norm\.weight") or None


def fields(kind: Class, per_block: bool, scaled: tuple[bool, ...]) -> dict[str, Field]:
    """The fields of a class."""
    bias = f"{FIRST}0.SelfAttention.relative_attention_bias.weight"
    vocabulary = Field(solve=rows_of(*TABLES, HEAD))
    head = {
        "tie": Field(("all", "embeddings"), solve=lambda names: None if HEAD in names else "all", usual="embeddings"),
        "outputs": Field(solve=rows_of(HEAD, *TABLES)),
        "scale_output": Field(scaled),
    }
    return {
        **PLAIN_TRANSFORMER,
        "width": Field(solve=length(f"{FIRST}0.layer_norm.weight", 0), key="d_model"),
        "heads": Field(solve=length(bias, 1), key="num_heads"),
        "head_width": Field(follow=_head_width),
        "hidden": Field(solve=length(f"{FIRST}1.DenseReluDense.wo.weight", 1), key="d_ff"),
        "encoder_depth": Field(solve=depth("encoder"), key="num_layers"),
        "decoder_depth": always(0) if kind == "encoder" else Field(solve=depth("decoder")),
        "activation": Field(tuple(WRITTEN)),
        "gated": Field(solve=has(f"{FIRST}1.DenseReluDense.wi_0.weight")),
        "norm_kind": always("rms"),
        "bias": always(False),
        "eps": Field(key="layer_norm_epsilon", default=1e-6),
        "position": always("none"),
        "max_length": always(0),
        "scale_attention": always(False),
        "relative": always("blocks" if per_block else "shared"),
        "relative_buckets": Field(solve=length(bias, 0), key="relative_attention_num_buckets"),
        "relative_distance": Field(key="relative_attention_max_distance", default=128),
        "source_vocabulary": vocabulary,
        "target_vocabulary": always(0) if kind == "encoder" else vocabulary,
        "output_bias": always(bool(kind)),  # without a head it means nothing, and is True as by default
        "tie": always("none" if kind == "encoder" else "embeddings"),
        **({} if kind else head),
    }


def _head_width(names: Names, values: Json) -> int | None:
    """Dh, 0 where heads divide the width: by the rows of the queries' matrix."""
    inner, heads = length(f"{FIRST}0.SelfAttention.q.weight", 0)(names), values.get("heads")
    if not isinstance(inner, int) or not isinstance(heads, int) or heads < 1:
        return None
    return 0 if inner == values.get("width") else inner // heads


# -------------------------------------------------------------------------------------- side files

IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
CLASSES = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}
HEADS: dict[Class, str] = {"": "ForConditionalGeneration", "base": "Model", "encoder": "EncoderModel"}
TITLES: dict[Class, str] = {"": "", "base": " without its head", "encoder": ", the encoder alone"}
IN_FLOAT16 = "computed in float16, T5 overflows inside its mlp from T5-base on: load it in bfloat16 or float32"
# What the classes of transformers take where config.json states none.
USUAL: dict[str, dict[str, Any]] = {
    "t5": {"pad_token_id": 0, "eos_token_id": 1, "feed_forward_proj": "relu"},
    "mt5": {"pad_token_id": 0, "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0},
    "umt5": {"pad_token_id": 0, "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0},
}
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "final_dropout")


def read_side(layout: Layout, files: Mapping[str, Json]) -> Facts:
    """Facts from config.json and generation_config.json."""
    if "config.json" not in files:
        return Facts()
    config = files["config.json"]
    model = config.get("model_type", layout.dialect.removeprefix("flax-"))
    if model not in CLASSES:
        raise UserError(
            "config.json",
            f"model_type is {model!r}, but the tensors have the names of {', '.join(CLASSES)}",
            "it cannot be converted",
        )
    usual = USUAL[model]
    activation, _ = read_feed_forward(config.get("feed_forward_proj", usual["feed_forward_proj"]))
    found = {**declared_fields(layout, config), "activation": activation}
    found["relative"] = "blocks" if model == "umt5" else "shared"
    if "dropout_rate" in config:
        found |= dict.fromkeys(DROPOUTS, config["dropout_rate"])
    if layout.version == "":
        tied = config.get("tie_word_embeddings") is not False
        scaled = config.get("scale_decoder_outputs", tied)
        if model != "umt5":  # which has one value
            found["scale_output"] = model == "t5" and scaled is True
        if not tied:
            found["tie"] = "embeddings"
        elif model == "t5" and scaled is True:  # of others a head in the file is its own: a tied one is left out
            found["tie"] = "all"
    generation = files.get("generation_config.json", {})
    extra = {name: generation.get(name, config.get(name, usual.get(name))) for name in IDS}
    extra = {name: value for name, value in extra.items() if value is not None}
    return Facts(found, extra={**extra, **({"generation": generation} if generation else {})})


def write_side(layout: Layout, c: TransformerConfig, known: Facts, model: str, kind: Class) -> dict[str, Json]:
    """The files beside weights: config.json and, with a head, generation_config.json."""
    ids = {name: known.extra.get(name) for name in IDS}
    if not kind:
        check_known(layout, (name for name, value in ids.items() if value is None))
    check_in_vocabulary(ids, c.source_vocabulary)
    config = {
        "model_type": model,
        "architectures": [CLASSES[model] + HEADS[kind]],
        "is_encoder_decoder": kind != "encoder",
        **statement(layout, c),
        "d_kv": c.resolved_head_width,
        "num_decoder_layers": c.decoder_depth or c.encoder_depth,
        "feed_forward_proj": write_feed_forward(c),
        "dropout_rate": c.dropout,
        "vocab_size": c.source_vocabulary,
        "tie_word_embeddings": c.tied_head or bool(kind),
        **({"scale_decoder_outputs": c.scale_output} if model == "t5" and not kind else {}),
        **{name: value for name, value in ids.items() if value is not None},
    }
    if kind:
        return {"config.json": config}
    return {"config.json": config, "generation_config.json": {**ids, **known.extra.get("generation", {})}}


# ----------------------------------------------------------------------------------------- layouts


def cannot_hold(c: TransformerConfig, kind: Class, per_block: bool) -> list[str]:
    """Clauses for networks of vectors, of two vocabularies, of a gate that config.json cannot state, and like these."""
    out = []
    if not c.encoder_depth:
        out.append("encoder_depth is 0, it has an encoder")
    if not c.decoder_depth and kind != "encoder":
        out.append("decoder_depth is 0, it has a decoder (t5@encoder has none)")
    if per_block and max(c.encoder_depth, c.decoder_depth) < 2:
        out.append("it has one block a stack, of which the file is one of t5")
    if not c.source_vocabulary:
        out.append("source_vocabulary is 0, but the layout's inputs are ids")
    if kind == "" and c.outputs != c.target_vocabulary:
        out.append(f"outputs is {c.outputs}, but the layout has one for each of the {c.target_vocabulary} words")
    if c.gated and c.activation == "gelu":
        out.append("gated with the activation gelu, which its config.json cannot state (gated-gelu is that of tanh)")
    return out


def _other_tables(names: Names, per_block: bool) -> list[str]:
    """A clause where second blocks have tables of relative positions and should not, or the other way round."""
    second = [f"{stack}.block.1.layer.0.SelfAttention." for stack in LAYERS]
    tables = {f"{block}relative_attention_bias.weight" in names for block in second if f"{block}q.weight" in names}
    return [] if (tables or {False}) == {per_block} else ["its blocks share a table, or each has its own, unlike here"]


def _layout(model: str, kind: Class, per_block: bool, scaled: tuple[bool, ...], **more: Any) -> Layout:
    """The layout of a class: `per_block` and `scaled` as of `fields`; `more` goes to Layout."""
    decoder = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.q\.weight"
    signature = (
        re.escape(f"{FIRST}0.SelfAttention.q.weight"),
        re.escape(f"{FIRST}1.DenseReluDense.wo.weight"),
        f"!{decoder}" if kind == "encoder" else decoder,
        r"!mel_conditioner\..*",
        *([r"!lm_head\.weight"] if kind else []),
    )
    like_t5 = "T5 has tensors of the same names, and reads mT5's config.json too"
    unclear = like_t5 if model == "mt5" else "a network with a tied head has the same tensors" if kind == "base" else ""
    out = Layout(
        dialect=model,
        version=kind,
        title=f"Hugging Face {CLASSES[model]}{TITLES[kind]}",
        network=TransformerConfig,
        fields=fields(kind, per_block, scaled),
        rows=rows,
        signature=signature,
        tokenizer=True,
        extras=() if kind else IDS,
        in_float16=IN_FLOAT16,
        refusals=(
            Refusal("shapes", functools.partial(_other_tables, per_block=per_block)),
            Refusal("network", functools.partial(cannot_hold, kind=kind, per_block=per_block)),
            *([Refusal("choice", unclear)] if unclear else []),
        ),
        outside=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),  # never read
        read_side=lambda files: read_side(out, files),
        write_side=lambda c, known: write_side(out, c, known, model, kind),
        proven="transformers 5.23.0",
        **more,
    )
    return out


LAYOUTS = tuple(
    _layout(model, kind, per_block, scaled)
    for model, per_block, scaled in (
        ("mt5", False, (False,)),
        ("umt5", True, (True,)),
        ("t5", False, (True, False)),
    )
    for kind in ("encoder", "base", "")
)
