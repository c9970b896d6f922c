"""Search over the steps of a decoder: greedy, by beams, or sampling, with any network that gives the next logits.

B is the number of inputs, R the rows that are computed at a step: a search with K hypotheses, or K draws, for each
input has R = B K, those of one input in succession. V is the number of logits, T the room for tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..config.decoding import Decoding, check_decoding
from ..errors import ArgumentError
from ..text.tokenizer import Ids
from .rules import Rules

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


def generate(
    model: Any,
    memory: Array,
    memory_padding: Array | None,
    ids: Ids,
    settings: Decoding,
    room: int,
    rows: Array | None = None,
    keys: Array | None = None,
) -> Found:
    """What a network generates from memories, by `search`: memory [B, S, D], memory_padding bool [B, S]."""
    cache = model.init_cache(memory, memory_padding, min(room, settings.max_length or room))
    rows = jnp.ones(memory.shape[:1], bool) if rows is None else rows
    return search(model.decode_step, lambda cache, rows: cache.take(rows), cache, rows, ids, settings, room, keys)


def search(
    step: Step, take: Take, cache: Any, rows: Array, ids: Ids, settings: Decoding, room: int, keys: Array | None = None
) -> Found:
    """The answers to B inputs by greedy search, beam search or sampling, as `settings` says: `nbest` to each. Shapes:
    rows bool [B], keys PRNG keys [B].

    It can be traced, with `settings`, `ids` and `room` static. Log-probabilities and scores are float32; a forced token
    adds 0.
    """
    d, longest = check_decoding(settings), settings.max_length or room
    rules, room = Rules(ids, d, longest), min(room, longest)
    if d.beam > 1:
        *answers, complete = beam_search(step, take, cache, rows, rules, room)
        tokens, scores, lengths = (x[:, : d.nbest] for x in answers)
        return Found(tokens, scores, lengths, complete)
    if not d.sample:
        return one_by_one(step, cache, rows, rules, room, likeliest)
    if keys is None:
        raise ArgumentError("keys are missing: sampling needs a PRNG key for each row")
    batch, n = rows.shape[0], d.nbest
    several = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n)))(keys).reshape(-1)
    every = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), n)
    *answers, complete = one_by_one(step, take(cache, every), rows[every], rules, room, draw_tokens(d, several))
    tokens, scores, lengths = (x.reshape(batch, n, *x.shape[2:]) for x in answers)
    return Found(tokens, scores, lengths, complete.reshape(batch, n).all(1))


# One token after the other for each row by itself: the likeliest one (greedy search), or a random one.

Choose = Callable[[Array, Array], Array]  # (scores float32 [R, V], place int32 []) -> tokens int32 [R]


class State(NamedTuple):
    """What the loop for single rows carries."""

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


# Beam search: at each step the K likeliest beginnings of an answer go on, and the K best answers are kept. It finds
# what `generate` of transformers finds. That differs from the textbook in what ends a search (`_goes_on`), and in that
# an answer counts only if it is among the first K candidates of its step.

NEVER = -1e9  # added to the score of what is not to be chosen; finite, so that what is banned stays below it


class Beams(NamedTuple):
    """What the loop of beams carries: hypotheses by falling sums, answers by falling scores."""

    place: Array  # int32 []: tokens of each hypothesis so far
    tokens: Array  # int32 [B, K, room + 1]: the first input, and these tokens
    sums: Array  # float32 [B, K]: of their log-probabilities
    answers: Array  # int32 [B, K, room + 1]: the first input, and the tokens of the best answers so far
    scores: Array  # float32 [B, K]: of the answers; NEVER where there is none yet
    lengths: Array  # int32 [B, K]: tokens of the answers; 0 where there is none yet
    open: Array  # bool [B]: whether a hypothesis may yet become a better answer
    cache: Any


def beam_search(step: Step, take: Take, cache: Any, rows: Array, rules: Rules, room: int) -> Found:
    """The K best answers, [B, K, room], to each input, until those of all inputs are over; rows bool [B]."""
    ids, (batch,), beam = rules.ids, rows.shape, rules.settings.beam
    at_once = rules.settings.early_stopping == "true"
    penalties = jnp.asarray(rules.penalties())

    def over(s: Beams) -> Array:
        return ~s.open | (s.lengths > 0).all(1) if at_once else ~s.open

    def one(s: Beams) -> Beams:
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
        return Beams(count, _of(tokens, kept), running, answers, scores, _of(lengths, best), goes_on, cache)

    tokens = jnp.full((batch, beam, room + 1), ids.pad, jnp.int32).at[:, :, 0].set(ids.begin)
    # All hypotheses begin alike: only the first may go on, lest the same answer be found K times.
    sums = jnp.full((batch, beam), NEVER, jnp.float32).at[:, 0].set(0)
    scores, lengths = jnp.full_like(sums, NEVER), jnp.zeros((batch, beam), jnp.int32)
    cache = take(cache, jnp.repeat(jnp.arange(batch, dtype=jnp.int32), beam))
    start = Beams(jnp.zeros((), jnp.int32), tokens, sums, tokens, scores, lengths, rows, cache)
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
