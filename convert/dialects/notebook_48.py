"""State dicts of the 48-wide ViT in the CIFAR-10 teaching notebook: names embedding, encoder.blocks, classifier.

Each head has Linears of its own for query, key and value; side by side they are our matrices. Pre-norm, tanh GELU, a
class token, no norm after the blocks.
"""

from __future__ import annotations

from dataclasses import replace

from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Names, Refusal, always, count, length
from ..operations import Concat, Reversed
from ..rules import Row
from .modules import TOKEN, TOKENS, Tensors, headless, module_rows
from .plain_vit import PLAIN_VIT

PATCH, HEADS = "embedding.patch_embeddings.projection", r"encoder\.blocks\.0\.attention\.heads\.(\d+)\.query\.weight"
QUERY = "encoder.blocks.0.attention.heads.0.query.weight"
BLOCK = {
    **{
        f"attention.{part}": f"attention.heads.{{}}.{part}" for part in ("query", "key", "value")
    },  # {}: the head's number
    "attention.out": "attention.output_projection",
    "norm1": "layernorm_1",
    "norm2": "layernorm_2",
    "mlp.fc1": "mlp.dense_1",
    "mlp.fc2": "mlp.dense_2",
}


def rows(config: ViTConfig) -> list[Row]:
    """The rows of a network."""
    modules = {
        f"blocks.{i}.{ours}": f"encoder.blocks.{i}.{theirs}."
        for i in range(config.depth)
        for ours, theirs in BLOCK.items()
    }
    tensors: Tensors = {
        "cls_token": ("embedding.cls_token", TOKEN),
        "position": ("embedding.position_embeddings", TOKENS),
    }
    made = module_rows(config, {"patch": f"{PATCH}.", "head": "classifier.", **modules}, [], tensors)
    return [_per_head(r, config.heads, config.resolved_head_width) if "{}" in r.theirs[0] else r for r in made]


def _per_head(r: Row, heads: int, width: int) -> Row:
    """A projection's row with one tensor for each head, joined along the outputs."""
    joined = Reversed(Concat(0, (width,) * heads))
    return replace(r, theirs=tuple(r.theirs[0].format(h) for h in range(heads)), operations=(joined, *r.operations))


def head_width(names: Names) -> int | None:
    """A solver: the width of a head, 0 where it is width / heads."""
    inner, width = length(QUERY, 0)(names), length(QUERY, 1)(names)
    return 0 if inner and inner * count(names, HEADS) == width else inner


def patch(names: Names) -> tuple[int, ...] | None:
    """The patch (height, width), the last two axes of the convolution's kernel; None if that is absent or not 4-D."""
    shape = names.get(f"{PATCH}.weight", ())
    return tuple(shape[2:]) if len(shape) == 4 else None


FIELDS = PLAIN_VIT | {
    "image": Field(),
    "patch": Field(solve=patch),
    "channels": Field(solve=length(f"{PATCH}.weight", 1)),
    "classes": Field(solve=length("classifier.weight", 0)),
    "width": Field(solve=length(f"{PATCH}.weight", 0)),
    "hidden": Field(solve=length("encoder.blocks.0.mlp.dense_1.weight", 0)),
    "depth": Field(solve=lambda names: count(names, r"encoder\.blocks\.(\d+)\..*") or None),
    "heads": Field(solve=lambda names: count(names, HEADS) or None),
    "head_width": Field(solve=head_width),
    "eps": always(1e-5),
    "activation": always("gelu_tanh"),
    "final_norm": always(False),
}

LAYOUTS = (
    Layout(
        dialect="notebook-48",
        version="",
        title="the CIFAR-10 notebook's 48-wide ViT",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=(
            r"embedding\.position_embeddings",
            HEADS,
            r"encoder\.blocks\.0\.mlp\.dense_1\.weight",
            r"classifier\.weight",
        ),
        containers=("torch", "safetensors"),
        refusals=(Refusal("network", headless),),
    ),
)
