"""The state dict of the CIFAR notebook's 256-wide ViT: input, class_embed, pos_embed, transformer.I, fc1, fc2.

Patches are flattened (channel, row, column) and pass a Linear and a ReLU; pre-norm, query, key and value one matrix,
erf GELU, a class token, no last norm; the head is a hidden layer with ReLU and the classes.
"""

from __future__ import annotations

from vit_jax.config import ViTConfig, pair

from ..layout import PLAIN_VIT, Field, Json, Layout, Names, always, count, length
from ..rules import Order, Row
from .modules import TOKEN, TOKENS, Tensors, module_rows

BLOCK = {
    "attention.query": "attn.in_proj_", "attention.out": "attn.out_proj.", "norm1": "norm1.", "norm2": "norm2.", "mlp.fc1": "fc1.", "mlp.fc2": "fc2.",
}  # fmt: skip


def rows(config: ViTConfig) -> list[Row]:
    """The tensors of a network."""
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


def channels(names: Names, said: Json) -> int:
    """What is left of a patch's numbers, once its height and width are known."""
    p, q = pair(tuple(said["patch"]) if isinstance(said["patch"], list) else said["patch"])
    return int(length("input.weight", 1, 0)(names) // max(p * q, 1))


FIELDS = PLAIN_VIT | {
    "image": Field(), "patch": Field(), "heads": Field(), "channels": Field(follow=channels), "width": Field(solve=length("input.weight", 0)),
    "hidden": Field(solve=length("transformer.0.fc1.weight", 0)), "classes": Field(solve=length("fc2.weight", 0)),
    "depth": Field(solve=lambda names: count(names, r"transformer\.(\d+)\..*") or None), "head_hidden": Field(solve=length("fc1.weight", 0)),
    "eps": always(1e-5), "activation": always("gelu"), "stem_activation": always("relu"), "final_norm": always(False), "head_activation": always("relu"),
}  # fmt: skip

LAYOUTS = (
    Layout(
        "notebook-256", "", "the CIFAR notebook's 256-wide ViT", ViTConfig, FIELDS, rows,
        (r"class_embed", r"pos_embed", r"input\.weight", r"transformer\.0\.attn\.in_proj_weight", r"fc2\.weight"), ("torch", "safetensors"),
        limits=lambda c: [f"{name} is 0, and it always has a head of two layers" for name in ("classes", "head_hidden") if not getattr(c, name)],
    ),
)  # fmt: skip
