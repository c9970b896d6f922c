"""Hugging Face's ViT and DeiT: the names of its files (v4) and of its modules in memory (v5), and its folder's JSON.

A classifier has its body under `vit.` or `deit.`; ViTModel and DeiTModel alone are without that, their pooler
is our hidden layer of a head that has no classes. What a body without classes stands in may name it all the same: a
classifier without its head, and the models for masked images, whose decoder of one layer is left out. The library
writes v4 names to this day and reads both.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vit_jax.config import ViTConfig, normal, pair, parameters
from vit_jax.errors import UserError

from ..layout import PLAIN_VIT, Facts, Field, Json, Layout, Names, count, length, stated, statement
from ..rules import CARRIED, TRANSPOSE, Order, Row, carried, row
from .huggingface_images import preprocess, processor

BODIES = ("", "vit.", "deit.")
TOP = {
    "patch": "embeddings.patch_embeddings.projection", "cls_token": "embeddings.cls_token",
    "distill_token": "embeddings.distillation_token", "position": "embeddings.position_embeddings",
    "norm": "layernorm", "head_hidden": "pooler.dense",
}  # fmt: skip
NORMS = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
V4 = NORMS | {
    "attention.query": "attention.attention.query", "attention.key": "attention.attention.key", "attention.value": "attention.attention.value",
    "attention.out": "attention.output.dense", "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense",
}  # fmt: skip
V5 = NORMS | {
    "attention.query": "attention.q_proj", "attention.key": "attention.k_proj", "attention.value": "attention.v_proj",
    "attention.out": "attention.o_proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2",
}  # fmt: skip
BLOCKS = {"v4": ("encoder.layer", V4), "v5": ("layers", V5)}  # where they lie, and what is in one


def body(config: ViTConfig) -> str:
    """What stands before the names of all but the heads."""
    return named_body(config) if config.classes else ""


def named_body(config: ViTConfig) -> str:
    """The same in a class that has more than the body."""
    return "deit." if config.distill_token else "vit."


def place(config: ViTConfig, path: str, version: str = "v4") -> str:
    """Where a module or token of ours lies there."""
    if path == "head":
        return "cls_classifier" if config.distill_head else "classifier"
    if path == "distill_head":
        return "distillation_classifier"
    if block := re.fullmatch(r"blocks\.(\d+)\.(.*)", path):
        blocks, inside = BLOCKS[version]
        return f"{body(config)}{blocks}.{block[1]}.{inside[block[2]]}"
    return body(config) + TOP[path]


def rows(config: ViTConfig, version: str) -> list[Row]:
    """One row for each parameter; and for a mask token, which models for masked images have."""
    (p, q), c, d = pair(config.patch), config.channels, config.width
    out = [carried(f"{b}embeddings.mask_token", (1, 1, d)) for b in dict.fromkeys((body(config), named_body(config)))]
    for name, (shape, sort, _) in parameters(config).items():
        path, _, leaf = name.rpartition(".")
        if sort in ("token", "position"):
            out.append(
                row(
                    place(config, name, version),
                    name,
                    shape,
                    Order("1 n d", "n d") if len(shape) == 2 else Order("1 1 d", "d"),
                )
            )
            continue
        theirs = place(config, path, version)
        if name == "patch.kernel":
            out.append(row(f"{theirs}.weight", name, shape, Order("d c p q", "(p q c) d", dict(c=c, p=p, q=q))))
        elif sort == "kernel":
            out.append(row(f"{theirs}.weight", name, shape, TRANSPOSE))
        else:
            out.append(row(f"{theirs}.{'weight' if leaf == 'scale' else leaf}", name, shape))
    return (
        out
        if config.classes
        else [
            r if r.ours[0].startswith(CARRIED) else replace(r, optional=frozenset({named_body(config) + r.theirs[0]}))
            for r in out
        ]
    )


# ------------------------------------------------------------------------------------------ config

ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
POOLERS = {"tanh": "tanh", "relu": "relu", "linear": "none"}


def named(key: str, names: Mapping[str, str], default: str) -> Field:
    """A field that config.json states by a function's name; the first of several is the one to write."""

    def decode(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise UserError(
                f"config.json: {key} is {value!r}, which is none of {', '.join(names)}; this network cannot be expressed"
            )
        return names[value]

    first = {ours: theirs for theirs, ours in reversed(list(names.items()))}
    return Field(tuple(first), key=key, decode=decode, encode=first.__getitem__, default=default)


def size(value: Any) -> Any:
    """A size of ours as JSON: a number where it is square, else [height, width]."""
    rows, columns = pair(value)
    return rows if rows == columns else [rows, columns]


TABLE = PLAIN_VIT | {
    "image": Field(key="image_size", encode=size, default=224),
    "patch": Field(key="patch_size", encode=size, default=16),
    "channels": Field(key="num_channels", default=3),
    "width": Field(key="hidden_size", default=768),
    "depth": Field(key="num_hidden_layers", default=12),
    "heads": Field(key="num_attention_heads", default=12),
    "hidden": Field(key="intermediate_size", default=3072),
    "eps": Field(key="layer_norm_eps", default=1e-12),
    "activation": named("hidden_act", ACTIVATIONS, "gelu"),
    **{name: Field((True, False), key="qkv_bias", default=True) for name in ("query_bias", "key_bias", "value_bias")},
    "head_activation": named("pooler_act", POOLERS, "tanh"),
    "head_hidden": Field(), "classes": Field(), "pool": Field(("cls", "cls_distill")),
    "distill_token": Field((True, False)), "distill_head": Field((True, False)),
}  # fmt: skip


def below(name: str, solve: Callable[[str, Names], Any], otherwise: Any = None) -> Callable[[Names], Any]:
    """A solver: of the tensor so named under one of the bodies."""
    return lambda names: next((solve(b + name, names) for b in BODIES if b + name in names), otherwise)


def axis(name: str, number: int, otherwise: Any = None) -> Callable[[Names], Any]:
    """A solver: the length of an axis of the tensor so named under one of the bodies."""
    return below(name, lambda full, names: length(full, number)(names), otherwise)


def fields(version: str) -> dict[str, Field]:
    """The table of one version: what config.json states, and what shapes tell."""
    blocks, inside = BLOCKS[version]
    projection, first = "embeddings.patch_embeddings.projection.weight", f"{blocks}.0."
    solvers: dict[str, Callable[[Names], Any]] = {
        "patch": below(projection, lambda full, names: list(names[full][2:]) if len(names[full]) == 4 else None),
        "channels": axis(projection, 1),
        "width": axis(projection, 0),
        "depth": lambda names: count(names, rf"(?:vit\.|deit\.)?{re.escape(blocks)}\.(\d+)\.layernorm_before\.weight"),
        "hidden": axis(f"{first}{inside['mlp.fc1']}.weight", 0),
        **{
            f"{n}_bias": below(f"{first}{inside[f'attention.{n}']}.bias", lambda full, names: True, False)
            for n in ("query", "key", "value")
        },
        "head_hidden": axis("pooler.dense.weight", 0, 0),
        "classes": lambda names: length("classifier.weight", 0)(names) or length("cls_classifier.weight", 0, 0)(names),
        "distill_token": below(TOP["distill_token"], lambda full, names: True, False),
        "distill_head": lambda names: "distillation_classifier.weight" in names,
        "pool": lambda names: "cls_distill" if "distillation_classifier.weight" in names else "cls",
    }
    return {name: replace(f, solve=solvers.get(name)) for name, f in TABLE.items()}


def limits(config: ViTConfig) -> list[str]:
    """What one flag or one class there decides together."""
    out = []
    if len({config.query_bias, config.key_bias, config.value_bias}) > 1:
        out.append("query, key and value do not all have a bias, or all have none")
    if config.head_hidden and config.classes:
        out.append(
            f"head_hidden is {config.head_hidden} and classes {config.classes}, its pooler is followed by no head"
        )
    if config.distill_head != (config.pool == "cls_distill"):
        out.append(
            f"distill_head is {config.distill_head} and pool {config.pool!r}, the two tokens are averaged where both have a head"
        )
    return out


# -------------------------------------------------------------------------------------- side files


def read_side(files: Mapping[str, Json]) -> Facts:
    """Of config.json and preprocessor_config.json. Raises UserError where they are another network's."""
    config = files.get("config.json", {})
    if (model := config.get("model_type", "vit")) not in ("vit", "deit"):
        raise UserError(
            f"config.json: model_type is {model!r}, this is a layout of vit and deit; a network of another class cannot be read as these"
        )
    images, notes = preprocess(files["preprocessor_config.json"]) if "preprocessor_config.json" in files else (None, ())
    return Facts(stated(LAYOUTS[-1], config) if config else {}, images, class_names(config), notes=notes)


def class_names(config: Json) -> list[str] | None:
    """Those of a config.json, None where it has only numbered ones."""
    labels = config.get("id2label")
    if not isinstance(labels, dict) or sorted(labels) != sorted(map(str, range(len(labels)))):
        return None
    names = [labels[str(k)] for k in range(len(labels))]
    return None if names == [f"LABEL_{k}" for k in range(len(names))] else names


def write_side(config: ViTConfig, facts: Facts) -> dict[str, Json]:
    """config.json; and preprocessor_config.json where the library has such a preprocessing."""
    c = normal(config)
    family = "DeiT" if c.distill_token else "ViT"
    kinds = {0: "Model", 1: "ForImageClassification", 2: "ForImageClassificationWithTeacher"}
    head = kinds[bool(c.classes) + c.distill_head]
    model = {"architectures": [family + head], "model_type": family.lower(), **statement(LAYOUTS[-1], c)}
    if c.head_hidden:
        model["pooler_output_size"] = c.head_hidden
    if c.classes:
        names = (
            facts.class_names
            if facts.class_names and len(facts.class_names) == c.classes
            else [f"LABEL_{k}" for k in range(c.classes)]
        )
        model |= {
            "id2label": {str(k): name for k, name in enumerate(names)},
            "label2id": {name: k for k, name in enumerate(names)},
        }
    images = processor(facts.preprocess) if facts.preprocess else None
    return {"config.json": model} | ({"preprocessor_config.json": images} if images else {})


# ---------------------------------------------------------------------------------------- versions


def _layout(version: str, title: str) -> Layout:
    blocks = re.escape(BLOCKS[version][0])
    below = [
        r"embeddings\.patch_embeddings\.projection\.weight",
        r"embeddings\.position_embeddings",
        rf"{blocks}\.0\.layernorm_before\.weight",
    ]
    return Layout(
        "huggingface",
        version,
        title,
        ViTConfig,
        fields(version),
        functools.partial(rows, version=version),
        tuple(rf"(vit\.|deit\.)?{n}" for n in below),
        limits=limits,
        beside=(r"decoder\.0\.(weight|bias)",),
        read_side=read_side,
        write_side=write_side,
        proven="transformers 5.23.0",
    )


LAYOUTS = (
    _layout("v5", "Hugging Face ViT and DeiT, names in memory"),
    _layout("v4", "Hugging Face ViT and DeiT"),
)
