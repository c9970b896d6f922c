"""DINOv2 with and without registers as Hugging Face transformers saves it: Dinov2Model, Dinov2ForImageClassification,
Dinov2WithRegistersModel and Dinov2WithRegistersForImageClassification, with config.json and preprocessor_config.json.

Files have the names of version 4 (layout `v4`), which version 5 still writes; modules in memory have those of version 5
(`v5`, for state dicts). The classifier reads the class token joined with the mean of the patches. config.json states
the width of the mlp as a ratio. The class resizes its positions in every call on an image of another size.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from vit_jax.config.fields import pair
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal, always, count, length
from ..rules import Row, passthrough
from . import huggingface_encoders as encoders
from .huggingface import ACTIVATIONS, PROBLEMS, by_function_name, size
from .modules import TOKEN, TOKENS, Tensors, module_rows
from .plain_vit import PLAIN_VIT

PLAIN, REGISTERS = "dinov2", "dinov2_with_registers"  # values of model_type
BODIES = ("", f"{PLAIN}.", f"{REGISTERS}.")
BLOCK = {
    "norm1": "norm1.",
    "norm2": "norm2.",
    "mlp.fc1": "mlp.fc1.",
    "mlp.fc2": "mlp.fc2.",
}
V4 = BLOCK | {
    "attention.query": "attention.attention.query.",
    "attention.key": "attention.attention.key.",
    "attention.value": "attention.attention.value.",
    "attention.out": "attention.output.dense.",
}
V5 = BLOCK | {
    "attention.query": "attention.q_proj.",
    "attention.key": "attention.k_proj.",
    "attention.value": "attention.v_proj.",
    "attention.out": "attention.o_proj.",
}
GATED = {
    "v4": {"mlp.gate": "mlp.weights_in.", "mlp.fc2": "mlp.weights_out."},  # the gate packed with the first layer
    "v5": {"mlp.gate": "mlp.gate_proj.", "mlp.fc1": "mlp.up_proj.", "mlp.fc2": "mlp.down_proj."},
}
MODULES = {"v4": V4, "v5": V5}


def rows(c: ViTConfig, version: str) -> list[Row]:
    """One row for each tensor; and one of the mask token, which only training needs."""
    named = f"{REGISTERS if c.registers else PLAIN}."
    body = named if c.classes else ""
    modules = {"patch": f"{body}embeddings.patch_embeddings.projection.", "norm": f"{body}layernorm."}
    modules |= {"head": "classifier."}
    inside = MODULES[version] | (GATED[version] if c.gated else {})
    tensors: Tensors = {
        "cls_token": (f"{body}embeddings.cls_token", TOKEN),
        "register_tokens": (f"{body}embeddings.register_tokens", TOKENS),
        "position": (f"{body}embeddings.position_embeddings", TOKENS),
    }
    packed = []
    for i in range(c.depth):
        ours, theirs = f"blocks.{i}.", f"{body}encoder.layer.{i}."
        modules |= {ours + module: theirs + name for module, name in inside.items()}
        tensors |= {f"{ours}scale{n}": (f"{theirs}layer_scale{n}.lambda1", None) for n in (1, 2)}
        packed += [(f"{ours}mlp.gate", f"{ours}mlp.fc1")] if c.gated and version == "v4" else []
    made = module_rows(c, modules, packed, tensors)
    masks = [passthrough(f"{b}embeddings.mask_token", (1, c.width)) for b in dict.fromkeys((body, named))]
    return [*masks, *(made if c.classes else encoders.either(made, ("", named)))]


# ------------------------------------------------------------------------------------------ config


def _gated_width(width: int, ratio: int) -> int:
    """The hidden width of the gated mlp: two thirds of the plain one's, rounded up to a multiple of 8."""
    return (int(width * ratio * 2 / 3) + 7) // 8 * 8


