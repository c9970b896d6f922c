"""The operations of policies, by name: each image has one and its value.

They are cases of three ways to change an image: an affine map, a blend, a table. Each of these takes uint8 [B, h, w, C]
and its own numbers for each image, so that a batch is computed in one pass whatever is done to its images. Blends and
tables are computed in integers: on every device they give, bit for bit, what Pillow's ImageEnhance and ImageOps give.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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


def apply(images: Array, operation: Array, value: Array, used: Sequence[str]) -> Array:
    """uint8 [B, h, w, C] after an operation, int32 [B], with a value, float32 [B], for each image."""

    results = [images]
    if any(name in used for name in _AFFINE):
        results.append(affine(images, _matrix(operation, value, *images.shape[1:3])))
    if names := [name for name in _BLENDS if name in used]:
        results.append(_blend(images, operation, value, names))
    if names := [name for name in _TABLES if name in used]:
        results.append(looked_up(images, _table_of_each(images, operation, value, names)))
    groups = [group for group in (_AFFINE, _BLENDS, _TABLES) if any(name in used for name in group)]
    return _one_of(results, [_is_in(operation, group) for group in groups])


def _is_in(operation: Array, names: Iterable[str]) -> Array:
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
        degenerate = jnp.where(chosen[:, None, None, None], _BLENDS[name](images, value), degenerate)
        factor = jnp.where(chosen, 0, factor) if name == "blur" else factor
    return blend(degenerate, images, factor)


def _table_of_each(images: Array, operation: Array, value: Array, names: Sequence[str]) -> Array:
    """The table of each image's operation where that is one of `names`: uint8 [B, C, 256]."""
    shape = (len(images), images.shape[-1], 256)
    tables = [jnp.broadcast_to(_TABLES[name](images, value), shape).astype(jnp.uint8) for name in names]
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


# What a blend starts from, int32, [B, h, w, C] or what broadcasts to it, of images and their values.
_BLENDS: dict[str, Callable[[Array, Array], Array]] = {
    "brightness": lambda images, value: jnp.zeros((1, 1, 1, 1), jnp.int32),
    "contrast": lambda images, value: mean(grey(images)),
    "colour": lambda images, value: grey(images),
    "sharpness": lambda images, value: smooth(images),
    "blur": lambda images, value: gaussian_blur(images, value),
}
# New levels 0..255 for each level, int32 [B, 1 or C, 256], of images and their values.
_TABLES: dict[str, Callable[[Array, Array], Array]] = {
    "posterize": lambda images, value: posterize_table(value),
    "solarize": lambda images, value: solarize_table(value),
    "solarize_add": lambda images, value: solarize_add_table(value),
    "autocontrast": lambda images, value: autocontrast_table(images),
    "equalize": lambda images, value: equalize_table(histogram(images)),
}


FILL = 128  # grey level of what an affine map brings in from outside the image, as in AutoAugment's own code
ONE = 1 << 14  # of a blend's factor, which is a whole number of these parts
SIGMAS = 200  # of a Gaussian blur, in hundredths of a pixel: the most that the table has


# -------------------------------------------------------------------------------------- affine map


def affine(images: Array, matrix: Array) -> Array:
    """The images under affine maps, float32 [B, 2, 3], by the nearest pixel. That with its centre at (x, y), columns
    and rows from the upper left corner, is that at matrix @ (x, y, 1).
    """
    b, h, w, channels = images.shape
    x, y = jnp.arange(w, dtype=jnp.float32) + 0.5, (jnp.arange(h, dtype=jnp.float32) + 0.5)[:, None]
    m = matrix[:, :, :, None, None]
    at = m[:, :, 0] * x + m[:, :, 1] * y + m[:, :, 2]  # [B, 2, h, w]: column and row
    column, row = jnp.floor(at[:, 0]).astype(jnp.int32), jnp.floor(at[:, 1]).astype(jnp.int32)
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    place = jnp.where(inside, row * w + column, 0).reshape(b, h * w)
    found = jax.vmap(lambda image, index: image[index])(images.reshape(b, h * w, channels), place)
    return jnp.where(inside[..., None], found.reshape(images.shape), jnp.uint8(FILL))


# ------------------------------------------------------------------------------------------- blend


def blend(degenerate: Array, images: Array, factor: Array) -> Array:
    """degenerate + factor * (image - degenerate), cut off at 0 and 255 and rounded down, as Pillow's Image.blend:
    degenerate [B, h, w, C], factor float32 [B] -> integers of 0..255, [B, h, w, C]. The factor is taken to the nearest
    2^-14, so that nothing is rounded before the end.
    """
    parts = jnp.round(factor * ONE).astype(jnp.int32)[:, None, None, None]
    base = degenerate.astype(jnp.int32)
    mixed = base * ONE + parts * (images.astype(jnp.int32) - base)
    return jnp.clip(mixed >> 14, 0, 255).astype(jnp.uint8)


