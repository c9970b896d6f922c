"""Pairs of sentences to ids, some of them at a time, so that neither texts nor ids have to be in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ...errors import UserError
from ...text.tokenizer import Tokenizer
from .config import SentenceData
from .pairs import Pairs

CHUNK = 10_000  # pairs at a time
Rows = list[np.ndarray]  # int32 [N] each


class Encoder:
    """Goes through the pairs of a split once, as their ids.

    `split` is its name in messages. `cut` counts the sentences that were cut so far.
    """

    def __init__(self, data: SentenceData, pairs: Pairs, split: str, source: Tokenizer, target: Tokenizer):
        self.pairs, self.sides, self.longest, self.cuts = pairs, (source, target), data.lengths[-1], data.cut
        self.split, self.where, self.cut = split, f"data.source {data.source}: {split}", 0

    def __iter__(self) -> Iterator[tuple[Rows, Rows]]:
        """(sources, targets) of some pairs after the others.

        Raises UserError naming a sentence that is empty, or too long and not to be cut.
        """
        everything, first = iter(self.pairs), 0
        while some := list(itertools.islice(everything, CHUNK)):
            # The decoder says an end, too.
            sources, targets = (
                self._encoded(side, room, texts, first)
                for side, room, texts in zip(
                    self.sides, (self.longest, self.longest - 1), zip(*some, strict=True), strict=True
                )
            )
            yield sources, targets
            first += len(some)

    def _encoded(self, tokenizer: Tokenizer, room: int, texts: tuple[str, ...], first: int) -> Rows:
        if (empty := next((i for i, text in enumerate(texts) if not text.strip()), None)) is not None:
            raise UserError(
                f"{self.where}[{first + empty}] {texts[empty]!r} is empty", remedy="mend it, or leave the pair out"
            )
        rows = []
        for i, found in enumerate(tokenizer.encode_all(texts)):
            if len(found) > room and not self.cuts:
                raise UserError(
                    f"{self.where}[{first + i}] {texts[i][:40]!r} has {len(found)} {tokenizer.unit}, which is more "
                    f"than {room}",
                    remedy="mend it, raise the last of --data.lengths, or add --data.cut to cut all such sentences",
                )
            self.cut += len(found) > room
            rows.append(tokenizer.cut(found, room) if len(found) > room else found)
        return rows


def cut_remark(split: str, cut: int, pairs: int, longest: int) -> str:
    """A sentence on how many sentences of a split were cut; empty if none was."""
    return f"{split}: {cut:,} of {2 * pairs:,} sentences are longer than {longest} and were cut" if cut else ""
