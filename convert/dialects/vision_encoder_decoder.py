"""Captioners as Hugging Face transformers saves VisionEncoderDecoder models of ViT or DeiT and GPT-2.

The encoder's names are those of huggingface.py (version 4, which version 5 still writes) after `encoder.`, the
decoder's those of GPT-2 with cross-attention after `decoder.`. GPT-2 stores its matrices (in, out), packs query, key
and value, and ties its head to the embedding. Where the widths differ, `enc_to_dec_proj` projects the memory. The
encoder's pooler, which nothing reads, is carried along.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.captioner_config import HEADLESS, CaptionerConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal, always, count, declared_fields, length, statement
from ..operations import TRANSPOSE, Concat
from ..rules import CARRIED, Row, passthrough, row, tied
from . import huggingface
from .huggingface import by_function_name, whole_images
from .huggingface_images import preprocess, processor
from .plain_transformer import PLAIN_TRANSFORMER

ENCODER, DECODER = "encoder.", "decoder.transformer."
TABLES = (f"{DECODER}wte.weight", "decoder.lm_head.weight")
MODULES = {
    "norm1": "ln_1",
    "norm2": "ln_cross_attn",
    "norm3": "ln_2",
    "self_attention.out": "attn.c_proj",
    "cross_attention.query": "crossattention.q_attn",
    "cross_attention.out": "crossattention.c_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
# {the first of the modules that one tensor holds: (the others, that tensor's module)}
PACKED = {
    "self_attention.query": (("key", "value"), "attn.c_attn"),
    "cross_attention.key": (("value",), "crossattention.c_attn"),
}
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def rows(c: CaptionerConfig, version: str = "v4") -> list[Row]:
    """One row for each tensor of a file, in the order of our parameters; "v5" gives the names of modules in memory."""
    assert c.encoder is not None
    out = []
    for r in huggingface.rows(c.encoder, version):
        if not r.ours[0].startswith(CARRIED):
            theirs = tuple(f"{ENCODER}{name}" for name in r.theirs)
            out.append(replace(r, theirs=theirs, ours=(f"vit.{r.ours[0]}",), optional=frozenset()))
    d = c.vit.width
    out += [passthrough(f"{ENCODER}pooler.dense.{leaf}", shape) for leaf, shape in (("weight", (d, d)), ("bias", (d,)))]
    for name, (shape, *_) in c.parameters().items():
        if not name.startswith("vit.") and (made := _row(name, shape)):
            out.append(made)
    return out


def _row(name: str, shape: tuple[int, ...]) -> Row | None:
    """The row of a parameter of the decoder; None where that of an earlier one has it too."""
    path, _, leaf = name.rpartition(".")
    if name == "target.embedding":
        return tied(TABLES, name, shape)
    if name == "target.position":
        return row(f"{DECODER}wpe.weight", name, shape)
    if path == "memory":
        turned = (TRANSPOSE,) if leaf == "kernel" else ()
        return row(f"enc_to_dec_proj.{LEAVES[leaf]}", name, shape, *turned)
    if path == "decoder.norm":
        return row(f"{DECODER}ln_f.{LEAVES[leaf]}", name, shape)
    block = re.fullmatch(r"decoder\.blocks\.(\d+)\.(.+)", path)
    assert block is not None, name
    inside, place = block[2], f"{DECODER}h.{block[1]}."
    if inside in MODULES:
        return row(f"{place}{MODULES[inside]}.{LEAVES[leaf]}", name, shape)
    if inside not in PACKED:
        return None
    others, module = PACKED[inside]
    attention = path.rpartition(".")[0]
    ours = (name, *(f"{attention}.{other}.{leaf}" for other in others))
    packed = Concat(len(shape) - 1, (shape[-1],) * len(ours))
    return Row((f"{place}{module}.{LEAVES[leaf]}",), ours, (shape,) * len(ours), (packed,))


# ------------------------------------------------------------------------------------------ config

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}


def _of_encoder(names: Names) -> Names:
    return {name.removeprefix(ENCODER): shape for name, shape in names.items() if name.startswith(ENCODER)}


def _field_of_vit(field: Field) -> Field:
    """A field of the ViT's own layout, in this one."""
    solve: Callable[[Names], Any] | None = field.solve
    solved = None if solve is None else lambda names: solve(_of_encoder(names))
    return replace(field, solve=solved, key=f"encoder.{field.key}" if field.key else "")


def _of_table(axis: int) -> Callable[[Names], Any]:
    """A solver: the length of an axis of the table of embeddings, under either of its names."""
    return lambda names: next((length(name, axis)(names) for name in TABLES if name in names), None)


FIRST = f"{DECODER}h.0."
TEXT = {
    **PLAIN_TRANSFORMER,
    "width": Field(solve=_of_table(1), key="decoder.n_embd", default=768),
    "hidden": Field(solve=length(f"{FIRST}mlp.c_fc.weight", 1)),
    "encoder_depth": always(0),
    "decoder_depth": Field(
        solve=lambda names: count(names, re.escape(DECODER) + r"h\.(\d+)\.ln_1\.weight") or None, key="decoder.n_layer"
    ),
    "heads": Field(key="decoder.n_head", default=12),
    "activation": by_function_name("decoder.activation_function", ACTIVATIONS, "gelu_new"),
    "eps": Field(key="decoder.layer_norm_epsilon", default=1e-5),
    "target_vocabulary": Field(solve=_of_table(0), key="decoder.vocab_size"),
    "outputs": Field(solve=_of_table(0)),
    "position": always("learned"),
    "max_length": Field(solve=length(f"{DECODER}wpe.weight", 0), key="decoder.n_positions"),
    "tie": always("decoder"),
    "output_bias": always(False),
}
FIELDS = {
    **{f"vit.{name}": _field_of_vit(field) for name, field in huggingface.fields("v4").items() if name not in HEADLESS},
    **{f"text.{name}": field for name, field in TEXT.items()},
    "memory": always("tokens"),
    "memory_width": always(512),
}


