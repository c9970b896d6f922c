"""Search for a sequence, over any step function: `step(tokens int32 [B], cache) -> logits [B, V], cache`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Step = Callable[[Array, Any], tuple[Array, Any]]


def greedy(step: Step, cache: Any, start: Array, *, end: int, length: int, pad: int = 0) -> Array:
    """The likeliest token at each place, given those before it: int32 [B, length], without `end`, then `pad`.

    `start` int32 [B] is what the first step reads. A sequence is over with its first `end`; the search stops
    when all are. One that never ends fills its row.
    """

    def more(state: tuple[Array, Array, Array, Array, Any]) -> Array:
        place, _, over, _, _ = state
        return (place < length) & ~over.all()

    def one(state: tuple[Array, Array, Array, Array, Any]) -> tuple[Array, Array, Array, Array, Any]:
        place, tokens, over, found, cache = state
        logits, cache = step(tokens, cache)
        tokens = jnp.argmax(logits, -1).astype(jnp.int32)
        over = over | (tokens == end)
        tokens = jnp.where(over, jnp.int32(pad), tokens)
        found = jax.lax.dynamic_update_slice_in_dim(found, tokens[:, None], place, axis=1)
        return place + jnp.int32(1), tokens, over, found, cache

    batch = start.shape[0]
    found = jnp.full((batch, length), pad, jnp.int32)
    state = (jnp.zeros((), jnp.int32), start.astype(jnp.int32), jnp.zeros((batch,), bool), found, cache)
    return jax.lax.while_loop(more, one, state)[3]