def ratio(c: ViTConfig) -> int | None:
    """The whole number that states the hidden width of the mlp in config.json; None where there is none."""
    if not c.gated:
        return c.hidden // c.width if c.hidden % c.width == 0 else None
    near = 3 * c.hidden // (2 * c.width)
    return next((r for r in range(max(1, near - 8), near + 2) if _gated_width(c.width, r) == c.hidden), None)


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that no class of DINOv2 computes."""
    h, w = pair(c.image)
    reasons = {
        f"image is {h}x{w}, but the class resizes its positions for every image that is not square": h != w,
        "only some of query, key and value have a bias, but qkv_bias is one flag for all three": (
            len({c.query_bias, c.key_bias, c.value_bias}) > 1
        ),
        f"activation is {c.activation!r}, but the gated mlp has 'silu'": c.gated and c.activation != "silu",
        "pool is 'cls', but the classifier reads class token and mean of the patches (pool 'cls_mean')": (
            bool(c.classes) and c.pool == "cls"
        ),
        "pool is 'cls_mean', but without classes the feature is the class token (pool 'cls')": (
            not c.classes and c.pool == "cls_mean"
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


def cannot_state(c: ViTConfig) -> list[str]:
    """A clause for an mlp whose width config.json cannot state."""
    what = "two thirds of a whole multiple, rounded up to 8" if c.gated else "a whole multiple"
    return [] if ratio(c) else [f"hidden is {c.hidden}, which config.json states as {what} of width, {c.width}"]


def resizes(c: ViTConfig) -> str:
    """The kernel by which the class resizes its positions in every call: the one with registers reduces aliasing."""
    return "timm" if c.registers else "hf"


FIRST = "encoder.layer.0."
IN_FILES = {"v4": ("attention.attention.query", "mlp.weights_in"), "v5": ("attention.q_proj", "mlp.gate_proj")}


def fields(version: str) -> dict[str, Field]:
    """Where config fields come from in one version: config.json, and shapes."""
    projection = "embeddings.patch_embeddings.projection.weight"
    query, gate = IN_FILES[version]
    is_gated = encoders.there(BODIES, f"{FIRST}{gate}.weight")
    biases = {
        name: Field(
            (True, False), key="qkv_bias", default=True, solve=encoders.there(BODIES, f"{FIRST}{query}.bias")
        )
        for name in ("query_bias", "key_bias", "value_bias")
    }  # fmt: skip
    hidden = tuple(f"{FIRST}mlp.{module}.weight" for module in ("fc2", "weights_out", "down_proj"))
    return PLAIN_VIT | biases | {
        "image": Field(key="image_size", encode=size, default=224),
        "patch": Field(key="patch_size", encode=size, solve=encoders.kernel(BODIES, projection)),
        "channels": Field(key="num_channels", default=3, solve=encoders.axis(BODIES, 1, projection)),
        "width": Field(key="hidden_size", default=768, solve=encoders.axis(BODIES, 0, projection)),
        "depth": Field(key="num_hidden_layers", default=12, solve=depth),
        "heads": Field(key="num_attention_heads", default=12),
        "hidden": Field(solve=encoders.axis(BODIES, 1, *hidden)),
        "gated": Field((True, False), key="use_swiglu_ffn", default=False, solve=is_gated),
        "activation": activation(is_gated),
        "eps": Field(key="layer_norm_eps", default=1e-6),
        "registers": Field(solve=encoders.axis(BODIES, 1, "embeddings.register_tokens", otherwise=0)),
        "layer_scale": always(1.0),
        "classes": Field(solve=length("classifier.weight", 0, 0)),
        "pool": Field(("cls", "cls_mean"), solve=lambda names: "cls_mean" if "classifier.weight" in names else "cls"),
    }  # fmt: skip


def depth(names: Names) -> int:
    """A solver: the number of blocks."""
    return count(names, rf"(?:{PLAIN}\.|{REGISTERS}\.)?encoder\.layer\.(\d+)\.norm1\.weight")


def activation(gated: Callable[[Names], bool]) -> Field:
    """The activation of the mlp, which config.json states; but the gated one has SiLU whatever that says."""
    field = by_function_name("hidden_act", ACTIVATIONS, "gelu")
    return replace(field, solve=lambda names: "silu" if gated(names) else None)


# -------------------------------------------------------------------------------------- side files


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from config.json and preprocessor_config.json."""
    config = files.get("config.json", {})
    registers = config.get("model_type") == REGISTERS
    if config:  # what the class takes where nothing is stated
        config = {"patch_size": 16 if registers else 14, **config}
    if config.get("use_swiglu_ffn"):
        config["hidden_act"] = "silu"
    facts = encoders.read_side_files(LAYOUTS[-1], files, config, (PLAIN, REGISTERS))
    if not config:
        return facts
    more = {"hidden": _stated_hidden(config), "registers": config.get("num_register_tokens", 4) if registers else 0}
    extra = {} if registers else {"use_mask_token": config.get("use_mask_token", True)}
    return replace(facts, config=facts.config | more, extra=extra)


def _stated_hidden(config: Json) -> int:
    """The hidden width of the mlp that a config.json states. Raises UserError where it is none."""
    width, times = config.get("hidden_size", 768), config.get("mlp_ratio", 4)
    for name, value in (("hidden_size", width), ("mlp_ratio", times)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UserError("config.json", f"{name} is {value!r}: give a positive number")
    return _gated_width(width, times) if config.get("use_swiglu_ffn") else int(width * times)


def write_side(config: ViTConfig, facts: Facts) -> dict[str, Json]:
    """config.json, and preprocessor_config.json where transformers has such a preprocessing."""
    c = config.normal()
    family = "Dinov2WithRegisters" if c.registers else "Dinov2"
    architecture = family + ("ForImageClassification" if c.classes else "Model")
    files = encoders.write_side_files(LAYOUTS[-1], c, facts, architecture, REGISTERS if c.registers else PLAIN)
    files["config.json"]["mlp_ratio"] = ratio(c)
    if c.registers:
        files["config.json"]["num_register_tokens"] = c.registers
    else:  # a file without the tensor would get a new one
        files["config.json"]["use_mask_token"] = facts.extra.get("use_mask_token", False)
    return files


# ---------------------------------------------------------------------------------------- versions


def _layout(version: str, title: str) -> Layout:
    body = rf"({PLAIN}\.|{REGISTERS}\.)?"
    names = ("embeddings.patch_embeddings.projection.weight", f"{FIRST}layer_scale1.lambda1")
    signature = (*names, f"{FIRST}{IN_FILES[version][0]}.weight")
    return Layout(
        dialect="huggingface-dinov2",
        version=version,
        title=title,
        network=ViTConfig,
        fields=fields(version),
        rows=functools.partial(rows, version=version),
        signature=tuple(body + re.escape(name) for name in signature),
        refusals=(Refusal("network", cannot_hold), Refusal("statement", cannot_state)),
        read_side=read_side,
        covers=True,
        write_side=write_side,
        outputs=lambda c: PROBLEMS,
        resizes=resizes,
        proven="transformers 5.23.0",
    )


LAYOUTS = (
    _layout("v5", "Hugging Face DINOv2, with and without registers, names in memory"),
    _layout("v4", "Hugging Face DINOv2, with and without registers"),
)
