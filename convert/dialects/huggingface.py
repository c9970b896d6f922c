"""ViT and DeiT as Hugging Face transformers saves them, with config.json and preprocessor_config.json.

Files have the names of version 4 (layout `v4`), which version 5 still writes; modules in memory have those of version 5
(`v5`, for state dicts). Classifiers have their body under `vit.` or `deit.`, ViTModel and DeiTModel without a prefix;
their pooler is a hidden layer of the head without classes here. Either may have the other's names, too (version 5
writes blocks of ViTMSN's classifier without the prefix). A body without classes has the prefix
as part of a classifier without its head, or of a model for masked images (ViTMAE, too), whose decoder is left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from vit_jax.config.fields import pair
from vit_jax.config.outputs import Outputs
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal, count, declared_fields, length, statement, whole_size
from ..operations import TRANSPOSE, Order
from ..rules import CARRIED, Row, passthrough, row
from .huggingface_images import preprocess, processor
from .plain_vit import PLAIN_VIT

BODIES = ("", "vit.", "deit.")
CLASSIFIER = {"architectures": ["ViTForImageClassification"], "model_type": "vit"}  # the plain one in config.json
PROBLEMS = {  # {kind of outputs: problem_type in config.json}
    "class": "single_label_classification",
    "set": "multi_label_classification",
    "number": "regression",
}
TOP = {
    "patch": "embeddings.patch_embeddings.projection",
    "cls_token": "embeddings.cls_token",
    "distill_token": "embeddings.distillation_token",
    "position": "embeddings.position_embeddings",
    "norm": "layernorm",
    "head_hidden": "pooler.dense",
}
NORMS = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
V4 = NORMS | {
    "attention.query": "attention.attention.query",
    "attention.key": "attention.attention.key",
    "attention.value": "attention.attention.value",
    "attention.out": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
V5 = NORMS | {
    "attention.query": "attention.q_proj",
    "attention.key": "attention.k_proj",
    "attention.value": "attention.v_proj",
    "attention.out": "attention.o_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
BLOCKS = {"v4": ("encoder.layer", V4), "v5": ("layers", V5)}  # the prefix of blocks, and the modules of a block


def body(config: ViTConfig) -> str:
    """The prefix of all names but those of heads."""
    return _named_body(config) if config.classes else ""


def _named_body(config: ViTConfig) -> str:
    """The prefix in classes that have more than the body."""
    return "deit." if config.distill_token else "vit."


def their_name(config: ViTConfig, path: str, version: str = "v4") -> str:
    """The file's name of one of our modules or tokens."""
    if path == "head":
        return "cls_classifier" if config.distill_head else "classifier"
    if path == "distill_head":
        return "distillation_classifier"
    if block := re.fullmatch(r"blocks\.(\d+)\.(.*)", path):
        blocks, inside = BLOCKS[version]
        return f"{body(config)}{blocks}.{block[1]}.{inside[block[2]]}"
    return body(config) + TOP[path]


def rows(config: ViTConfig, version: str) -> list[Row]:
    """One row for each parameter; and rows of a mask token, which models for masked images have."""
    (p, q), c, d = pair(config.patch), config.channels, config.width
    out = [
        passthrough(f"{b}embeddings.mask_token", (1, 1, d)) for b in dict.fromkeys((body(config), _named_body(config)))
    ]
    for name, (shape, kind, *_) in config.parameters().items():
        path, _, leaf = name.rpartition(".")
        if kind in ("token", "position"):
            out.append(
                row(
                    their_name(config, name, version),
                    name,
                    shape,
                    Order("1 n d", "n d") if len(shape) == 2 else Order("1 1 d", "d"),
                )
            )
            continue
        theirs = their_name(config, path, version)
        if name == "patch.kernel":
            out.append(row(f"{theirs}.weight", name, shape, Order("d c p q", "(p q c) d", dict(c=c, p=p, q=q))))
        elif kind == "kernel":
            out.append(row(f"{theirs}.weight", name, shape, TRANSPOSE))
        else:
            out.append(row(f"{theirs}.{'weight' if leaf == 'scale' else leaf}", name, shape))
    own, other = (body(config), "") if config.classes else ("", _named_body(config))
    return [
        replace(r, optional=frozenset({other + r.theirs[0].removeprefix(own)}))
        if r.theirs[0].startswith(own) and not r.ours[0].startswith(CARRIED)
        else r
        for r in out
    ]


# ------------------------------------------------------------------------------------------ config

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
POOLERS = {"tanh": "tanh", "relu": "relu", "linear": "none"}


def by_function_name(key: str, names: Mapping[str, str], default: str) -> Field:
    """A field that config.json states by a function's name, {name: our value}; it writes the first of several names."""

    def decode(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise UserError(
                "config.json", f"{key} is {value!r}, which is none of {', '.join(names)}", "it cannot be converted"
            )
        return names[value]

    first = {ours: theirs for theirs, ours in reversed(list(names.items()))}
    return Field(tuple(first), key=key, decode=decode, encode=first.__getitem__, default=default)


def size(value: Any) -> Any:
    """A size for config.json: a number where it is square, else [height, width]."""
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
    "activation": by_function_name("hidden_act", ACTIVATIONS, "gelu"),
    **{name: Field((True, False), key="qkv_bias", default=True) for name in ("query_bias", "key_bias", "value_bias")},
    "head_activation": by_function_name("pooler_act", POOLERS, "tanh"),
    "head_hidden": Field(),
    "classes": Field(),
    "pool": Field(("cls", "cls_distill")),
    "distill_token": Field((True, False)),
    "distill_head": Field((True, False)),
}


