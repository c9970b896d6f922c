"""A split of texts that are corrupted anew in each epoch, and the order in which they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..order import TokenOrder
from .corrupt import Corruption
from .flat import Flat
from .sentences import Sentences


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
        """The order, with the epochs."""
        return EpochOrder(order, len(self))

    def subset(self, indices: np.ndarray) -> Denoised:
        """A split of only these texts."""
        few, numbers = self.flat.take(indices), self.numbers[indices]
        after = self.after.tolist()
        return Denoised(few, self.corruption, after, self.lengths, self.tokens, self.title, self.pads, numbers)

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """As of Sentences."""
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
