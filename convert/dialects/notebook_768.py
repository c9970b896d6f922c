"""The state dict of the CIFAR-100 notebook's post-norm ViT: conv1, positional_encoding, transformer_encoder, fc.

Torch's own encoder layers on a convolution without bias; ReLU, no class token, the mean of the tokens, no last
norm. Its encoder is not told that the batch comes first: each patch attends to the patches in the same place
of the other images of its batch, and to none of its own image. Ours has the same layers over an image's tokens.
"""

from __future__ import annotations

from vit_jax.config import ViTConfig

from ..layout import PLAIN_VIT, Field, Layout, always, count, length
from ..rules import Row
from .modules import TOKENS, module_rows

LAYER = "transformer_encoder.layers"
BLOCK = {
    "attention.query": "self_attn.in_proj_", "attention.out": "self_attn.out_proj.", "norm1": "norm1.", "norm2": "norm2.",
    "mlp.fc1": "linear1.", "mlp.fc2": "linear2.",
}  # fmt: skip


def rows(config: ViTConfig) -> list[Row]:
    """The tensors of a network."""
    blocks = {
        f"blocks.{i}.{ours}": f"{LAYER}.{i}.{theirs}" for i in range(config.depth) for ours, theirs in BLOCK.items()
    }
    packed = [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in range(config.depth)]
    return module_rows(
        config, {"patch": "conv1.", "head": "fc.", **blocks}, packed, {"position": ("positional_encoding", TOKENS)}
    )


FIELDS = PLAIN_VIT | {
    "image": Field(), "heads": Field(), "patch": Field(solve=lambda names: tuple(names["conv1.weight"][2:]) if len(names.get("conv1.weight", ())) == 4 else None),
    "channels": Field(solve=length("conv1.weight", 1)), "width": Field(solve=length("conv1.weight", 0)), "hidden": Field(solve=length(f"{LAYER}.0.linear1.weight", 0)),
    "depth": Field(solve=lambda names: count(names, r"transformer_encoder\.layers\.(\d+)\..*") or None), "classes": Field(solve=length("fc.weight", 0)),
    "eps": always(1e-5), "activation": always("relu"), "stem_bias": always(False), "cls_token": always(False), "norm_first": always(False),
    "final_norm": always(False), "pool": always("mean"),
}  # fmt: skip

LAYOUTS = (
    Layout(
        "notebook-768", "", "the CIFAR-100 notebook's post-norm ViT", ViTConfig, FIELDS, rows,
        (r"positional_encoding", r"conv1\.weight", r"transformer_encoder\.layers\.0\.self_attn\.in_proj_weight", r"fc\.weight", r"!conv1\.bias"),
        ("torch", "safetensors"),
        limits=lambda c: [] if c.classes else ["classes is 0, and it always has a head"],
        warns="batch-attention: its network attends across the images of a batch, ours over the tokens of an image, so with the same weights the outputs differ",
    ),
)  # fmt: skip