def cannot_hold(c: CaptionerConfig) -> list[str]:
    """Clauses for a network that no pair of classes of transformers with one flag for several fields can hold."""
    return [] if c.encoder is None else [f"vit: {clause}" for clause in huggingface.cannot_hold(c.encoder)]


# -------------------------------------------------------------------------------------- side files

GENERATION = "generation_config.json"
# Settings of generation that older folders have in config.json; the ids are read apart.
OLD = ("max_length", "min_length", "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size")
USUAL_LENGTH, USUAL_POSITIONS = 20, 1024  # of transformers: tokens of a search, n_positions of GPT-2
IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id", "bos_token_id")
# Settings of GPT-2 that change its function, with the value at which they do not.
PLAIN = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from config.json, preprocessor_config.json and generation_config.json."""
    config = files.get("config.json", {})
    for part, known in (("", ("vision-encoder-decoder",)), ("encoder", ("vit", "deit")), ("decoder", ("gpt2",))):
        inner = config.get(part, {}) if part else config
        if not isinstance(inner, dict) or inner.get("model_type", known[0]) not in known:
            found = inner.get("model_type") if isinstance(inner, dict) else inner
            of_part = f" of its {part}" if part else ""
            raise UserError(
                "config.json",
                f"model_type{of_part} is {found!r}, but this layout is of {' and '.join(known)}",
                "it cannot be converted",
            )
    decoder = config.get("decoder", {})
    for name, value in PLAIN.items():
        if decoder.get(name, value) != value:
            raise UserError(
                "config.json", f"{name} is {decoder[name]!r}, which no network here has", "it cannot be converted"
            )
    images, notes = preprocess(files)
    generation = files.get(GENERATION, {})
    ids = {name: generation.get(name, config.get(name, decoder.get(name))) for name in IDS}
    extra = {name: value for name, value in ids.items() if value is not None}
    extra |= {"generation": _search_settings(config, generation)} if files.keys() & {"config.json", GENERATION} else {}
    return Facts(declared_fields(LAYOUTS[0], config) if config else {}, images, extra=extra, notes=notes)


def _search_settings(config: Json, generation: Json) -> Json:
    """The settings of the search that `generate` of transformers makes where nothing else is asked for."""
    old = {name: config[name] for name in OLD if name in config}
    found = old | {name: value for name, value in generation.items() if value is not None}
    if not found.keys() & {"max_length", "max_new_tokens"}:
        positions = config.get("decoder", {}).get("n_positions", USUAL_POSITIONS)
        found["max_new_tokens"] = min(USUAL_LENGTH, positions) if isinstance(positions, int) else USUAL_LENGTH
    return found


def write_side(c: CaptionerConfig, facts: Facts) -> dict[str, Json]:
    """config.json, generation_config.json, and preprocessor_config.json where transformers has such a preprocessing."""
    family = "deit" if c.vit.distill_token else "vit"
    both = statement(LAYOUTS[0], replace(c, vit=whole_images(c.vit, facts)))
    encoder = {"model_type": family, "architectures": [f"{'DeiT' if family == 'deit' else 'ViT'}Model"]}
    decoder = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "is_decoder": True,
        "add_cross_attention": True,
        "n_inner": c.text.hidden,
        "tie_word_embeddings": True,
    }
    ids = {name: facts.extra[name] for name in IDS if name in facts.extra}
    config = {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,
        "encoder": encoder | both["encoder"],
        "decoder": decoder | both["decoder"],
        **ids,
    }
    images = processor(facts.preprocess) if facts.preprocess else None
    generation = ids | facts.extra.get("generation", {})
    files = {"config.json": config} | ({GENERATION: generation} if generation else {})
    return files | ({"preprocessor_config.json": images} if images else {})


LAYOUTS = (
    Layout(
        dialect="vision-encoder-decoder",
        version="",
        title="Hugging Face VisionEncoderDecoder of ViT and GPT-2",
        network=CaptionerConfig,
        fields=FIELDS,
        rows=rows,
        in_memory=functools.partial(rows, version="v5"),
        signature=(
            r"encoder\.embeddings\.patch_embeddings\.projection\.weight",
            r"encoder\.encoder\.layer\.0\.layernorm_before\.weight",
            r"decoder\.transformer\.h\.0\.crossattention\.q_attn\.weight",
        ),
        refusals=(Refusal("network", cannot_hold),),
        outside=(
            r"decoder\.transformer\.h\.\d+\.(attn|crossattention)\.(masked_)?bias",  # masks, of older versions
            r"encoder\.embeddings\.mask_token",
        ),
        tokenizer=True,
        read_side=read_side,
        covers=True,
        write_side=write_side,
        proven="transformers 5.23.0",
    ),
)
