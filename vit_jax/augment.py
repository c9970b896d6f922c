"""Images on the device, one batch at a time: random crops and flips, then normalisation.

Each example has its own PRNG key, so the draws do not depend on how a batch is cut; every draw states its dtype, so
they do not depend on jax_enable_x64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .config import ImageAugment
from .layers import fold


def augment(images: Array, keys: Array, config: ImageAugment) -> Array:
    """Randomly cropped and flipped images: uint8 [B, h, w, C], keys [B] -> uint8 [B, h, w, C].

    A crop has the size of the image; it is taken from the image padded with black on all sides.
    """
    if config.crop_padding:
        images = jax.vmap(_crop, (0, 0, None))(images, fold(keys, 0), config.crop_padding)
    if config.flip:
        flipped = jax.vmap(lambda key: jax.random.uniform(key, dtype=jnp.float32) < 0.5)(fold(keys, 1))
        images = jnp.where(flipped[:, None, None, None], images[:, :, ::-1], images)
    return images


def _crop(image: Array, key: Array, padding: int) -> Array:
    padded = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    row, column = jax.random.randint(key, (2,), 0, 2 * padding + 1, jnp.int32)
    return jax.lax.dynamic_slice(padded, (row, column, jnp.int32(0)), image.shape)


def normalise(images: Array, mean: Sequence[float], std: Sequence[float], dtype: Any) -> Array:
    """(x/255 - mean) / std for each channel: uint8 [B, h, w, C] -> `dtype` [B, h, w, C]."""
    wide = jnp.promote_types(dtype, jnp.float32)
    pixels = images.astype(wide) / 255
    return ((pixels - jnp.asarray(mean, wide)) / jnp.asarray(std, wide)).astype(dtype)
