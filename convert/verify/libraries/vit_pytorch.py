"""vit-pytorch's ViT, SimpleViT and DistillWrapper, from version 1.4 on: older versions had other modules."""

from __future__ import annotations

import importlib
from typing import Any

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ...dialects import LAYOUTS
from ...rules import Row
from ..weights import Weights
from .built import Built, NotLoaded, Places, Unavailable, fill_module, load, of_images, tensors, with_version

TOKENS = ("cls_token", "pos_embedding", "distillation_token")  # before 1.16.1 they had an axis for the batch


def plain(c: ViTConfig) -> Any:
    """Its ViT or, where positions are computed, its SimpleViT, with random weights."""
    load("vit_pytorch")
    if c.position == "learned":
        return _with_tokens(importlib.import_module("vit_pytorch").ViT, c)
    import torch

    simple = importlib.import_module("vit_pytorch.simple_vit")
    module, before = simple.SimpleViT(**_sizes(c)), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # its table of positions is float32 otherwise
    module.pos_embedding = simple.posemb_sincos_2d(*c.grid, c.width, dtype=torch.float64)
    torch.set_default_dtype(before)
    return module


def wrapper(c: ViTConfig) -> Any:
    """Its DistillWrapper around a DistillableViT, without a teacher, with random weights."""
    load("vit_pytorch")
    from torch import nn

    distill = importlib.import_module("vit_pytorch.distill")
    student = _with_tokens(distill.DistillableViT, c)
    return distill.DistillWrapper(teacher=nn.Identity(), student=student, mlp_layernorm=c.distill_norm)


def vit_pytorch(weights: Weights) -> Built:
    """A file of its ViT or SimpleViT."""
    c: Any = weights.config
    module, rows = _fill_module(plain(c), weights)
    places: Places = {
        "tokens": ("transformer.layers.0.0", "in"),
        **{f"blocks.{i}": (f"transformer.layers.{i + 1}.0", "in") for i in range(c.depth - 1)},
        f"blocks.{c.depth - 1}": ("transformer.norm", "in"),
        "features": ("transformer.norm", "out"),
    }
    return Built(with_version("vit-pytorch"), module, rows, of_images, places)


def load_distilled(weights: Weights) -> Built:
    """A file of its DistillWrapper: the student's logits. Its tokens are in another order than ours."""
    c: Any = weights.config
    module, rows = _fill_module(wrapper(c), weights)

    def call(module: Any, images: Any) -> Any:
        return module.student(images.permute(0, 3, 1, 2), module.distillation_token)[0]

    return Built(with_version("vit-pytorch"), module, rows, call)


def _with_tokens(cls: Any, c: ViTConfig) -> Any:
    """A network with a class token or none; before 1.16 a mean was taken over the class token, too."""
    module = cls(pool="cls" if c.cls_token else "mean", **_sizes(c))
    module.pool = "cls" if c.pool == "cls" else "mean"
    return module


def _fill_module(module: Any, weights: Weights) -> tuple[Any, list[Row]]:
    """The module with the file's tensors, and the rows of its own names. Raises NotLoaded or Unavailable."""
    if reasons := weights.layout.refuses("statement", weights.config):
        raise Unavailable("; ".join(reasons))
    newest = [layout for layout in LAYOUTS.values() if layout.dialect == weights.layout.dialect][-1]
    axes = {name: x.dim() for name, x in module.state_dict().items()}
    state = {
        name: x[0] if name.rpartition(".")[2] in TOKENS and x.dim() > axes.get(name, x.dim()) else x
        for name, x in tensors(weights.tensors).items()
    }
    try:
        return fill_module(module, state), newest.rows(weights.config)
    except NotLoaded:
        if weights.layout.name == newest.name:
            raise
        raise Unavailable(f"the installed version has the names of {newest.name}") from None


def _sizes(c: ViTConfig) -> dict[str, Any]:
    return {
        "image_size": pair(c.image), "patch_size": pair(c.patch), "num_classes": c.classes, "dim": c.width,
        "depth": c.depth, "heads": c.heads, "mlp_dim": c.hidden, "channels": c.channels,
        "dim_head": c.resolved_head_width,
    }  # fmt: skip
