"""Texts as pairs for pretraining: what is taken out of a text, as the source, and what was taken out, as the target.

Span corruption: Raffel et al. 2020 (arXiv 1910.10683). It is a function of whole numbers: the seed of the run, the
epoch and the number of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import Field, UserError
from ...text.tokenizer import Tokenizer
from ..order import CORRUPTION, permutation
from .config import SentenceData

SENTINEL = "<extra_id_{}>"  # stands for the span of that number that was taken out
RATE = 0.15  # share of tokens that is taken out
MOST = 1000


@dataclass(frozen=True)
class Corruption:
    """The corruption of a run's texts; `sentinels` are ids, the first one first."""

    rate: float  # share of tokens that is taken out
    mean: float
    sentinels: np.ndarray
    seed: int

    def counts(self, length: int) -> tuple[int, int]:
        """(tokens that are taken out, spans of them) of a text of `length` tokens, at least 2; as T5 counts them."""
        noise = min(max(round(length * self.rate), 1), length - 1)
        return noise, min(max(round(noise / self.mean), 1), noise, length - noise)

    def sizes(self, length: int) -> tuple[int, int]:
        """The ids of (source, target) that a text of `length` tokens becomes, without ends."""
        noise, spans = self.counts(length)
        return length - noise + spans, noise + spans + 1

    def pair(self, text: np.ndarray, epoch: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The source and the target that a text becomes: text int [N]."""
        key, length = (CORRUPTION, self.seed, epoch, number), len(text)
        noise, spans = self.counts(length)
        out, kept = (segments(n, spans, *key, i) for i, n in enumerate((noise, length - noise)))
        ends = np.cumsum(np.stack([kept, out], 1).reshape(-1))  # kept and taken out in turn, the first one kept
        parts = np.split(text, ends[:-1])
        marks = self.sentinels[: spans + 1, None]
        source = [x for i in range(spans) for x in (parts[2 * i], marks[i])]
        target = [x for i in range(spans) for x in (marks[i], parts[2 * i + 1])]
        return np.concatenate(source).astype(np.int32), np.concatenate([*target, marks[spans]]).astype(np.int32)

    def longest(self, room: int, ends: int) -> int:
        """The most tokens of a text whose source, with so many `ends`, and target, with one, fit into `room` ids."""
        for length in range(int(2 * room), 1, -1):
            source, target = self.sizes(length)
            if source + ends <= room and target + 1 <= room:
                return length
        return 1


def segments(items: int, count: int, *seed: int) -> np.ndarray:
    """The lengths, int [count], of a random partition of items into so many parts that are not empty."""
    cuts = np.sort(permutation(items - 1, *seed)[: count - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [items]]))


def corruption_of(data: SentenceData, source: Tokenizer, seed: int) -> Corruption:
    """The corruption that a run states."""
    found = [source.number(SENTINEL.format(i)) for i in range(MOST)]
    known = found[: found.index(None)] if None in found else found
    out = Corruption(RATE, data.corrupt_length, np.array(known, np.int32), seed)
    longest = out.longest(data.lengths[-1], len(source.after))
    if longest < 2:
        what = f"is {data.lengths[-1]}, in which no text of two tokens has room"
        raise UserError(Field("data.lengths"), what, "give greater lengths")
    needed = 1 + out.counts(longest)[1]
    if len(known) < needed:
        has = (
            f"has {len(known)} sentinels, {SENTINEL.format(0)} and so on,"
            if known
            else "has no sentinels (<extra_id_0>)"
        )
        raise UserError(
            f"data.tokenizer {data.tokenizer}",
            f"{has} and texts of {longest} tokens, which the last of data.lengths allows, need {needed}",
            "give the folder of a tokenizer of T5, or lower data.lengths" if known else "give the folder of one of T5",
        )
    return out
