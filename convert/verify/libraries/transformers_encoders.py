"""transformers: the vision encoders that are more than ViT and DeiT, each class by the config.json that we write.

A tower's output is its pooled feature. Attention is torch's own: transformers' eager one casts to float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import rules
from ...dialects import LAYOUTS
from ..weights import Weights
from .built import Built, Places, versioned
from .transformers import pretrained


@dataclass(frozen=True)
class Tower:
    """Where a class has what: the layout of its names in memory, its blocks, its last norm."""

    layout: str
    blocks: str
    norm: str


TOWERS = {  # by dialect
    "huggingface-dinov2": Tower("huggingface-dinov2@v5", "encoder.layer", "layernorm"),
}


def encoder(weights: Weights) -> Built:
    """Any of them; a mask token, which some classes have and no forward pass reads, is zero."""
    c: Any = weights.config
    token = f"{'dinov2_with_registers.' if c.classes else ''}embeddings.mask_token"
    masks = {token: np.zeros((1, c.width))} if weights.layout.dialect == "huggingface-dinov2" and c.registers else {}
    return built(pretrained(replace(weights, tensors={**masks, **weights.tensors})), weights)


def built(module: Any, weights: Weights) -> Built:
    """A class that has these weights, with what can be seen and trained of it."""
    c: Any = weights.config
    tower = TOWERS[weights.layout.dialect]
    at = "" if hasattr(module, tower.norm) else f"{module.base_model_prefix}."
    places: Places = {
        "tokens": (f"{at}{tower.blocks}.0", "in"),
        **{f"blocks.{i}": (f"{at}{tower.blocks}.{i}", "out") for i in range(c.depth)},
        "features": (f"{at}{tower.norm}", "out"),
    }
    named = rules.narrow(LAYOUTS[tower.layout].rows(c), module.state_dict())
    return Built(versioned("transformers"), module, named, _output, places)


def _output(module: Any, images: Any) -> Any:
    """The logits of a classifier, or the pooled feature of a tower, of images [B, h, w, C]."""
    out = module(pixel_values=images.permute(0, 3, 1, 2))
    return out.logits if "logits" in out else out.pooler_output
