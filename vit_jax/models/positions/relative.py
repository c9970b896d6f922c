"""Relative positions: a learned bias of attention scores by the distance of key and query (Raffel et al. 2020).

That is arXiv 1910.10683, section 2.1. A distance falls into one of few buckets: near distances have one each, far ones
share some on a log scale. Each bucket has a bias for each head. Dimensions: H heads, Nq queries, Nk keys.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array


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