def below(name: str, solve: Callable[[str, Names], Any], otherwise: Any = None) -> Callable[[Names], Any]:
    """A solver for a tensor that may have any of the prefixes of BODIES."""
    return lambda names: next((solve(b + name, names) for b in BODIES if b + name in names), otherwise)


def axis(name: str, number: int, otherwise: Any = None) -> Callable[[Names], Any]:
    """A solver: the length of an axis of a tensor that may have any of the prefixes of BODIES."""
    return below(name, lambda full, names: length(full, number)(names), otherwise)


def fields(version: str) -> dict[str, Field]:
    """Where config fields come from in one version: config.json, and shapes."""
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


def cannot_hold(config: ViTConfig) -> list[str]:
    """Clauses for a network that no class of transformers with one flag for several fields can hold."""
    out = []
    if len({config.query_bias, config.key_bias, config.value_bias}) > 1:
        out.append("only some of query, key and value have a bias, but qkv_bias is one flag for all three")
    if config.head_hidden and config.classes:
        out.append(f"head_hidden is {config.head_hidden} and classes {config.classes}, but no head follows its pooler")
    if config.distill_head != (config.pool == "cls_distill"):
        out.append(
            f"distill_head is {config.distill_head} and pool {config.pool!r}, but two tokens are averaged exactly "
            "where both have a head"
        )
    return out


# -------------------------------------------------------------------------------------- side files

# {model_type: defaults of its config that are not ViT's}. MSN's network is a ViT, and so is MAE's encoder.
FAMILIES: dict[str, Json] = {"vit": {}, "deit": {}, "vit_msn": {"layer_norm_eps": 1e-6}, "vit_mae": {}}


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from config.json and preprocessor_config.json."""
    config = files.get("config.json", {})
    if config.get("model_type") == "vision-encoder-decoder" and isinstance(config.get("encoder"), dict):
        config = config["encoder"]
    if (model := config.get("model_type", "vit")) not in FAMILIES:
        raise other_class(model, FAMILIES)
    config = {**FAMILIES[model], **config}
    images, notes = preprocess(files)
    return Facts(declared_fields(LAYOUTS[-1], config) if config else {}, images, outputs(config), notes=notes)


def other_class(model: Any, known: Collection[str]) -> UserError:
    """The error where config.json is of another class than the tensors."""
    return UserError(
        "config.json",
        f"model_type is {model!r:.60}, but the tensors have the names of {' and '.join(known)}",
        "if it is not of these weights, give theirs; a network of that class is not converted",
    )


def whole_images(c: ViTConfig, facts: Facts) -> ViTConfig:
    """A config as config.json states it: for images that patches may not cover."""
    return replace(c, image=whole_size(c.image, c.patch, facts))


def outputs(config: Json) -> Outputs:
    """What a config.json states of a classifier's outputs. Their kind, empty where it states none; names only where
    they are more than numbers (LABEL_0).
    """
    word, labels = config.get("problem_type"), config.get("id2label")
    kind = next((kind for kind, each in PROBLEMS.items() if each == word), "")
    if word is not None and not kind:
        known = f"none of {', '.join(PROBLEMS.values())}"
        raise UserError("config.json", f"problem_type is {word!r}, which is {known}", "correct it, or remove it")
    if not isinstance(labels, dict) or sorted(labels) != sorted(map(str, range(len(labels)))):
        return Outputs(kind)
    names = tuple(labels[str(k)] for k in range(len(labels)))
    return Outputs(kind, () if names == numbered(len(names)) else names)


def numbered(count: int) -> tuple[str, ...]:
    """The names that transformers gives labels without names."""
    return tuple(f"LABEL_{k}" for k in range(count))


def labels(c: ViTConfig, facts: Facts) -> Json:
    """What config.json has of a classifier's outputs: their kind and their names; nothing without a head."""
    if not c.classes:
        return {}
    known, kind = facts.outputs.names, facts.outputs.kind
    names = known if len(known) == c.classes else numbered(c.classes)
    stated = {"problem_type": PROBLEMS[kind]} if kind in PROBLEMS else {}
    ids = {"id2label": {str(k): name for k, name in enumerate(names)}}
    return ids | {"label2id": {name: k for k, name in enumerate(names)}} | stated


def write_side(config: ViTConfig, facts: Facts) -> dict[str, Json]:
    """config.json, and preprocessor_config.json where transformers has such a preprocessing."""
    c = whole_images(config.normal(), facts)
    family = "DeiT" if c.distill_token else "ViT"
    kinds = {0: "Model", 1: "ForImageClassification", 2: "ForImageClassificationWithTeacher"}
    head = kinds[bool(c.classes) + c.distill_head]
    model = {"architectures": [family + head], "model_type": family.lower(), **statement(LAYOUTS[-1], c)}
    if c.head_hidden:
        model["pooler_output_size"] = c.head_hidden
    model |= labels(c, facts)
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
        dialect="huggingface",
        version=version,
        title=title,
        network=ViTConfig,
        fields=fields(version),
        rows=functools.partial(rows, version=version),
        signature=tuple(rf"(vit\.|deit\.)?{n}" for n in below),
        refusals=(Refusal("network", cannot_hold),),
        outside=(r"decoder\..*",),
        read_side=read_side,
        covers=True,
        write_side=write_side,
        outputs=lambda c: PROBLEMS,
        proven="transformers 5.23.0",
    )


LAYOUTS = (
    _layout("v5", "Hugging Face ViT and DeiT, names in memory"),
    _layout("v4", "Hugging Face ViT and DeiT"),
)
