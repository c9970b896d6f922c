"""State dicts of the 256-wide ViT in the CIFAR teaching notebook: names input, class_embed, transformer.I, fc1, fc2.

Patches are flattened (channel, row, column) and pass a Linear and a ReLU. Pre-norm blocks with packed query, key and
value and erf GELU, a class token, no norm after the blocks; the head has a hidden layer with ReLU.
"""

from __future__ import annotations

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Json, Layout, Names, Refusal, always, count, length
from ..operations import Order
from ..rules import Row
from .modules import TOKEN, TOKENS, Tensors, module_rows
from .plain_vit import PLAIN_VIT

BLOCK = {
    "attention.query": "attn.in_proj_",
    "attention.out": "attn.out_proj.",
    "norm1": "norm1.",
    "norm2": "norm2.",
    "mlp.fc1": "fc1.",
    "mlp.fc2": "fc2.",
}


def rows(config: ViTConfig) -> list[Row]:
    """The rows of a network."""
    (p, q), blocks = pair(config.patch), range(config.depth)
    modules = {f"blocks.{i}.{ours}": f"transformer.{i}.{theirs}" for i in blocks for ours, theirs in BLOCK.items()}
    packed = [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in blocks]
    pixels = Order("d (c p q)", "(p q c) d", dict(c=config.channels, p=p, q=q))
    tensors: Tensors = {
        "patch.kernel": ("input.weight", pixels),
        "cls_token": ("class_embed", TOKEN),
        "position": ("pos_embed", TOKENS),
    }
    return module_rows(config, {"patch": "input.", "head_hidden": "fc1.", "head": "fc2.", **modules}, packed, tensors)


def channels(names: Names, known: Json) -> int:
    """The channels: the numbers of a patch, divided by its height and width."""
    p, q = pair(tuple(known["patch"]) if isinstance(known["patch"], list) else known["patch"])
    return int(length("input.weight", 1, 0)(names) // max(p * q, 1))


FIELDS = PLAIN_VIT | {
    "image": Field(),
    "patch": Field(),
    "heads": Field(),
    "channels": Field(follow=channels),
    "width": Field(solve=length("input.weight", 0)),
    "hidden": Field(solve=length("transformer.0.fc1.weight", 0)),
    "classes": Field(solve=length("fc2.weight", 0)),
    "depth": Field(solve=lambda names: count(names, r"transformer\.(\d+)\..*") or None),
    "head_hidden": Field(solve=length("fc1.weight", 0)),
    "eps": always(1e-5),
    "activation": always("gelu"),
    "stem_activation": always("relu"),
    "final_norm": always(False),
    "head_activation": always("relu"),
}


def headless(c: ViTConfig) -> list[str]:
    """A clause for each of the head's two layers that is missing: the layout refuses such a network. Else []."""
    sizes = {"classes": c.classes, "head_hidden": c.head_hidden}
    return [f"{name} is 0, but the layout always has a head of two layers" for name, size in sizes.items() if not size]


LAYOUTS = (
    Layout(
        dialect="notebook-256",
        version="",
        title="the CIFAR notebook's 256-wide ViT",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=(
            r"class_embed",
            r"pos_embed",
            r"input\.weight",
            r"transformer\.0\.attn\.in_proj_weight",
            r"fc2\.weight",
        ),
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", headless),),
    ),
)
