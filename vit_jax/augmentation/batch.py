"""All that happens to the images of a batch, in order; and their normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax import Array

from ..config.dotted import with_options
from ..errors import Field, UserError
from ..machine.numerics import mesh_agnostic, with_fixed_settings
from ..models.layers import fold
from .config import ImageAugment, check_augment
from .crops import erase, flip, padded_crop, resized_crop
from .mixing import mix_pairs
from .policies import apply_policy


@overload
@with_fixed_settings
def augment(
    images: Array,
    keys: Array,
    config: ImageAugment | None = None,
    *,
    labels: Array,
    classes: int = 0,
    **options: Any,
) -> tuple[Array, Array]: ...


@overload
@with_fixed_settings
def augment(images: Array, keys: Array, config: ImageAugment | None = None, **options: Any) -> Array: ...


@mesh_agnostic
@with_fixed_settings
def augment(
    images: Array,
    keys: Array,
    config: ImageAugment | None = None,
    *,
    labels: Array | None = None,
    classes: int = 0,
    **options: Any,
) -> Array | tuple[Array, Array]:
    """Training images, augmented on the device, a whole batch at a time; to be called inside jit.

    In this order: a crop (padded or resized), a flip, the operations of a policy, a rectangle erased, then mixup or
    CutMix of neighbours. Each image draws from its own key, so its result does not depend on the rest of the batch.

    Args:
        images: uint8 [B, h, w, C].
        keys: PRNG keys [B], such as `jax.random.split(key, B)`; others in each step.
        config: such as `vit_jax.preset("cifar10-48x4").run.augment`. Its `normalize`, `mean`, `std` and `repeats` are
            not applied here.
        labels: where images are mixed, which needs an even B: int [B], or targets, float32 [B, K], NaN where unknown.
        classes: K, with labels [B].
        options: fields of ImageAugment, which replace those of `config`: crop_padding, flip, policy, mixup, ...;
            `python -m vit_jax.train digits --help` explains them as --augment.flip and so on.

    Returns:
        The images, uint8 [B, h, w, C], or float32 0..255 with mixup; with labels (images, targets float32 [B, K]).

    Raises:
        UserError: a field is unknown, out of its range or contradicts others, or the arrays are not as above.
    """
    c = with_options(config or ImageAugment(), options, "augment")
    _check(images, keys, c, labels, classes)
    images = jnp.asarray(images)
    if c.crop_padding:
        images = padded_crop(images, fold(keys, 0), c.crop_padding)
    if c.scale != (1, 1):
        images = resized_crop(images, fold(keys, 2), c.scale, c.ratio)
    if c.flip:
        images = flip(images, fold(keys, 1))
    images = apply_policy(images, fold(keys, 3), c)
    if c.erase:
        images = erase(images, fold(keys, 4), c.erase)
    if labels is None:
        return images
    targets = jax.nn.one_hot(labels, classes, dtype=jnp.float32) if labels.ndim == 1 else labels
    return mix_pairs(images, targets, fold(keys, 5), c)


def _check(images: Array, keys: Array, c: ImageAugment, labels: Array | None, classes: int) -> None:
    """Raise UserError naming the first argument of `augment` that does not fit."""
    for name, given in (("images", images), ("keys", keys)):
        if not hasattr(given, "shape"):
            raise UserError(name, f"is a {type(given).__name__}", "give an array")
    if images.ndim != 4 or images.dtype != jnp.uint8:
        raise UserError("images", f"{images.dtype} {list(images.shape)}", "give uint8 [B, h, w, C]")
    size = len(images)
    if keys.shape[:1] != (size,):
        raise UserError("keys", f"{list(keys.shape)}, but there are {size} images", "give one key for each")
    check_augment(replace(c, repeats=1), images.shape[3], size)
    if c.mixes and labels is None:
        field = Field(f"augment.{'cutmix' if c.cutmix else 'mixup'}")
        raise UserError(field, "mixes targets too", "give labels and classes")
    if (
        labels is not None
        and not (labels.ndim == 2 and len(labels) == size)
        and (labels.shape != (size,) or classes < 1)
    ):
        raise UserError("labels", f"{list(labels.shape)} of {classes} classes", f"give int [{size}], and classes")


def normalise(images: Array, mean: Sequence[float], std: Sequence[float], dtype: Any) -> Array:
    """(x/255 - mean) / std for each channel: images [B, h, w, C], mean [C], std [C] -> [B, h, w, C]."""
    wide = jnp.promote_types(dtype, jnp.float32)
    pixels = images.astype(wide) / 255
    return ((pixels - jnp.asarray(mean, wide)) / jnp.asarray(std, wide)).astype(dtype)
