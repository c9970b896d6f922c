"""Beam search: at each step the K likeliest beginnings of an answer go on, and the K best answers are kept.

It finds what `generate` of transformers finds. That differs from the textbook in what ends a search (`_goes_on`), and
in that an answer counts only if it is among the first K candidates of its step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .base import Found, Step, Take
from .rules import Rules

NEVER = -1e9  # added to the score of what is not to be chosen; finite, so that what is banned stays below it


class State(NamedTuple):
    """What the loop carries. Hypotheses are in descending order of their sums, answers of their scores."""

    place: Array  # int32 []: tokens of each hypothesis so far
    tokens: Array  # int32 [B, K, room + 1]: the first input, and these tokens
    sums: Array  # float32 [B, K]: of their log-probabilities
    answers: Array  # int32 [B, K, room + 1]: the first input, and the tokens of the best answers so far
    scores: Array  # float32 [B, K]: of the answers; NEVER where there is none yet
    lengths: Array  # int32 [B, K]: tokens of the answers; 0 where there is none yet
    open: Array  # bool [B]: whether a hypothesis may yet become a better answer
    cache: Any


def beam_search(step: Step, take: Take, cache: Any, rows: Array, rules: Rules, room: int) -> Found:
    """The K best answers to each input. The search stops when that of all inputs is over. Shapes: rows bool [B] ->
    tokens [B, K, room].
    """
    ids, (batch,), beam = rules.ids, rows.shape, rules.settings.beam
    at_once = rules.settings.early_stopping == "true"
    penalties = jnp.asarray(rules.penalties())

    def over(s: State) -> Array:
        return ~s.open | (s.lengths > 0).all(1) if at_once else ~s.open

    def one(s: State) -> State:
        last = jax.lax.dynamic_index_in_dim(s.tokens, s.place, 2, keepdims=False)  # [B, K]
        logits, cache = step(last.reshape(-1), s.cache)
        gains = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        gains = rules(gains, s.tokens.reshape(batch * beam, -1), s.place)
        sums, source, token = _candidates(s.sums, gains.reshape(batch, beam, -1))
        count = s.place + jnp.int32(1)
        tokens = jax.lax.dynamic_update_slice_in_dim(_of(s.tokens, source), token[:, :, None], count, axis=2)
        ended = (token == ids.end) | (count == rules.longest)  # [B, 2K]

        running, kept = _running(sums, ended, beam)
        moved = jnp.arange(batch, dtype=jnp.int32)[:, None] * beam + _of(source, kept)
        cache = take(cache, moved.reshape(-1))

        counts = ended & (jnp.arange(2 * beam) < beam) & ~over(s)[:, None]
        every = jnp.concatenate([s.scores, sums / penalties[count] + _never(~counts)], 1)
        lengths = jnp.concatenate([s.lengths, jnp.where(counts, count, 0)], 1)
        scores, best = jax.lax.top_k(every, beam)
        answers = _of(jnp.concatenate([s.answers, tokens], 1), best)
        goes_on = s.open & _goes_on(running[:, 0], scores[:, -1], rules, penalties, count)
        return State(count, _of(tokens, kept), running, answers, scores, _of(lengths, best), goes_on, cache)

    tokens = jnp.full((batch, beam, room + 1), ids.pad, jnp.int32).at[:, :, 0].set(ids.begin)
    # All hypotheses begin alike: only the first may go on, lest the same answer be found K times.
    sums = jnp.full((batch, beam), NEVER, jnp.float32).at[:, 0].set(0)
    scores, lengths = jnp.full_like(sums, NEVER), jnp.zeros((batch, beam), jnp.int32)
    cache = take(cache, jnp.repeat(jnp.arange(batch, dtype=jnp.int32), beam))
    start = State(jnp.zeros((), jnp.int32), tokens, sums, tokens, scores, lengths, rows, cache)
    s = jax.lax.while_loop(lambda s: (s.place < room) & ~over(s).all(), one, start)
    return Found(s.answers[:, :, 1:], s.scores, s.lengths, over(s) | (s.place == rules.longest))


def _candidates(sums: Array, gains: Array) -> tuple[Array, Array, Array]:
    """The 2K likeliest hypotheses with one token more: (their sums, which beam each goes on, its token), [B, 2K] each.

    2K, so that K are left to go on where the others end. `gains` [B, K, V] are log-probabilities of the next tokens.
    """
    batch, beam, vocabulary = gains.shape
    best, index = jax.lax.top_k((sums[:, :, None] + gains).reshape(batch, -1), 2 * beam)
    index = index.astype(jnp.int32)
    return best, index // vocabulary, index % vocabulary


def _running(sums: Array, ended: Array, beam: int) -> tuple[Array, Array]:
    """(sums, numbers), [B, K] each, of the K best of the candidates [B, 2K] that have not ended."""
    return jax.lax.top_k(sums + _never(ended), beam)


def _never(unwanted: Array) -> Array:
    """What is added to scores so that the unwanted ones are not chosen, float32."""
    return jnp.where(unwanted, jnp.float32(NEVER), jnp.float32(0))


def _goes_on(best: Array, worst: Array, rules: Rules, penalties: Array, count: Array) -> Array:
    """Whether the best hypothesis [B] may become better than the worst of the kept answers [B], as transformers judges.

    The sum of a hypothesis only falls, but its penalty grows. It is judged by the penalty of its present length
    `count`; with early_stopping never by that of the greatest length, so that no better answer is missed.
    """
    d = rules.settings
    longest = d.early_stopping == "never" and d.length_penalty > 0
    return best / penalties[rules.longest if longest else count] > worst


def _of(x: Array, index: Array) -> Array:
    """The entries [B, M, ...] of x [B, N, ...] with these numbers [B, M]."""
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1 for _ in x.shape[2:])), 1)
