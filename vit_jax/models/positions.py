"""Positions that act inside attention: rotary, by turning queries and keys, or relative, by a bias of the scores.

Rotary positions on a grid turn queries and keys of patches by angles that depend on their row and column. The values of
a head are taken in pairs, and pair k is turned by the angle x f_k + y g_k, where x and y are the places of the patch on
the two axes (Su et al. 2021, arXiv 2104.09864, in two dimensions). Axial: the frequencies are computed, g is 0 in the
first half of the pairs and f in the second. Mixed: both are learned, for each block and head (Heo et al. 2024, arXiv
2403.13298). The product of a query and a key then depends on the difference of their places.

Relative positions are a learned bias of attention scores by the distance of key and query (Raffel et al. 2020, arXiv
1910.10683, section 2.1). A distance falls into one of few buckets: near distances have one each, far ones share some on
a log scale. Each bucket has a bias for each head.

Dimensions: B batch, H heads, N tokens, n patches (the last of the tokens), Nq queries, Nk keys, Dh head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
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
    """Initial mixed frequencies, float64 [2, H, Dh/2]: those of two axes at right angles, which each head turns.

    Heo et al. draw the direction of each head at random; here the heads share half a turn evenly.
    """
    size, along = frequencies(width, base), np.pi * np.arange(heads)[:, None] / heads
    return np.stack([np.concatenate([size * f(along), size * f(along + np.pi / 2)], 1) for f in (np.cos, np.sin)])


def angles(table: Array, frequencies: Array | None) -> Array:
    """The angles of patches, [..., H or 1, n, Dh/2], from table [..., n, Dh/2] and frequencies [2, H, Dh/2]."""
    table = table[..., None, :, :]
    if frequencies is None:
        return table
    first, second = _both(frequencies.astype(table.dtype)[:, :, None], 0)  # [H, 1, Dh/2] each
    return table[..., :1] * first + table[..., 1:] * second


def apply_rope(x: Array, angles: Array, pairs: str) -> Array:
    """Queries or keys [B, H, N, Dh], those of the last n tokens turned by angles [..., n, Dh/2], in x's dtype."""
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


def bucket(distance: np.ndarray, buckets: int, far: int, causal: bool) -> np.ndarray:
    """The bucket of each distance, computed in numpy so that no device's logarithm can move a boundary."""
    first = 0 if causal else np.where(distance > 0, buckets // 2, 0)
    buckets = buckets if causal else buckets // 2
    distance = np.maximum(-distance, 0) if causal else np.abs(distance)
    exact = buckets // 2
    along = np.log(np.maximum(distance, exact) / exact) / np.log(far / exact)
    on_log_scale = np.minimum(exact + (along * (buckets - exact)).astype(np.int32), buckets - 1)
    return (first + np.where(distance < exact, distance, on_log_scale)).astype(np.int32)


class RelativePosition(nnx.Module):
    """The bias of a self-attention's scores."""

    def __init__(self, buckets: int, heads: int, far: int, causal: bool, dtype: Any = jnp.float32):
        self.far, self.causal = far, causal
        self.table = nnx.Param(jnp.zeros((buckets, heads), dtype))

    def __call__(self, queries: Any, keys: Any) -> Array:
        """The bias of queries and keys that both begin at place 0: [1, H, Nq, Nk].

        It depends on j - i alone. One row of all distances, repeated with a period that is one longer than the rows
        which it is then cut into, moves by one from row to row: so its gradient is a sum, not a scatter.
        """
        if not isinstance(queries, int):
            return self.of_free_lengths(queries, keys)
        period = queries + keys
        line = self.line(1 - queries, keys + 1)  # [H, period], the last of which is never read
        lines = jnp.broadcast_to(line[:, None], (len(line), queries, period)).reshape(len(line), -1)
        lines = lines[:, queries - 1 : queries * period - 1]
        return lines.reshape(1, len(line), queries, period - 1)[..., :keys]

    def of_free_lengths(self, queries: Any, keys: Any) -> Array:
        """The same where the lengths are symbols, as when a program for any length is traced."""
        near = np.arange(-self.far, self.far + 1)  # farther ones are in the same bucket
        rows = jnp.asarray(bucket(near, self.table.shape[0], self.far, self.causal))
        query, key = (jax.lax.broadcasted_iota(jnp.int32, (queries, keys), axis) for axis in (0, 1))
        return self.table[...][rows[jnp.clip(key - query, -self.far, self.far) + self.far]].transpose(2, 0, 1)[None]

    def at(self, index: Array, length: int) -> Array:
        """The bias of one query to the keys up to it: index int32 [] -> [1, H, 1, length]."""
        line = jnp.pad(self.line(1 - length, 1), ((0, 0), (0, length)))
        return jax.lax.dynamic_slice_in_dim(line, length - 1 - index, length, 1)[None, :, None]

    def line(self, first: int, end: int) -> Array:
        """The biases of the distances first, first + 1, ... end - 1: [H, end - first]."""
        rows = bucket(np.arange(first, end), self.table.shape[0], self.far, self.causal)
        return self.table[...][rows].T
