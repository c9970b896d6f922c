"""Flax ViT of Hugging Face transformers, flax_model.msgpack (until version 4; compared with 4.55).

The names are those of the torch files (huggingface.py), the axes Flax's: kernels are (in, out), those of attention too,
patches (p, q, c, d). Images and patches are always square.
"""

from __future__ import annotations

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ..layout import Layout, Refusal, always
from ..operations import Order
from ..rules import Row, row
from . import huggingface
from .flax_names import field_of_flax


def rows(config: ViTConfig) -> list[Row]:
    """One row for each parameter."""
    (p, q), c, out = pair(config.patch), config.channels, []
    orders = {
        "cls_token": Order("1 1 d", "d"),
        "position": Order("1 n d", "n d"),
        "patch.kernel": Order("p q c d", "(p q c) d", dict(p=p, q=q, c=c)),
    }
    for name, shape in config.shapes().items():
        path, _, leaf = name.rpartition(".")
        theirs = f"{huggingface.their_name(config, path)}.{leaf}" if path else huggingface.their_name(config, name)
        out.append(row(theirs.replace(".", "/"), name, shape, *([orders[name]] if name in orders else [])))
    return out


def cannot_hold(config: ViTConfig) -> list[str]:
    """Clauses for a network that the Flax classes cannot hold."""
    out = huggingface.cannot_hold(config)
    for name in ("image", "patch"):
        rows, columns = pair(getattr(config, name))
        if rows != columns:
            out.append(f"{name} is {rows}x{columns}, but the layout has only square ones")
    if config.head_hidden not in (0, config.width):
        out.append(f"head_hidden is {config.head_hidden}, but its pooler has the width of a token, {config.width}")
    return out


FIELDS = {name: field_of_flax(field) for name, field in huggingface.fields("v4").items()} | {
    "distill_token": always(False),
    "distill_head": always(False),
    "pool": always("cls"),
    "head_activation": always("tanh"),
}
SIGNATURE = (
    r"(vit/)?embeddings/patch_embeddings/projection/kernel",
    r"(vit/)?embeddings/position_embeddings",
    r"(vit/)?encoder/layer/0/layernorm_before/scale",
)
LAYOUTS = (
    Layout(
        dialect="huggingface-flax",
        version="",
        title="Hugging Face Flax ViT",
        network=ViTConfig,
        fields=FIELDS,
        rows=rows,
        signature=SIGNATURE,
        containers=("msgpack",),
        refusals=(Refusal("network", cannot_hold),),
        read_side=huggingface.read_side,
        covers=True,
        write_side=huggingface.write_side,
        outputs=lambda c: huggingface.PROBLEMS,
        proven="transformers 4.55.4",
    ),
)
