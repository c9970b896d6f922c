"""Which steps are sent to the devices together, by one call (`steps_per_dispatch`)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Batch = dict[str, Any]  # {name: array [B, ...]}


def steps_together(
    step: int, most: int, every: Sequence[int], stop: int, profile: range = range(0), stages: Iterable[int] = ()
) -> int:
    """How many steps may be done by one call: a full number, the largest possible, or 1.

    Between would be others, but each is a program of its own that has to be compiled. None of the steps but the last is
    followed by what happens `every` so many steps, ends the run or a stage of it, or is just before the first or is the
    last of those that are traced.
    """
    full = min(most, *every)
    ends = [stop, *((step // each + 1) * each for each in every), *(first for first in stages if first > step)]
    if profile:
        ends += [end for end in (profile[0] - 1, profile[-1]) if end > step]
    return full if step + full <= min(ends) else 1


class Batches:
    """The batches of an iterator, one or several at a time."""

    def __init__(self, stream: Iterator[Batch]):
        self._stream, self._waiting = stream, deque[Batch]()

    def take(self, count: int) -> list[Batch]:
        """The next `count` batches, or only the next one where not all are of the same shapes, as of sentences."""
        while len(self._waiting) < count:
            self._waiting.append(next(self._stream))
        if len({_shapes(batch) for batch in itertools.islice(self._waiting, count)}) > 1:
            count = 1
        return [self._waiting.popleft() for _ in range(count)]


def _shapes(batch: Batch) -> tuple[Any, ...]:
    return tuple((name, x.shape, x.dtype) for name, x in batch.items())
