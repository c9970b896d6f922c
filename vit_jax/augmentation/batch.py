"""All that happens to the images of a batch one by one, in order; and their normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from ..config import ImageAugment
from ..layers import fold
from .crops import erase, flip, padded_crop, resized_crop
from .policies import apply_policy


def augment(images: Array, keys: Array, config: ImageAugment) -> Array:
    """Augmented images, before any are mixed: uint8 [B, h, w, C], keys [B] -> uint8 [B, h, w, C].

    In this order: a crop (padded or resized), a flip, the operations of a policy, a rectangle erased.
    """
    if config.crop_padding:
        images = padded_crop(images, fold(keys, 0), config.crop_padding)
    if config.scale != (1, 1):
        images = resized_crop(images, fold(keys, 2), config.scale, config.ratio)
    if config.flip:
        images = flip(images, fold(keys, 1))
    images = apply_policy(images, fold(keys, 3), config)
    if config.erase:
        images = erase(images, fold(keys, 4), config.erase)
    return images


def normalise(images: Array, mean: Sequence[float], std: Sequence[float], dtype: Any) -> Array:
    """(x/255 - mean) / std for each channel: uint8 or float 0..255, [B, h, w, C] -> `dtype` [B, h, w, C]."""
    wide = jnp.promote_types(dtype, jnp.float32)
    pixels = images.astype(wide) / 255
    return ((pixels - jnp.asarray(mean, wide)) / jnp.asarray(std, wide)).astype(dtype)
