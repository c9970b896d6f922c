"""Reading ahead: images that follow each other in a shard are transferred together, before they are decoded."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...data.items import Batch, Items, Run

AT_ONCE = 32
FAR = 256  # batches that are looked ahead
BEHIND = 32  # batches that may still be in the making


@dataclass
class _Reading:
    """A run that is read."""

    start: int  # its first sample
    content: Future[list[bytes]]
    left: Counter[int]  # {sample: how often it will be taken yet}


class _New(NamedTuple):
    """What a batch takes, and those of its runs that no batch before it takes anything of."""

    indices: np.ndarray
    runs: list[Run]
    counts: list[Counter[int]]  # of each run {sample: how often it will be taken}
    sizes: list[int]  # of each run the bytes of its samples


class Ahead:
    """The images of the next batches, of which so many bytes are held as there is room for.

    Where a batch needs more runs than there is room for, their images are read one by one: as many bytes, in more
    requests. Only samples that cannot be read alone are held all the same.
    """

    def __init__(
        self, items: Items, grouped: bool, batches: Callable[[int], Batch], start: int, stop: int, room: float
    ):
        self._items, self._grouped, self._sizes = items, grouped, items.sizes
        self._batches, self._next, self._stop, self._room = batches, start, stop, room
        self._planned: dict[int, np.ndarray] = {}  # {batch: its examples}
        self._seen: dict[int, set[int]] = {}  # {epoch: the numbers of its runs}
        self._waiting: _New | None = None  # of the next batch, for which there was no room
        self._readings: dict[int, deque[_Reading]] = {}  # {sample: the runs that it will be taken from}
        self._ends: dict[int, list[_Reading]] = {}  # {batch: the runs of which it and later ones take nothing}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="vit-jax-read")
        self.held = self.most = 0  # bytes now, and at most

    def plan(self, number: int) -> np.ndarray:
        """Begin to read what a batch needs, and what those after it need, as far as there is room -> its examples,
        int64 [B].
        """
        with self._lock:
            for end in [end for end in self._ends if end <= number - BEHIND]:
                for reading in self._ends.pop(end):  # the rest was taken before the first batch, or by another host
                    for sample in [*reading.left]:
                        self._release(reading, sample)
            while self._next < min(number + FAR, self._stop):
                new = self._waiting or self._new(self._next)
                wait = self._next > number and self.held + sum(new.sizes) > self._room
                self._waiting = new if wait else None
                if wait:
                    break
                for run, left, size in zip(new.runs, new.counts, new.sizes, strict=True):
                    self._begin(run, left, size)
                self._planned[self._next] = new.indices
                self._next += 1
            return self._planned.pop(number)

    def _new(self, number: int) -> _New:
        """What a batch takes, and its runs that no batch before it has begun."""
        batch = self._batches(number)
        seen = self._seen.setdefault(batch.epoch, set())
        for epoch in [each for each in self._seen if each < batch.epoch - 1]:
            del self._seen[epoch]
        runs = [run for key, run in batch.runs.items() if key not in seen]
        seen.update(batch.runs)
        counts = [Counter(run.items.tolist()) for run in runs]
        return _New(batch.indices, runs, counts, [int(self._sizes[[*each]].sum()) for each in counts])

    def _begin(self, run: Run, left: Counter[int], size: int) -> None:
        """Begin to read a run, if there is room."""
        if self.held + size > self._room and not self._grouped:
            return
        self.held += size
        self.most = max(self.most, self.held)
        start, stop = int(run.items[0]), int(run.items[-1]) + 1
        reading = _Reading(start, self._pool.submit(self._items.read, start, stop), left)
        self._ends.setdefault(run.stop, []).append(reading)
        for sample in left:
            self._readings.setdefault(sample, deque()).append(reading)

    def take(self, sample: int) -> bytes | None:
        """An image that is read ahead, and held until it was taken as often as it will be; None where it is not."""
        while True:
            with self._lock:
                if not (readings := self._readings.get(sample)):
                    return None
                reading = readings[0]
            content = reading.content.result()
            with self._lock:
                if not reading.left[sample]:  # another thread has taken it meanwhile
                    continue
                image = content[sample - reading.start]
                reading.left[sample] -= 1
                if not reading.left[sample]:
                    self._release(reading, sample)
                return image

    def _release(self, reading: _Reading, sample: int) -> None:
        """Hold an image no longer."""
        del reading.left[sample]
        self.held -= int(self._sizes[sample])
        if reading.content.done() and not reading.content.exception():
            reading.content.result()[sample - reading.start] = b""
        readings = self._readings[sample]
        readings.remove(reading)
        if not readings:
            del self._readings[sample]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
