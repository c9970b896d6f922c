"""The operations of policies, by name, as cases of the three primitives: each image has one and its value."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from . import primitives

# Of each operation the value that it takes. Their order is that of the numbers by which images name them.
OPERATIONS = {
    "identity": "none",
    "shear_x": "columns to the left for each row down",
    "shear_y": "rows up for each column to the right",
    "translate_x": "pixels to the right",
    "translate_y": "pixels down",
    "rotate": "degrees, counter-clockwise, about the centre",
    "brightness": "factor: 0 black, 1 the image",
    "contrast": "factor: 0 the mean of the grey image, 1 the image",
    "colour": "factor: 0 the grey image, 1 the image",
    "sharpness": "factor: 0 smoothed, 1 the image",
    "blur": "standard deviation in pixels, 0 to 2",
    "posterize": "bits that are kept, rounded to 1 to 8",
    "solarize": "level from which on levels are inverted; 0 inverts all",
    "solarize_add": "what is added to levels below 128",
    "autocontrast": "none",
    "equalize": "none",
}
NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
_AFFINE = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
_BLENDS = ("brightness", "contrast", "colour", "sharpness", "blur")
_TABLES = ("posterize", "solarize", "solarize_add", "autocontrast", "equalize")


def apply(images: Array, operation: Array, value: Array, used: Sequence[str]) -> Array:
    """Each image after its operation: images uint8 [B, h, w, C], operation int32 [B], value float32 [B] -> uint8 [B, h,
    w, C].
    """

    results = [images]
    if any(name in used for name in _AFFINE):
        results.append(primitives.affine(images, _matrix(operation, value, *images.shape[1:3])))
    if names := [name for name in _BLENDS if name in used]:
        results.append(_blend(images, operation, value, names))
    if names := [name for name in _TABLES if name in used]:
        results.append(primitives.looked_up(images, _table_of_each(images, operation, value, names)))
    groups = [group for group in (_AFFINE, _BLENDS, _TABLES) if any(name in used for name in group)]
    return _one_of(results, [_is_in(operation, group) for group in groups])


def _is_in(operation: Array, names: Sequence[str]) -> Array:
    """Whether the operation of each image is one of these, bool [B]."""
    return (operation[:, None] == jnp.asarray([NUMBER[name] for name in names], jnp.int32)).any(1)


def _one_of(results: Sequence[Array], where: Sequence[Array]) -> Array:
    """Of each example the result [B, ...] whose condition, bool [B], is true, or the first, which has none.

    They are laid side by side and one is taken by its place: XLA would fuse a choice by `where` into what comes next,
    and compute all of them again for each pixel of that.
    """
    place = sum(condition.astype(jnp.int32) * i for i, condition in enumerate(where, 1))
    index = jnp.asarray(place).reshape(-1, *[1] * results[0].ndim)
    return jnp.take_along_axis(jnp.stack(results, 1), index, 1)[:, 0]


def _blend(images: Array, operation: Array, value: Array, names: Sequence[str]) -> Array:
    """All images blended, of which only those count whose operation is one of `names`."""
    degenerate, factor = jnp.zeros((1, 1, 1, 1), jnp.int32), value
    for name in names:
        chosen = operation == NUMBER[name]
        degenerate = jnp.where(chosen[:, None, None, None], _degenerate(name, images, value), degenerate)
        factor = jnp.where(chosen, 0, factor) if name == "blur" else factor
    return primitives.blend(degenerate, images, factor)


def _table_of_each(images: Array, operation: Array, value: Array, names: Sequence[str]) -> Array:
    """The table of each image's operation where that is one of `names`: uint8 [B, C, 256]."""
    shape = (len(images), images.shape[-1], 256)
    tables = [jnp.broadcast_to(_table(name, images, value), shape).astype(jnp.uint8) for name in names]
    return _one_of(tables, [operation == NUMBER[name] for name in names[1:]])


def _matrix(operation: Array, value: Array, h: int, w: int) -> Array:
    """The map from a pixel to where it comes from, float32 [B, 2, 3]; the identity for all that is not affine."""

    def when(name: str, then: Array, otherwise: Array | float) -> Array:
        return jnp.where(operation == NUMBER[name], then, otherwise)

    angle = when("rotate", value * (math.pi / 180), 0.0)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    # The centre stays: (w/2, h/2) = R (w/2, h/2) + shift.
    right, down = w / 2 * (1 - cos) + h / 2 * sin, h / 2 * (1 - cos) - w / 2 * sin
    rows = [
        [cos, when("shear_x", value, -sin), when("translate_x", -value, right)],
        [when("shear_y", value, sin), cos, when("translate_y", -value, down)],
    ]
    return jnp.stack([jnp.stack(row, -1) for row in rows], 1).astype(jnp.float32)


def _degenerate(name: str, images: Array, value: Array) -> Array:
    """What a blend starts from, int32, [B, h, w, C] or what broadcasts to it."""
    match name:
        case "brightness":
            return jnp.zeros((1, 1, 1, 1), jnp.int32)
        case "contrast":
            return primitives.mean(primitives.grey(images))
        case "colour":
            return primitives.grey(images)
        case "sharpness":
            return primitives.smooth(images)
        case _:
            return primitives.gaussian_blur(images, value)


def _table(name: str, images: Array, value: Array) -> Array:
    """New levels 0..255 for each level, int32 [B, 1 or C, 256]."""
    match name:
        case "posterize":
            return primitives.posterize_table(value)
        case "solarize":
            return primitives.solarize_table(value)
        case "solarize_add":
            return primitives.solarize_add_table(value)
        case "autocontrast":
            return primitives.autocontrast_table(images)
        case _:
            return primitives.equalize_table(primitives.histogram(images))
