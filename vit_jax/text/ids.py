"""The ids of a vocabulary that data, loss and search treat in a way of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ids:
    """What the special ids of a vocabulary are; each tokenizer has its own, so no other code knows their numbers.

    Our words have 0, 1 and 2 as pad, begin and end; Marian has 0 as end, and its last id as both pad and begin; BART
    pads with 1 and has 2 as both begin and end.
    """

    pad: int  # fills rows up; never part of a sentence
    begin: int  # the decoder's first input
    end: int  # ends a target
    unknown: int | None = None  # stands for any word outside the vocabulary; None: nothing is outside
    banned: tuple[int, ...] = ()  # never generated
    forced_begin: int | None = None  # the first token generated, where one is forced (mBART: the language)
    forced_end: int | None = None  # the token at the greatest length, where one is forced

    def until_end(self, row: Iterable[int]) -> list[int]:
        """The ids of a row before its first end or padding."""
        return [int(i) for i in itertools.takewhile(lambda i: i not in (self.pad, self.end), row)]
