"""Reading ahead: images that follow each other in a shard are transferred together, before they are decoded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .samples import Samples

AT_ONCE = 32  # requests in flight
FAR = 256  # batches that are looked ahead


class Batch(NamedTuple):
    """What a batch takes from shards."""

    epoch: int  # in which each run is read once
    indices: np.ndarray  # int64 [B], the examples of the whole batch
    runs: (
        np.ndarray
    )  # int64 [k, 2]: for each sample that is taken here the first, and the one after the last, of its run


@dataclass
class _Run:
    """Samples that follow each other in a shard."""

    start: int
    content: Future[list[bytes]]
    left: int  # samples that have not been taken


class Ahead:
    """The images of the next batches, of which so many bytes are held as there is room for.

    Where a batch needs more runs than there is room for, their images are read one by one: as many bytes, in more
    requests. Only samples that cannot be read alone are held all the same.

    Args:
        samples: that are read.
        batches: what each batch takes, by its number.
        start: the number of the first.
        stop: the one after the last.
        room: bytes that may be held.
    """

    def __init__(self, samples: Samples, batches: Callable[[int], Batch], start: int, stop: int, room: float):
        self._samples, self._batches, self._next, self._stop, self._room = samples, batches, start, stop, room
        self._sizes = samples.sizes
        self._planned: dict[int, np.ndarray] = {}  # {batch: its examples}
        self._seen: dict[int, set[int]] = {}  # {epoch: the first samples of its runs}
        self._waiting: Batch | None = None  # the next batch, for which there was no room
        self._runs: dict[int, deque[_Run]] = {}  # {sample: the runs that it will be taken from}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="vit-jax-read")
        self.held = self.most = 0  # bytes now, and at most

    def plan(self, number: int) -> np.ndarray:
        """Begin to read what a batch needs, and what those after it need, as far as there is room.

        Args:
            number: of the batch.

        Returns:
            Its examples, int64 [B].
        """
        with self._lock:
            while self._next < min(number + FAR, self._stop):
                batch = self._waiting or self._batches(self._next)
                seen = self._seen.setdefault(batch.epoch, set())
                runs = {start: stop for start, stop in batch.runs.tolist() if start not in seen}
                size = sum(int(self._sizes[start:stop].sum()) for start, stop in runs.items())
                self._waiting = batch if self._next > number and self.held + size > self._room else None
                if self._waiting:
                    break
                for start, stop in runs.items():
                    self._begin(start, stop)
                seen.update(runs)
                self._planned[self._next] = batch.indices
                self._next += 1
                for epoch in [each for each in self._seen if each < batch.epoch - 1]:
                    del self._seen[epoch]
            return self._planned.pop(number)

    def _begin(self, start: int, stop: int) -> None:
        """Begin to read a run, if there is room."""
        size = int(self._sizes[start:stop].sum())
        if self.held + size > self._room and not self._samples.grouped:
            return
        self.held += size
        self.most = max(self.most, self.held)
        run = _Run(start, self._pool.submit(self._samples.read, start, stop), stop - start)
        for sample in range(start, stop):
            self._runs.setdefault(sample, deque()).append(run)

    def take(self, sample: int) -> bytes | None:
        """An image that is read ahead, and held no longer; None where it is not."""
        with self._lock:
            runs = self._runs.get(sample)
            if not runs:
                return None
            run = runs.popleft()
            if not runs:
                del self._runs[sample]
        content = run.content.result()
        image, content[sample - run.start] = content[sample - run.start], b""
        with self._lock:
            self.held -= int(self._sizes[sample])
        return image

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
