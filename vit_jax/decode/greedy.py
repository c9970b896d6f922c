"""Greedy search for sequences with any step function: `step(tokens int32 [B], cache) -> logits [B, V], cache`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Step = Callable[[Array, Any], tuple[Array, Any]]


def greedy(step: Step, cache: Any, start: Array, *, end: int, length: int, pad: int = 0) -> Array:
    """Sequences of the likeliest token at each position, int32 [B, length], without `end` and filled with `pad`.

    `start` int32 [B] is the input of the first step, and each token found is that of the next. A sequence ends at its
    first `end`, else after `length` tokens; the search stops when all sequences have ended.
    """

    def more(state: tuple[Array, Array, Array, Array, Any]) -> Array:
        position, _, ended, _, _ = state
        return (position < length) & ~ended.all()

    def one(state: tuple[Array, Array, Array, Array, Any]) -> tuple[Array, Array, Array, Array, Any]:
        position, tokens, ended, found, cache = state
        logits, cache = step(tokens, cache)
        tokens = jnp.argmax(logits, -1).astype(jnp.int32)
        ended = ended | (tokens == end)
        tokens = jnp.where(ended, jnp.int32(pad), tokens)
        found = jax.lax.dynamic_update_slice_in_dim(found, tokens[:, None], position, axis=1)
        return position + jnp.int32(1), tokens, ended, found, cache

    batch = start.shape[0]
    found = jnp.full((batch, length), pad, jnp.int32)
    state = (jnp.zeros((), jnp.int32), start.astype(jnp.int32), jnp.zeros((batch,), bool), found, cache)
    return jax.lax.while_loop(more, one, state)[3]
