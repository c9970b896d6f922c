"""Pairs of sentences to ids, some of them at a time, so that neither texts nor ids have to be in memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from ...errors import UserError
from ...files.lines import quote
from ...text.spoken import prefix_of
from ...text.tokenizer import Tokenizer, encode_named
from .config import SentenceData
from .pairs import Pairs, place

CHUNK = 10_000
Rows = list[np.ndarray]  # int32 [N]


class Encoder:
    """Goes through the pairs of a split once, as their ids. `cut` counts the sentences that were cut so far."""

    def __init__(self, data: SentenceData, pairs: Pairs, source: Tokenizer, target: Tokenizer):
        self.pairs, self.sides, self.longest, self.cuts = pairs, (source, target), data.lengths[-1], data.cut
        self.source, self.cut = f"data.source {data.source}", 0
        self.prefix = prefix_of(data.prefix, data.task, source.files)

    def __iter__(self) -> Iterator[tuple[Rows, Rows]]:
        """(sources, targets) of some pairs after the others."""
        everything, first = iter(self.pairs), 0
        while some := list(itertools.islice(everything, CHUNK)):
            # The decoder says an end, too.
            texts, rooms = zip(*some, strict=True), (self.longest, self.longest - 1)
            sources, targets = (self._encoded(*each, first) for each in zip((0, 1), rooms, texts, strict=True))
            yield sources, targets
            first += len(some)

    def _encoded(self, side: int, room: int, texts: tuple[str, ...], first: int) -> Rows:
        tokenizer, rows = self.sides[side], []
        for i, text in enumerate(texts):
            if not text.strip():
                raise UserError(self._where(side, first + i), "is empty", "mend it, or leave the pair out")
        texts = texts if side else tuple(self.prefix + text for text in texts)
        for i, found in enumerate(encode_named(tokenizer, texts, lambda i: self._where(side, first + i))):
            if len(found) > room and not self.cuts:
                raise UserError(
                    self._where(side, first + i),
                    f"{quote(texts[i])} has {len(found)} {tokenizer.unit}, which is more than {room}",
                    "mend it, raise the last of `data.lengths`, or add `data.cut True` to cut all such sentences",
                )
            self.cut += len(found) > room
            rows.append(tokenizer.cut(found, room) if len(found) > room else found)
        return rows

    def _where(self, side: int, i: int) -> str:
        """Names a sentence of pair i of the split."""
        return f"{self.source}: {place(self.pairs, side, i)}"


class TextEncoder(Encoder):
    """Goes through texts once, as their ids without ends, in parts of at most `longest`; targets are empty."""

    def __init__(self, data: SentenceData, pairs: Pairs, source: Tokenizer, target: Tokenizer, longest: int):
        super().__init__(data, pairs, source, target)
        self.longest = longest

    def __iter__(self) -> Iterator[tuple[Rows, Rows]]:
        """(parts of texts, as many empty targets) of some texts after the others."""
        everything, first = iter(self.pairs), 0
        while some := list(itertools.islice(everything, CHUNK)):
            texts = [text for text, _ in some]
            ids = encode_named(self.sides[1], texts, functools.partial(self._place, first))
            parts = [x[start : start + self.longest] for x in ids for start in range(0, len(x), self.longest)]
            parts = [part for part in parts if len(part) > 1]  # of one token nothing can be taken out
            yield parts, [np.zeros(0, np.int32)] * len(parts)
            first += len(some)

    def _place(self, first: int, i: int) -> str:
        """Names text `first` + i."""
        return self._where(0, first + i)


def cut_remark(split: str, cut: int, pairs: int, longest: int) -> str:
    """A sentence on how many sentences of a split were cut; empty if none was."""
    return f"{split}: {cut:,} of {2 * pairs:,} sentences are longer than {longest} and were cut" if cut else ""
