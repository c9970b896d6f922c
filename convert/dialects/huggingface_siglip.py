"""The image tower of SigLIP as Hugging Face transformers saves it: SiglipVisionModel, SiglipForImageClassification, and
whole SiglipModel files, whose text tower is left out. SigLIP 2 at a fixed size is the same class.

The tower pools by attention (`head.`). The classifier takes the mean of its tokens instead and does not read `head.`,
which is carried along. Files of version 4 and of models with more than the tower have its names behind `vision_model.`;
version 5 saves the tower alone without that, and reads both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts, Field, Json, Layout, Names, Refusal, always, count, length
from ..operations import Operation
from ..rules import Row, passthrough
from . import huggingface_encoders as encoders
from .huggingface import ACTIVATIONS, PROBLEMS, by_function_name, size
from .modules import TOKEN, Tensors, convolution, module_rows, oblong
from .plain_vit import PLAIN_VIT

WHOLE, TOWER = "siglip", "siglip_vision_model"  # values of model_type
BODIES = ("vision_model.", "")
BODY = BODIES[0]
BLOCK = {
    "norm1": "layer_norm1.",
    "attention.query": "self_attn.q_proj.",
    "attention.key": "self_attn.k_proj.",
    "attention.value": "self_attn.v_proj.",
    "attention.out": "self_attn.out_proj.",
    "norm2": "layer_norm2.",
    "mlp.fc1": "mlp.fc1.",
    "mlp.fc2": "mlp.fc2.",
}
POOL = {
    "pool.query": "head.attention.in_proj_",  # with key and value
    "pool.out": "head.attention.out_proj.",
    "pool.norm": "head.layernorm.",
    "pool.mlp.fc1": "head.mlp.fc1.",
    "pool.mlp.fc2": "head.mlp.fc2.",
}
TEXT = (r"text_model\..*|text_projection\.weight|logit_(scale|bias)",)  # the other tower of a whole model
NUMBERS = (r"(vision_model\.)?embeddings\.position_ids",)  # 0, 1, 2, ..., in files of older versions
PATCHES = "embeddings.patch_embedding.weight"


def blocks(c: ViTConfig) -> dict[str, str]:
    """The modules of all blocks, {ours: theirs}."""
    named = {"norm": f"{BODY}post_layernorm.", "patch": f"{BODY}embeddings.patch_embedding."}
    for i in range(c.depth):
        named |= {f"blocks.{i}.{ours}": f"{BODY}encoder.layers.{i}.{theirs}" for ours, theirs in BLOCK.items()}
    return named


def rows(c: ViTConfig, patches: Operation | None = None) -> list[Row]:
    """One row for each tensor; in a classifier also of the attention pooling that it does not read."""
    modules = blocks(c) | {ours: BODY + theirs for ours, theirs in POOL.items()} | {"head": "classifier."}
    tensors: Tensors = {
        "patch.kernel": (f"{BODY}{PATCHES}", patches or convolution(c)),
        "position": (f"{BODY}embeddings.position_embedding.weight", None),
        "pool.probe": (f"{BODY}head.probe", TOKEN),
    }
    made = module_rows(c, modules, [("pool.query", "pool.key", "pool.value")], tensors)
    if not c.classes:
        return encoders.either(made, BODIES)
    d, f = c.width, c.hidden
    unread = {"probe": (1, 1, d), "attention.in_proj_weight": (3 * d, d), "attention.in_proj_bias": (3 * d,)}
    shapes = {"attention.out_proj": (d, d), "mlp.fc1": (f, d), "mlp.fc2": (d, f), "layernorm": (d,)}
    for name, shape in shapes.items():
        unread |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return [*made, *(passthrough(f"{BODY}head.{name}", shape) for name, shape in unread.items())]


# ------------------------------------------------------------------------------------------ config

VISION = PLAIN_VIT | {
    "image": Field(key="image_size", encode=size, default=224),
    "patch": Field(key="patch_size", encode=size, default=16, solve=encoders.kernel(BODIES, PATCHES)),
    "channels": Field(key="num_channels", default=3, solve=encoders.axis(BODIES, 1, PATCHES)),
    "width": Field(key="hidden_size", default=768, solve=encoders.axis(BODIES, 0, PATCHES)),
    "depth": Field(
        key="num_hidden_layers",
        default=12,
        solve=lambda names: count(names, r"(?:vision_model\.)?encoder\.layers\.(\d+)\.layer_norm1\.weight"),
    ),
    "heads": Field(key="num_attention_heads", default=12),
    "hidden": Field(
        key="intermediate_size", default=3072, solve=encoders.axis(BODIES, 0, "encoder.layers.0.mlp.fc1.weight")
    ),
}


def pool(names: Names) -> str:
    """A solver: attention pooling, but the classifier and a tower without it have the mean of the tokens."""
    probed = any(f"{body}head.probe" in names for body in BODIES)
    return "map" if probed and "classifier.weight" not in names else "mean"


FIELDS = VISION | {
    "eps": Field(key="layer_norm_eps", default=1e-6),
    "activation": by_function_name("hidden_act", ACTIVATIONS, "gelu_pytorch_tanh"),
    "cls_token": always(False),
    "classes": Field(solve=length("classifier.weight", 0, 0)),
    "pool": Field(("map", "mean"), solve=pool),
}


def cannot_hold(c: ViTConfig) -> list[str]:
    """Clauses for a network that no class of SigLIP computes."""
    if c.classes and c.pool == "map":
        reads = "its classifier takes the mean of the tokens (pool 'mean')"
        return [*oblong(c), f"pool is 'map' and classes {c.classes}, but {reads}"]
    return oblong(c)


def image_shapes(names: Names) -> list[str]:
    """A clause where patches are a matrix, as in NaFlex files of SigLIP 2, and no convolution."""
    found = [names[body + PATCHES] for body in BODIES if body + PATCHES in names]
    return ["its patches are a matrix"] if found and len(found[0]) == 2 else []


# -------------------------------------------------------------------------------------- side files


def read_side(files: Mapping[str, Json]) -> Facts:
    """Facts from config.json and preprocessor_config.json."""
    return tower_facts(LAYOUTS[-1], files, (WHOLE, TOWER))


def tower_facts(layout: Layout, files: Mapping[str, Json], families: tuple[str, str]) -> Facts:
    """The `read_side` of a layout."""
    config = encoders.tower(files, *families)
    facts = encoders.read_side_files(layout, files, config, families[1:])
    return replace(facts, extra={"vision_use_head": config.get("vision_use_head", True)}) if config else facts


def write_side(config: ViTConfig, facts: Facts) -> dict[str, Json]:
    """config.json, and preprocessor_config.json where transformers has such a preprocessing."""
    return tower_files(LAYOUTS[-1], config.normal(), facts, (WHOLE, TOWER), "Siglip")


def tower_files(layout: Layout, c: ViTConfig, facts: Facts, families: tuple[str, str], named: str) -> dict[str, Json]:
    """The `write_side` of a layout -> {file name: JSON}."""
    if not c.classes:
        files = encoders.write_side_files(layout, c, facts, f"{named}VisionModel", families[1])
        files["config.json"]["vision_use_head"] = c.pool == "map"
        return files
    files = encoders.around(layout, c, facts, f"{named}ForImageClassification", families)
    unread = facts.extra.get("vision_use_head", False)  # a file without the tensors would get new ones
    files["config.json"]["vision_config"]["vision_use_head"] = unread
    return files


def signature(*names: str) -> tuple[str, ...]:
    """Expressions for a file of a tower with these tensors."""
    every = (PATCHES, "embeddings.position_embedding.weight", "encoder.layers.0.self_attn.q_proj.weight", *names)
    return tuple(r"(vision_model\.)?" + re.escape(name) for name in every)


SIGNATURE = (*signature("post_layernorm.weight"), r"!(vision_model\.)?embeddings\.class_embedding")
LAYOUTS = (
    Layout(
        dialect="huggingface-siglip",
        version="",
        title="the image tower of Hugging Face's SigLIP; the text tower is left out",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=SIGNATURE,
        refusals=(Refusal("network", cannot_hold), Refusal("shapes", image_shapes)),
        outside=(*TEXT, *NUMBERS),
        read_side=read_side,
        covers=True,
        write_side=write_side,
        outputs=lambda c: PROBLEMS,
        proven="transformers 5.23.0",
    ),
)
