"""State dicts of the post-norm ViT in the CIFAR-100 teaching notebook: names conv1, positional_encoding, fc.

torch.nn.TransformerEncoder on a convolution without bias: ReLU, no class token, the mean of the tokens, no norm after
the blocks. The notebook does not pass batch_first: its attention is between the patches at one position of all images
of a batch, and not between the patches of an image. Our network has the same layers, over the tokens of one image.
"""

from __future__ import annotations

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Refusal, always, count, length
from ..rules import Row
from .modules import TOKENS, headless, module_rows
from .plain_vit import PLAIN_VIT

LAYER = "transformer_encoder.layers"
BLOCK = {
    "attention.query": "self_attn.in_proj_",
    "attention.out": "self_attn.out_proj.",
    "norm1": "norm1.",
    "norm2": "norm2.",
    "mlp.fc1": "linear1.",
    "mlp.fc2": "linear2.",
}


def rows(config: ViTConfig) -> list[Row]:
    """The rows of a network."""
    blocks = {
        f"blocks.{i}.{ours}": f"{LAYER}.{i}.{theirs}" for i in range(config.depth) for ours, theirs in BLOCK.items()
    }
    packed = [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in range(config.depth)]
    return module_rows(
        config, {"patch": "conv1.", "head": "fc.", **blocks}, packed, {"position": ("positional_encoding", TOKENS)}
    )


FIELDS = PLAIN_VIT | {
    "image": Field(),
    "heads": Field(),
    "patch": Field(
        solve=lambda names: tuple(names["conv1.weight"][2:]) if len(names.get("conv1.weight", ())) == 4 else None
    ),
    "channels": Field(solve=length("conv1.weight", 1)),
    "width": Field(solve=length("conv1.weight", 0)),
    "hidden": Field(solve=length(f"{LAYER}.0.linear1.weight", 0)),
    "depth": Field(solve=lambda names: count(names, r"transformer_encoder\.layers\.(\d+)\..*") or None),
    "classes": Field(solve=length("fc.weight", 0)),
    "eps": always(1e-5),
    "activation": always("relu"),
    "stem_bias": always(False),
    "cls_token": always(False),
    "norm_first": always(False),
    "final_norm": always(False),
    "pool": always("mean"),
}

ACROSS = (
    "its network attends across the images of a batch and ours over the tokens of an image, "
    "so with the same weights the outputs differ"
)
LAYOUTS = (
    Layout(
        dialect="notebook-768",
        version="",
        title="the CIFAR-100 notebook's post-norm ViT",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=(
            r"positional_encoding",
            r"conv1\.weight",
            r"transformer_encoder\.layers\.0\.self_attn\.in_proj_weight",
            r"fc\.weight",
            r"!conv1\.bias",
        ),
        containers=("torch", "safetensors"),
        refusals=(
            Refusal("function", ACROSS, "batch-attention"),
            Refusal("network", headless),
        ),
    ),
)
