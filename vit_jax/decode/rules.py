"""Which tokens may come next: ids and sequences that are banned, lengths, repeated n-grams, and what is forced.

The rules and their order are those of transformers (its logits processors), except that lengths here do not count the
decoder's first input. N-grams do: it is the first token that an answer may not repeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..config.decoding import Decoding
from ..errors import Field, UserError
from ..text.tokenizer import Ids


@dataclass(frozen=True)
class Rules:
    """The rules of a search for answers of at most `longest` tokens."""

    ids: Ids
    settings: Decoding
    longest: int

    def __call__(self, scores: Array, said: Array, place: Array) -> Array:
        """Scores of the next tokens, with -inf where a rule forbids one, and 0 where it is forced: scores [R, V], said
        int32 [R, M], place int32 []. `said` int32 [R, M] begins with the first input; what stands behind its tokens is
        not read.
        """
        self.check(scores.shape[-1])
        d, ids, tokens = self.settings, self.ids, np.arange(scores.shape[-1])
        single = {*ids.banned, *(each[0] for each in d.banned if len(each) == 1)}
        if d.no_repeat_ngram:
            scores = _without_repeats(scores, said, place, d.no_repeat_ngram)
        if single:
            scores = jnp.where(np.isin(tokens, sorted(single)), -jnp.inf, scores)
        for length in sorted({len(each) for each in d.banned} - {1}):
            scores = _without_endings(scores, said, place, np.array([s for s in d.banned if len(s) == length]))
        if d.min_length > 1:
            scores = jnp.where((tokens == ids.end) & (place + 1 < d.min_length), -jnp.inf, scores)
        for at, token in self._forced():
            scores = jnp.where(place == at, jnp.where(tokens == token, 0.0, -jnp.inf), scores)
        return scores.astype(jnp.float32)

    def forced(self, place: Array) -> Array:
        """Whether the next token, after `place` others, is forced: bool []."""
        found = jnp.zeros((), bool)
        for at, _ in self._forced():
            found |= place == at
        return found

    def penalties(self) -> np.ndarray:
        """What the sum of an answer of each length is divided by, float32 [longest + 1]; that of length 0 is 1."""
        lengths, d = np.arange(self.longest + 1, dtype=np.float64), self.settings
        base = {"hf": lengths, "gnmt": (5 + lengths) / 6}[d.penalty]
        return np.concatenate([[1.0], base[1:] ** d.length_penalty]).astype(np.float32)

    def check(self, vocabulary: int) -> None:
        """Raise UserError unless all ids are among those that are generated."""
        d, ids = self.settings, self.ids
        named = {"begin": ids.begin, "end": ids.end, "forced_begin": ids.forced_begin, "forced_end": ids.forced_end}
        listed: Iterable[tuple[str, int | None]] = (
            *named.items(),
            *(("banned", i) for i in (*ids.banned, *(i for each in d.banned for i in each))),
        )
        for name, i in listed:
            if i is not None and not 0 <= i < vocabulary:
                raise UserError(
                    Field(name),
                    f"has the id {i}, but the network gives {vocabulary} logits, of ids up to {vocabulary - 1}",
                    "give the ids of its own vocabulary",
                )
        if vocabulary < 2:
            raise UserError(
                "the network gives one logit, so that there is nothing to search", remedy="give it a head over ids"
            )

    def _forced(self) -> list[tuple[int, int]]:
        """(tokens before it, id) of each forced token; a later one replaces an earlier one at the same place."""
        both = ((0, self.ids.forced_begin), (self.longest - 1, self.ids.forced_end))
        return [(at, token) for at, token in both if token is not None]


def _without_repeats(scores: Array, said: Array, place: Array, n: int) -> Array:
    """-inf for the tokens that would complete an n-gram which the row has already, its first input included."""
    count = place + 1  # tokens of each row, with the first input
    first = said.shape[1] - n + 1  # places where an n-gram may begin
    if first < 1:
        return scores
    begin = jnp.maximum(count - (n - 1), 0)
    last = jax.lax.dynamic_slice_in_dim(said, begin, n - 1, axis=1)  # [R, n-1], those that the next token follows
    same = jnp.ones((said.shape[0], first), bool)
    for i in range(n - 1):
        same &= said[:, i : i + first] == last[:, i : i + 1]
    same &= jnp.arange(first) + n - 1 < count  # the n-gram is there whole
    return _ban(scores, jnp.where(same, said[:, n - 1 :], scores.shape[-1]))


def _without_endings(scores: Array, said: Array, place: Array, sequences: np.ndarray) -> Array:
    """-inf for the last token of each sequence [G, n] whose others are the last of the row."""
    n = sequences.shape[1]
    if said.shape[1] < n - 1:
        return scores
    begin = jnp.maximum(place + 1 - (n - 1), 0)
    last = jax.lax.dynamic_slice_in_dim(said, begin, n - 1, axis=1)  # [R, n-1]
    ends = (last[:, None] == sequences[:, :-1]).all(-1) & (place + 1 >= n - 1)  # [R, G]
    return _ban(scores, jnp.where(ends, sequences[:, -1], scores.shape[-1]))


def _ban(scores: Array, tokens: Array) -> Array:
    """Scores [R, V] with -inf at these tokens [R, G]; V stands for none."""
    rows = jnp.arange(scores.shape[0])[:, None]
    return scores.at[rows, tokens].set(-jnp.inf, mode="drop")
