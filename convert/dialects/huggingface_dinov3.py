"""DINOv3's Vision Transformer as Hugging Face transformers saves it: DINOv3ViTModel, with config.json and
preprocessor_config.json.

It has rotary positions and stores none, so that it takes images of any size that its patch divides. There is no class
with a classifier: the feature is the class token after the last norm. In memory, version 5 has the blocks under
`model.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Field, Json, Layout, always, count, length
from ..rules import Row, passthrough
from . import huggingface_encoders as encoders
from .huggingface import ACTIVATIONS, by_function_name, size
from .modules import TOKEN, TOKENS, Tensors, module_rows
from .plain_vit import PLAIN_VIT

FAMILY = "dinov3_vit"  # the value of model_type
BLOCK = {
    "norm1": "norm1.",
    "attention.query": "attention.q_proj.",
    "attention.key": "attention.k_proj.",
    "attention.value": "attention.v_proj.",
    "attention.out": "attention.o_proj.",
    "norm2": "norm2.",
    "mlp.fc1": "mlp.up_proj.",
    "mlp.gate": "mlp.gate_proj.",
    "mlp.fc2": "mlp.down_proj.",
}
IN_MEMORY = "model."  # before the names of blocks
PATCHES, REGISTERS = "embeddings.patch_embeddings.weight", "embeddings.register_tokens"


def rows(c: ViTConfig) -> list[Row]:
    """One row for each tensor; and one of the mask token, which only training needs."""
    modules = {"patch": "embeddings.patch_embeddings.", "norm": "norm."}
    tensors: Tensors = {"cls_token": ("embeddings.cls_token", TOKEN), "register_tokens": (REGISTERS, TOKENS)}
    for i in range(c.depth):
        ours, theirs = f"blocks.{i}.", f"layer.{i}."
        modules |= {ours + module: theirs + name for module, name in BLOCK.items()}
        tensors |= {f"{ours}scale{n}": (f"{theirs}layer_scale{n}.lambda1", None) for n in (1, 2)}
    made = module_rows(c, modules, [], tensors)
    made = [
        replace(r, optional=frozenset({IN_MEMORY + r.theirs[0]})) if r.theirs[0].startswith("layer.") else r
        for r in made
    ]
    none = [] if c.registers else [passthrough(REGISTERS, (1, 0, c.width))]  # a tensor without values
    return [passthrough("embeddings.mask_token", (1, 1, c.width)), *none, *made]


# ------------------------------------------------------------------------------------------ config

BODIES = ("", IN_MEMORY)
FIRST = "layer.0."


def flag(key: str, module: str, leaf: str, default: bool) -> Field:
    """A field that config.json states by this key, and whether there is this tensor in a block."""
    return Field((True, False), key=key, default=default, solve=encoders.there(BODIES, f"{FIRST}{module}.{leaf}"))


FIELDS = PLAIN_VIT | {
    "image": Field(key="image_size", encode=size, default=224),
    "patch": Field(key="patch_size", encode=size, default=16, solve=encoders.kernel(BODIES, PATCHES)),
    "channels": Field(key="num_channels", default=3, solve=length(PATCHES, 1)),
    "width": Field(key="hidden_size", default=384, solve=length(PATCHES, 0)),
    "depth": Field(
        key="num_hidden_layers",
        default=12,
        solve=lambda names: count(names, r"(?:model\.)?layer\.(\d+)\.norm1\.weight"),
    ),
    "heads": Field(key="num_attention_heads", default=6),
    "hidden": Field(
        key="intermediate_size", default=1536, solve=encoders.axis(BODIES, 0, f"{FIRST}mlp.up_proj.weight")
    ),
    "eps": Field(key="layer_norm_eps", default=1e-5),
    "activation": by_function_name("hidden_act", ACTIVATIONS, "gelu"),
    "gated": flag("use_gated_mlp", "mlp.gate_proj", "weight", False),
    "query_bias": flag("query_bias", "attention.q_proj", "bias", True),
    "key_bias": flag("key_bias", "attention.k_proj", "bias", False),
    "value_bias": flag("value_bias", "attention.v_proj", "bias", True),
    "out_bias": flag("proj_bias", "attention.o_proj", "bias", True),
    "mlp_bias": flag("mlp_bias", "mlp.up_proj", "bias", True),
    "registers": Field(key="num_register_tokens", default=0, solve=length(REGISTERS, 1, 0)),
    "rotary": always("axial"),
    "rotary_base": Field(key="rope_theta", default=100.0),
    "position": always("none"),
    "layer_scale": always(1.0),
    "classes": always(0),
}  # fmt: skip


# -------------------------------------------------------------------------------------- side files


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from config.json and preprocessor_config.json."""
    return encoders.read_side_files(LAYOUTS[-1], files, files.get("config.json", {}), (FAMILY,))


def write_side(config: ViTConfig, facts: Facts) -> dict[str, Json]:
    """config.json, and preprocessor_config.json where transformers has such a preprocessing."""
    return encoders.write_side_files(LAYOUTS[-1], config.normal(), facts, "DINOv3ViTModel", FAMILY)


LAYOUTS = (
    Layout(
        dialect="huggingface-dinov3",
        version="",
        title="Hugging Face DINOv3, its Vision Transformer",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=(
            r"embeddings\.patch_embeddings\.weight",
            r"(model\.)?layer\.0\.attention\.q_proj\.weight",
            r"(model\.)?layer\.0\.layer_scale1\.lambda1",
            r"!embeddings\.position_embeddings",
        ),
        read_side=read_side,
        covers=True,
        write_side=write_side,
        resizes=lambda c: "timm",  # it stores no positions
        proven="transformers 5.23.0",
    ),
)
