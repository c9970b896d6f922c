"""One token after the other for each row by itself: the likeliest one (greedy search), or a random one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..config.decoding import Decoding
from .base import Found, Step
from .rules import Rules

Choose = Callable[[Array, Array], Array]  # (scores float32 [R, V], place int32 []) -> tokens int32 [R]


class State(NamedTuple):
    """What the loop carries."""

    place: Array  # int32 []: tokens of each row so far
    tokens: Array  # int32 [R, room + 1]: the first input, and these tokens
    sums: Array  # float32 [R]: of their log-probabilities
    lengths: Array  # int32 [R]: tokens up to the end
    ended: Array  # bool [R]
    cache: Any


def one_by_one(step: Step, cache: Any, rows: Array, rules: Rules, room: int, choose: Choose) -> Found:
    """One answer to each row. The search stops when all have ended. Shapes: rows bool [R] -> tokens [R, 1, room]."""
    ids, count = rules.ids, rows.shape[0]

    def more(s: State) -> Array:
        return (s.place < room) & ~s.ended.all()

    def one(s: State) -> State:
        logits, cache = step(jax.lax.dynamic_index_in_dim(s.tokens, s.place, 1, keepdims=False), s.cache)
        logits = logits.astype(jnp.float32)
        chosen = choose(rules(logits, s.tokens, s.place), s.place)
        gains = jnp.take_along_axis(logits, chosen[:, None], 1)[:, 0] - jax.nn.logsumexp(logits, axis=-1)
        gains = jnp.where(s.ended | rules.forced(s.place), jnp.float32(0), gains)
        chosen = jnp.where(s.ended, jnp.int32(ids.pad), chosen)
        place = s.place + jnp.int32(1)
        tokens = jax.lax.dynamic_update_slice_in_dim(s.tokens, chosen[:, None], place, axis=1)
        ended = s.ended | (chosen == ids.end)
        return State(place, tokens, s.sums + gains, s.lengths + ~s.ended, ended, cache)

    tokens = jnp.full((count, room + 1), ids.pad, jnp.int32).at[:, 0].set(ids.begin)
    nothing = jnp.zeros((count,), jnp.float32), jnp.zeros((count,), jnp.int32)
    s = jax.lax.while_loop(more, one, State(jnp.zeros((), jnp.int32), tokens, *nothing, ~rows, cache))
    scores = s.sums / jnp.asarray(rules.penalties())[s.lengths]
    complete = s.ended | (s.place == rules.longest)
    return Found(s.tokens[:, None, 1:], scores[:, None], s.lengths[:, None], complete)


def likeliest(scores: Array, place: Array) -> Array:
    """The token with the highest score, the first of several: [R, V] -> int32 [R]."""
    return jnp.argmax(scores, -1).astype(jnp.int32)


def draw_tokens(d: Decoding, keys: Array) -> Choose:
    """A random token of those that the settings leave, with a PRNG key for each row [R]."""

    def choose(scores: Array, place: Array) -> Array:
        def one(key: Array, row: Array) -> Array:
            noise = jax.random.gumbel(jax.random.fold_in(key, place), row.shape, jnp.float32, "low")
            return jnp.argmax(row + noise, -1).astype(jnp.int32)

        return jax.vmap(one)(keys, filter_logits(scores, d))

    return choose


def filter_logits(scores: Array, d: Decoding) -> Array:
    """Logits / temperature, with -inf where top_k and then top_p leave a token out; of equal ones all stay. Shapes:
    scores logits [R, V].

    top_p leaves the likeliest tokens of those of top_k, until their probabilities sum up to it (Holtzman et al. 2020,
    arXiv 1904.09751).
    """
    scores = scores / jnp.float32(d.temperature)
    kept = min(d.top_k or scores.shape[-1], scores.shape[-1])
    if kept == scores.shape[-1] and d.top_p == 1:
        return scores
    best = jax.lax.top_k(scores, kept)[0]  # [R, k], the best first
    least = best[:, -1:]
    if d.top_p < 1:
        probabilities = jax.nn.softmax(best, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities  # of the tokens that are likelier
        least = jnp.where(before < jnp.float32(d.top_p), best, jnp.inf).min(-1, keepdims=True)
    return jnp.where(scores >= least, scores, -jnp.inf)