def grey(images: Array) -> Array:
    """The luminance, int32 [B, h, w, 1], as Pillow's convert("L"): ITU-R 601-2; of one channel that itself."""
    wide = images.astype(jnp.int32)
    if images.shape[-1] == 1:
        return wide
    red, green, blue = (wide[..., k : k + 1] for k in range(3))
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def mean(levels: Array) -> Array:
    """The mean of int32 [B, h, w, 1], rounded half up, as int32 [B, 1, 1, 1]."""
    count = levels.shape[1] * levels.shape[2]
    total = levels.sum((1, 2, 3), keepdims=True, dtype=jnp.int32)
    return total // count + (2 * (total % count) >= count)


def smooth(images: Array) -> Array:
    """Pillow's SMOOTH, int32: of 3x3 pixels the middle counts 5, the others 1; those of the edge stay as they are."""
    wide = images.astype(jnp.int32)
    h, w = images.shape[1:3]
    if h < 3 or w < 3:
        return wide
    total = jax.lax.reduce_window(wide, np.int32(0), jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "valid")
    total += 4 * wide[:, 1:-1, 1:-1]
    # The quotient is never within 1/26 of a whole number, so float32 rounds it down rightly.
    inner = ((2 * total + 13).astype(jnp.float32) * (1 / 26)).astype(jnp.int32)
    return jax.lax.dynamic_update_slice(wide, inner, (0, 1, 1, 0))


def gaussian_blur(images: Array, sigma: Array) -> Array:
    """Pillow's GaussianBlur, sigma float32 [B]: three box blurs along rows, three along columns, in fixed point."""
    index = jnp.clip(jnp.round(sigma * 100), 0, SIGMAS).astype(jnp.int32)
    weights = jnp.asarray(_box_weights())[index][:, :, None, None, None]  # uint32 [B, 3, 1, 1, 1]
    out = images.astype(jnp.uint32)
    for axis in (2, 1):
        # A loop, because XLA would fuse three passes into one that computes everything 25 times.
        out = jax.lax.fori_loop(0, 3, lambda _, x, axis=axis: _box_blur(x, weights, axis), out)
    return out.astype(jnp.int32)


def _box_blur(levels: Array, weights: Array, axis: int) -> Array:
    """One box blur along an axis: uint32 [B, h, w, C], uint32 [B, 3, 1, 1, 1] -> uint32 [B, h, w, C]."""
    size = levels.shape[axis]
    padded = jnp.pad(levels, [(2, 2) if k == axis else (0, 0) for k in range(4)], mode="edge")
    taps = [jax.lax.slice_in_dim(padded, k, k + size, axis=axis) for k in range(5)]
    total = taps[2] * weights[:, 0] + (taps[1] + taps[3]) * weights[:, 1] + (taps[0] + taps[4]) * weights[:, 2]
    return (total + (1 << 23)) >> 24


