"""Texts as pairs for pretraining: what is taken out of a text, as the source, and what was taken out, as the target.

Span corruption: Raffel et al. 2020 (arXiv 1910.10683). It is a function of whole numbers: the seed of the run, the
epoch and the number of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.order import CORRUPTION, TokenOrder, permutation
from ..data.texts.config import SentenceData
from ..data.texts.sentences import Flat, Sentences
from ..errors import Field, UserError
from ..text.tokenizer import Tokenizer

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

    def split(self, texts: Flat, *how: Any) -> Denoised:
        return Denoised(texts, self, *how)


def segments(items: int, count: int, *seed: int) -> np.ndarray:
    """The lengths, int [count], of a random partition of items into so many parts that are not empty."""
    cuts = np.sort(permutation(items - 1, *seed)[: count - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [items]]))


def corruption_of(data: SentenceData, source: Tokenizer, seed: int) -> Corruption:
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


class Denoised(Sentences):
    """The n texts of one split, each as a source with something taken out, and a target that says it: numbers int [n].

    An index is that of a text plus n times the epoch in which it is taken; evaluation takes all in epoch 0.
    """

    def __init__(
        self,
        texts: Flat,
        corruption: Corruption,
        after: Sequence[int],
        lengths: Sequence[int],
        tokens: int,
        title: str,
        pads: tuple[int, int],
        numbers: np.ndarray | None = None,
    ):
        self.flat, self.corruption, self.after = texts, corruption, np.array(after, np.int32)
        self.lengths, self.tokens, self.title, self.pads = tuple(lengths), tokens, title, pads
        self.numbers = np.arange(len(texts)) if numbers is None else numbers
        sizes = np.array([0, 0, *map(self._size, range(2, int(texts.lengths.max(initial=2)) + 1))])
        self.longest = sizes[texts.lengths]
        self.padded = np.array(self.lengths, np.int32)[np.searchsorted(self.lengths, self.longest)]

    def _size(self, length: int) -> int:
        """The most ids of a source or of a decoder's inputs that a text of a length becomes."""
        source, target = self.corruption.sizes(length)
        return max(source + len(self.after), target + 1)

    def __len__(self) -> int:
        return len(self.flat)

    @property
    def source(self) -> np.ndarray:
        """All sources of epoch 0, padded: int32 [n, L]."""
        return self._pairs(np.arange(len(self)), self.lengths[-1])["source"]

    @property
    def target(self) -> np.ndarray:
        """All targets of epoch 0, padded: int32 [n, L-1]."""
        return self._pairs(np.arange(len(self)), self.lengths[-1])["target"]

    @property
    def references(self) -> Sequence[str]:
        """None: what is said of a text has sentinels, which no text has."""
        return ()

    def ordered(self, order: TokenOrder) -> EpochOrder:
        return EpochOrder(order, len(self))

    def subset(self, indices: np.ndarray) -> Denoised:
        few, numbers = self.flat.take(indices), self.numbers[indices]
        after = self.after.tolist()
        return Denoised(few, self.corruption, after, self.lengths, self.tokens, self.title, self.pads, numbers)

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return self._pairs(indices, int(self.padded[indices % len(self)].max()))

    def _pairs(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """{"source": int32 [k, length], "target": int32 [k, length-1]}."""
        shape = len(indices), length
        source, target = (np.full(shape, pad, np.int32) for pad in self.pads)
        for row, (epoch, i) in enumerate(zip(*np.divmod(indices, len(self)), strict=True)):
            start = self.flat.starts[i]
            text = self.flat.ids[start : start + self.flat.lengths[i]]
            left, right = self.corruption.pair(text, int(epoch), int(self.numbers[i]))
            left = np.concatenate([left, self.after])
            source[row, : len(left)], target[row, : len(right)] = left, right
        return {"source": source, "target": target[:, :-1]}


class EpochOrder:
    """An order whose indices tell the epoch, too: that of an example plus the epoch times the number of all."""

    def __init__(self, order: TokenOrder, total: int):
        self.order, self.total = order, total

    def __getattr__(self, name: str) -> Any:
        return getattr(self.order, name)

    def indices(self, step: int) -> np.ndarray:
        """int64 [k]: the examples of a step, counted from 0, and their epoch."""
        return self.order.indices(step) + step // self.order.steps_per_epoch * self.total
