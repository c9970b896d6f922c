"""transformers: the vision encoders that are more than ViT and DeiT, each class by the config.json that we write.

A tower's output is its pooled feature. Attention is torch's own: transformers' eager one casts to float32.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ... import rules
from ...dialects import LAYOUTS
from ...layout import Facts
from ..weights import Weights
from .built import Built, Places, with_version
from .transformers import load_pretrained

Shapes = dict[str, tuple[int, ...]]


def _dinov2_unread(c: ViTConfig) -> Shapes:
    """The mask token, which the class with registers has at any rate."""
    body = "dinov2_with_registers." if c.classes else ""
    return {f"{body}embeddings.mask_token": (1, c.width)} if c.registers else {}


def _clip_unread(c: ViTConfig) -> Shapes:
    """The last norm, which the classifier has."""
    names = ("weight", "bias") if c.pool == "mean" else ()
    return {f"vision_model.post_layernorm.{name}": (c.width,) for name in names}


def _dinov3_unread(c: ViTConfig) -> Shapes:
    """The mask token, and the registers where there are none."""
    none: Shapes = {} if c.registers else {"embeddings.register_tokens": (1, 0, c.width)}
    return {"embeddings.mask_token": (1, 1, c.width), **none}


@dataclass(frozen=True)
class Tower:
    """Where a class has what: the layout of its names in memory, its blocks, its last norm if all tokens go through it.

    `unread` are tensors that a class of a config has and that its forward pass does not read; `patches`, whether it
    takes images cut into patches.
    """

    layout: str
    blocks: str
    norm: str = ""
    unread: Callable[[ViTConfig], Shapes] = lambda c: {}
    patches: bool = False


TOWERS = {  # by dialect
    "huggingface-dinov2": Tower("huggingface-dinov2@v5", "encoder.layer", "layernorm", _dinov2_unread),
    "huggingface-dinov3": Tower("huggingface-dinov3", "model.layer", "norm", _dinov3_unread),
    "huggingface-siglip": Tower("huggingface-siglip", "encoder.layers", "post_layernorm"),
    "huggingface-siglip2": Tower("huggingface-siglip2", "encoder.layers", "post_layernorm", patches=True),
    "huggingface-clip": Tower("huggingface-clip", "encoder.layers", unread=_clip_unread),
}


def encoder(weights: Weights) -> Built:
    """Any of them; what its forward pass does not read is zero."""
    c: Any = weights.config
    zeros = {name: np.zeros(shape) for name, shape in TOWERS[weights.layout.dialect].unread(c).items()}
    given = replace(weights, tensors={**zeros, **weights.tensors}, facts=Facts())
    return wrap_class(load_pretrained(given), weights)


def wrap_class(module: Any, weights: Weights) -> Built:
    """A class that has these weights, with what can be seen and trained of it."""
    c: Any = weights.config
    tower = TOWERS[weights.layout.dialect]
    at = next(f"{name}." if name else "" for name, inner in module.named_modules() if hasattr(inner, "embeddings"))
    places: Places = {
        "tokens": (f"{at}{tower.blocks}.0", "in"),
        **{f"blocks.{i}": (f"{at}{tower.blocks}.{i}", "out") for i in range(c.depth)},
    }
    places |= {"features": (f"{at}{tower.norm}", "out")} if tower.norm else {}
    exact_angles(module)
    _exact_positions(module)
    named = rules.narrow(LAYOUTS[tower.layout].rows(c), module.state_dict())
    given = functools.partial(_as_patches, patch=pair(c.patch)[0]) if tower.patches else _as_images
    return Built(with_version("transformers"), module, named, functools.partial(_output, given=given), places)


def exact_angles(module: Any) -> None:
    """Have DINOv3 compute its rotary angles in float64: it does so in float32 whatever its parameters have.

    Its frequencies are computed again, and the places of patches, which its forward pass asks for in float32, are those
    of its own function in float64.
    """
    import torch

    rotary = getattr(module, "rope_embeddings", None)
    if rotary is None:
        return
    exponents = torch.arange(0, 1, 4 / rotary.head_dim, dtype=torch.float64)
    rotary.inv_freq = (1 / rotary.base**exponents).to(rotary.inv_freq.device)
    places = importlib.import_module(type(rotary).__module__)
    own, forward = places.get_patches_center_coordinates, rotary.forward

    def exact(images: Any) -> Any:
        def in_double(h: int, w: int, dtype: Any, device: Any) -> Any:
            return own(h, w, dtype=torch.float64, device=device)

        with mock.patch.object(places, "get_patches_center_coordinates", in_double):
            return forward(images)

    rotary.forward = exact


def _exact_positions(module: Any) -> None:
    """Have DINOv2 and SigLIP 2 resize their positions in float64: they do so in float32 whatever they are given."""
    import torch

    wide = SimpleNamespace(**{**vars(torch), "float32": torch.float64})

    def exact(resize: Callable[..., Any], code: Any) -> Callable[..., Any]:
        def resized(*args: Any, **kwargs: Any) -> Any:
            with mock.patch.object(code, "torch", wide):
                return resize(*args, **kwargs)

        return resized

    for each in module.modules():
        for name in ("interpolate_pos_encoding", "resize_positional_embeddings"):
            if hasattr(each, name):
                code = importlib.import_module(type(each).__module__)
                setattr(each, name, exact(getattr(each, name), code))


def _as_images(images: Any) -> dict[str, Any]:
    """What all others take, of images [B, h, w, C]."""
    return {"pixel_values": images.permute(0, 3, 1, 2)}


def _as_patches(images: Any, patch: int) -> dict[str, Any]:
    """What SigLIP 2 takes: patches [B, N, p*p*C] of images [B, h, w, C] of one size, their grid, and a mask of ones."""
    import torch

    b, h, w, c = images.shape
    grid = h // patch, w // patch
    values = images.reshape(b, grid[0], patch, grid[1], patch, c).permute(0, 1, 3, 2, 4, 5).reshape(b, -1, patch**2 * c)
    shapes = torch.tensor([grid] * b)
    return {"pixel_values": values, "pixel_attention_mask": torch.ones(values.shape[:2]), "spatial_shapes": shapes}


def _output(module: Any, images: Any, given: Callable[[Any], dict[str, Any]]) -> Any:
    """The logits of a classifier, the projection or pooled feature of a tower, of images [B, h, w, C].

    Of a tower that pools nothing it is the mean of its tokens, as the classifier that is built on it takes it.
    """
    out = module(**given(images))
    for name in ("logits", "image_embeds", "pooler_output"):
        if out.get(name) is not None:
            return out[name]
    return out.last_hidden_state.mean(1)