@functools.cache
def _box_weights() -> np.ndarray:
    """uint32 [SIGMAS + 1, 3]: of the box blur for each hundredth of a pixel, the weights of pixels 0, 1 and 2 away.

    They sum to 2^24. As in Pillow's BoxBlur.c, in float32 like there (Gwosdek et al. 2011, extended box filters).
    """
    out = np.zeros((SIGMAS + 1, 3), np.uint32)
    f32 = np.float32
    for k in range(SIGMAS + 1):
        square = f32(f32(f32(k / 100) * f32(k / 100)) / f32(3))
        whole = f32(math.floor((f32(math.sqrt(12.0 * float(square) + 1.0)) - 1.0) / 2.0))
        part = f32(f32(2 * whole + 1) * f32(whole * (whole + 1) - f32(3) * square))
        part = f32(part / f32(f32(6) * f32(square - (whole + 1) * (whole + 1))))
        radius = f32(whole + part)
        inner = np.uint32(f32(1 << 24) / f32(radius * f32(2) + f32(1)))
        edge = np.uint32(((1 << 24) - (2 * int(radius) + 1) * int(inner)) // 2)
        out[k] = (inner, inner, edge) if int(radius) else (inner, edge, 0)
    return out


# ------------------------------------------------------------------------------------------- table


def looked_up(images: Array, tables: Array) -> Array:
    """Each level as its channel's table has it: uint8 [B, h, w, C], uint8 [B, C, 256] -> uint8 [B, h, w, C]."""
    b, h, w, channels = images.shape
    levels = images.reshape(b, h * w, channels).astype(jnp.int32) + 256 * jnp.arange(channels, dtype=jnp.int32)
    return jax.vmap(lambda table, index: table[index])(tables.reshape(b, -1), levels).reshape(images.shape)


def histogram(images: Array) -> Array:
    """How many pixels have each level: uint8 [B, h, w, C] -> int32 [B, C, 256]."""
    b, h, w, channels = images.shape
    levels = images.reshape(b, h * w, channels).astype(jnp.int32) + 256 * jnp.arange(channels, dtype=jnp.int32)
    counts = jax.vmap(lambda index: jnp.zeros(256 * channels, jnp.int32).at[index].add(1))(levels.reshape(b, -1))
    return counts.reshape(b, channels, 256)


LEVELS = np.arange(256, dtype=np.int32)


def posterize_table(bits: Array) -> Array:
    """The highest bits of each level alone: float32 [B], rounded to 1..8 -> int32 [B, 1, 256]."""
    lost = 8 - jnp.clip(jnp.round(bits), 1, 8).astype(jnp.int32)[:, None, None]
    return (jnp.asarray(LEVELS) >> lost) << lost


def solarize_table(threshold: Array) -> Array:
    """Levels from a threshold on inverted: float32 [B] -> int32 [B, 1, 256]."""
    return jnp.where(threshold[:, None, None] > LEVELS, LEVELS, 255 - LEVELS)


def solarize_add_table(addend: Array) -> Array:
    """Levels below 128 raised, to at most 255: float32 [B] -> int32 [B, 1, 256]."""
    raised = jnp.minimum(LEVELS + addend.astype(jnp.int32)[:, None, None], 255)
    return jnp.where(LEVELS < 128, raised, LEVELS)


def _quotient(a: Array, b: Array) -> Array:
    """a // b of a >= 0 below 2^22 and b > 0, int32: XLA fuses a table into the look-up, and divides for each pixel."""
    return ((a.astype(jnp.float32) + 0.5) / b.astype(jnp.float32)).astype(jnp.int32)


def equalize_table(counts: Array) -> Array:
    """Pillow's ImageOps.equalize, from histograms int32 [B, C, 256]: int32 [B, C, 256]."""
    last = jnp.take_along_axis(counts, _last(counts > 0), -1)  # of the highest level that occurs
    step = (counts.sum(-1, keepdims=True, dtype=jnp.int32) - last) // 255
    below = jnp.cumsum(counts, -1, dtype=jnp.int32) - counts
    return jnp.where(step > 0, jnp.minimum(_quotient(step // 2 + below, jnp.maximum(step, 1)), 255), LEVELS)


def _last(where: Array) -> Array:
    """The last index that is True, int32 [..., 1] of bool [..., n]."""
    n = where.shape[-1]
    return (n - 1 - jnp.argmax(where[..., ::-1], -1, keepdims=True)).astype(jnp.int32)


def autocontrast_table(images: Array) -> Array:
    """Pillow's ImageOps.autocontrast: the levels of each channel stretched to 0..255, as int32 [B, C, 256].

    Pillow's float64 arithmetic is sometimes one level below the exact quotient; so is this.
    """
    flat = images.reshape(images.shape[0], -1, images.shape[-1]).astype(jnp.int32)
    low, high = flat.min(1)[:, :, None], flat.max(1)[:, :, None]  # [B, C, 1]
    span = jnp.maximum(high - low, 1)
    up = jnp.clip(LEVELS - low, 0, span)
    exact = _quotient(up * 255, span)
    offsets, parts, below = _autocontrast_rounding()
    count = jnp.asarray(parts)[span]
    place = jnp.asarray(offsets)[span] + low * (count + 1) + _quotient(up * count, span)
    rounded = exact - jnp.where(exact * span == up * 255, jnp.asarray(below)[place], 0)
    return jnp.where(high > low, rounded, LEVELS)


@functools.cache
def _autocontrast_rounding() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where Pillow's float64 arithmetic falls short of a quotient 255 (level - low) / span that is a whole number.

    (int32 [256]: where a span begins, int32 [256]: the number of parts p of a span, uint8 [n]: 1 where it falls short):
    the quotient is whole at low + span k/p for k = 0..p, which is at offset[span] + low (p + 1) + k.
    """
    offsets, parts, below = np.zeros(256, np.int32), np.ones(256, np.int32), []
    count = 0
    for span in range(1, 256):
        parts[span], offsets[span] = math.gcd(255, span), count
        low = np.arange(256 - span)[:, None]
        up = np.arange(parts[span] + 1) * (span // parts[span])
        scale = 255.0 / span
        short = up * 255 // span - np.trunc((low + up) * scale + -low * scale).astype(np.int64)
        below.append(short.ravel().astype(np.uint8))
        count += short.size
    return offsets, parts, np.concatenate(below)
