"""Rotary positions on a grid: queries and keys of patches are turned by angles that depend on their row and column.

The values of a head are taken in pairs, and pair k is turned by the angle x f_k + y g_k, where x and y are the places
of the patch on the two axes (Su et al. 2021, arXiv 2104.09864, in two dimensions). Axial: the frequencies are computed,
g is 0 in the first half of the pairs and f in the second. Mixed: both are learned, for each block and head (Heo et al.
2024, arXiv 2403.13298). The product of a query and a key then depends on the difference of their places.

Dimensions: B batch, H heads, N tokens, n patches (the last of the tokens), Dh head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def patch_positions(
    grid: tuple[int, int], kind: str, first: str, offset: float = 0.0, reference: tuple[int, int] = (0, 0)
) -> np.ndarray:
    """The places of the patches of a grid on the first and the second axis -> [n, 2], float64, row by row."""
    xp, axes = library(grid), []
    for size, scaled in zip(grid, reference, strict=True):
        indices = xp.arange(size, dtype=float)
        if kind == "centres":
            axes.append(2 * math.pi * ((indices + 0.5) * 2 / size - 1))
        else:
            axes.append((indices + offset) * (scaled / size if scaled else 1.0))
    rows, columns = (axis.reshape(-1) for axis in xp.meshgrid(*axes, indexing="ij"))
    return xp.stack([rows, columns] if first == "rows" else [columns, rows], axis=-1)


def library(lengths: Iterable[Any]) -> Any:
    """numpy, or jax where a length is free while `jax.export` traces: numpy makes no arrays of such."""
    return np if all(isinstance(each, int | np.integer) for each in lengths) else jnp


def frequencies(width: int, base: float, periods: str = "exact") -> np.ndarray:
    """The frequencies of one axis: base^(-4k / Dh) for k = 0, 1, ... Returns float64 [Dh/4]."""
    exponents = 4.0 * np.arange(width // 4) / width
    return base**-exponents if periods == "exact" else 1 / (base**exponents).astype(jnp.bfloat16).astype(np.float64)


def axial(places: np.ndarray, width: int, base: float, periods: str = "exact") -> np.ndarray:
    """Axial angles [n, Dh/2], float64, of places [n, 2]: those of the first axis, then those of the second."""
    of_axes = [places[:, i, None] * frequencies(width, base, periods) for i in range(2)]
    return (np if isinstance(places, np.ndarray) else jnp).concatenate(of_axes, axis=1)


def mixed_frequencies(heads: int, width: int, base: float) -> np.ndarray:
    """Initial mixed frequencies: those of two axes at right angles, which each head turns. Returns [2, H, Dh/2],
    float64.

    Heo et al. draw the direction of each head at random; here the heads share half a turn evenly.
    """
    size, along = frequencies(width, base), np.pi * np.arange(heads)[:, None] / heads
    return np.stack([np.concatenate([size * f(along), size * f(along + np.pi / 2)], 1) for f in (np.cos, np.sin)])


def angles(table: Array, frequencies: Array | None) -> Array:
    """The angles by which queries and keys of patches are turned: table [..., n, Dh/2], frequencies [2, H, Dh/2] ->
    [..., H or 1, n, Dh/2].
    """
    table = table[..., None, :, :]
    if frequencies is None:
        return table
    first, second = _both(frequencies.astype(table.dtype)[:, :, None], 0)  # [H, 1, Dh/2] each
    return table[..., :1] * first + table[..., 1:] * second


def apply_rope(x: Array, angles: Array, pairs: str) -> Array:
    """Queries or keys with those of the last n tokens turned: x keys [B, H, N, Dh], angles [..., n, Dh/2] -> [B, H, N,
    Dh] in the dtype of x.
    """
    first, axis = x.shape[2] - angles.shape[-2], -2 if pairs == "halves" else -1
    patches = x[:, :, first:].astype(angles.dtype)
    split = patches.reshape(*patches.shape[:-1], *((2, -1) if pairs == "halves" else (-1, 2)))
    a, b = _both(split, axis)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis).reshape(patches.shape).astype(x.dtype)
    return jnp.concatenate([x[:, :, :first], turned], axis=2) if first else turned


def _both(x: Array, axis: int) -> tuple[Array, Array]:
    """The two parts of x along an axis of length 2. Unpacking x is an operation from jax 0.12 on, unknown to ONNX."""
    return lax.index_in_dim(x, 0, axis, keepdims=False), lax.index_in_dim(x, 1, axis, keepdims=False)
