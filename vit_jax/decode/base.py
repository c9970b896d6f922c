"""What a search is given, and what it finds.

B is the number of inputs, R the rows that are computed at a step: a search with K hypotheses, or K draws, for each
input has R = B K, those of one input in succession. V is the number of logits, T the room for tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..text.ids import Ids

# (the last token of each row int32 [R], cache) -> (logits [R, V] of the next ones, the cache with these tokens)
Step = Callable[[Array, Any], tuple[Array, Any]]
# (cache, rows int32 [R]) -> the cache of the rows with these numbers, in this order; R may grow. What belongs to an
# input and not to a hypothesis may stay as it is, since a row never leaves its input.
Take = Callable[[Any, Array], Any]


class Found(NamedTuple):
    """The n answers to each of B inputs; of a beam search the best first, with scores in descending order."""

    tokens: Array  # int32 [B, n, T]: those generated, the end among them, then pad
    scores: Array  # float32 [B, n]: sums of log-probabilities / penalty(length)
    lengths: Array  # int32 [B, n]: tokens of each answer, the end among them
    complete: Array  # bool [B]: False where the search needs room for more tokens than T, so that it is not over

    def without_ends(self, ids: Ids) -> Array:
        """The tokens with padding in place of ends, int32 [B, n, T]."""
        return jnp.where(self.tokens == ids.end, jnp.int32(ids.pad), self.tokens)
