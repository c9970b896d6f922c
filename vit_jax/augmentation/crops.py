"""Where an image is cut out, flipped and erased: draws of each example's own, on uint8 [B, h, w, C]."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array

ATTEMPTS = 10  # crops that are drawn until one fits into the image, as in torchvision
ERASED_AREA = (0.02, 1 / 3)  # of the image, least and most, as in timm
ERASED_RATIO = (0.3, 1 / 0.3)  # height over width


def padded_crop(images: Array, keys: Array, padding: int) -> Array:
    """Crops of the images' size, from the images padded with black on all sides: uint8 [B, h, w, C], keys [B]."""

    def crop(image: Array, key: Array) -> Array:
        padded = jnp.pad(image, ((padding, padding), (padding, padding), (0, 0)))
        row, column = jax.random.randint(key, (2,), 0, 2 * padding + 1, jnp.int32)
        return jax.lax.dynamic_slice(padded, (row, column, jnp.int32(0)), image.shape)

    return jax.vmap(crop)(images, keys)


def resized_crop(images: Array, keys: Array, scale: tuple[float, float], ratio: tuple[float, float]) -> Array:
    """Crops of random area and shape, resized to the images' size by bilinear interpolation: images uint8 [B, h, w, C],
    keys PRNG keys [B] -> uint8 [B, h, w, C].

    The draws are those of torchvision's RandomResizedCrop: the area uniform, the logarithm of the ratio uniform, the
    place uniform among those that fit.
    """
    h, w = images.shape[1:3]
    rows, columns = jax.vmap(lambda key: _window(key, h, w, scale, ratio))(keys)  # (start, length), each [B]
    return resample_windows(images, *rows, *columns)


def resample_windows(images: Array, top: Array, height: Array, left: Array, width: Array) -> Array:
    """Windows, int [B] each, of uint8 [B, h, w, C], enlarged to h, w: bilinear between pixels' centres, rounded."""
    out = images.astype(jnp.float32)
    out = _stretch(out, top, height)
    out = _stretch(out.swapaxes(1, 2), left, width).swapaxes(1, 2)
    return jnp.round(out).astype(jnp.uint8)


def _stretch(images: Array, start: Array, length: Array) -> Array:
    """The rows start..start + length - 1, int [B] each, enlarged to h rows: float32 [B, h, w, C] -> [B, h, w, C]."""
    h, whole = images.shape[1], length[:, None].astype(jnp.float32)
    at = jnp.clip((jnp.arange(h, dtype=jnp.float32) + 0.5) * (whole / h) - 0.5, 0, whole - 1)  # [B, h]
    above = jnp.floor(at).astype(jnp.int32)
    below = jnp.minimum(above + 1, length[:, None] - 1)
    take = jax.vmap(lambda image, rows: image[rows])
    first, second = (take(images, start[:, None] + rows) for rows in (above, below))
    return first + (at - above)[:, :, None, None] * (second - first)


def _window(
    key: Array, h: int, w: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """((top, height), (left, width)) of a crop, int32 [] each; the middle of the image if none of the attempts fits."""
    of_area, of_ratio, of_place = jax.random.split(key, 3)
    area = h * w * jax.random.uniform(of_area, (ATTEMPTS,), jnp.float32, *scale)
    shape = jnp.exp(jax.random.uniform(of_ratio, (ATTEMPTS,), jnp.float32, *map(math.log, ratio)))
    widths = jnp.round(jnp.sqrt(area * shape)).astype(jnp.int32)
    heights = jnp.round(jnp.sqrt(area / shape)).astype(jnp.int32)
    fits = (widths > 0) & (widths <= w) & (heights > 0) & (heights <= h)
    # The whole image, or as much of its middle as the bounds of the ratio allow.
    middle = (h, round(h * ratio[1])) if w / h > ratio[1] else (min(h, round(w / ratio[0])), w)
    chosen = jnp.argmax(fits)
    height, width = (
        jnp.where(fits.any(), drawn[chosen], jnp.int32(whole))
        for drawn, whole in zip((heights, widths), middle, strict=True)
    )
    place = jax.random.uniform(of_place, (2,), jnp.float32)
    top, left = (
        jnp.where(fits.any(), jnp.floor(at * (free + 1)).astype(jnp.int32), free // 2)
        for at, free in zip(place, (h - height, w - width), strict=True)
    )
    return (top, height), (left, width)


def flip(images: Array, keys: Array) -> Array:
    """The images, half of them flipped left to right: uint8 [B, h, w, C], keys [B]."""
    flipped = jax.vmap(lambda key: jax.random.uniform(key, dtype=jnp.float32) < 0.5)(keys)
    return jnp.where(flipped[:, None, None, None], images[:, :, ::-1], images)


def erase(images: Array, keys: Array, chance: float) -> Array:
    """The images, a rectangle of some replaced by noise: images uint8 [B, h, w, C], keys PRNG keys [B] -> uint8 [B, h,
    w, C].

    Random erasing (Zhong et al. 2020, arXiv 1708.04896) with a random value for each pixel; area and shape are drawn as
    in timm.
    """
    h, w = images.shape[1:3]

    def one(image: Array, key: Array) -> Array:
        of_shape, of_noise = jax.random.split(key)
        hit, area, ratio, y, x = jax.random.uniform(of_shape, (5,), jnp.float32)
        area = h * w * (ERASED_AREA[0] + area * (ERASED_AREA[1] - ERASED_AREA[0]))
        ratio = jnp.exp(math.log(ERASED_RATIO[0]) + ratio * math.log(ERASED_RATIO[1] / ERASED_RATIO[0]))
        height = jnp.minimum(jnp.round(jnp.sqrt(area * ratio)), h)
        width = jnp.minimum(jnp.round(jnp.sqrt(area / ratio)), w)
        top, left = jnp.floor(y * (h - height + 1)), jnp.floor(x * (w - width + 1))
        rows, columns = jnp.arange(h, dtype=jnp.float32)[:, None], jnp.arange(w, dtype=jnp.float32)
        inside = (rows >= top) & (rows < top + height) & (columns >= left) & (columns < left + width)  # [h, w]
        noise = jax.random.bits(of_noise, image.shape, jnp.uint8)
        return jnp.where((hit < chance) & inside[..., None], noise, image)

    return jax.vmap(one)(images, keys)
