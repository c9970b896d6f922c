"""An order that reads mostly in sequence and mixes like a shuffle: blocks of neighbours, in lanes.

Each epoch permutes the blocks and cuts the stream of their examples into lanes of equal length. A lane shuffles windows
of a few blocks, and each batch takes as many examples from each lane. With as many lanes as a batch has examples,
neighbours of a class-sorted shard meet in a batch no more often than by chance. Which examples a step takes depends on
the seed, the step and the blocks alone: not on hosts, threads or what was read before.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from ..errors import Field, UserError
from .order import BLOCKS, WINDOWS, permutation


class Lanes(NamedTuple):
    """How blocks are read."""

    starts: np.ndarray  # int64 [blocks + 1]: the first example of each, and n at the end
    lanes: int  # 0: as many as a batch has examples
    window: int  # blocks that a lane shuffles together


class _Epoch(NamedTuple):
    blocks: np.ndarray  # int64 [blocks], in the order of the stream
    ends: np.ndarray  # int64 [blocks + 1]: where each begins in the stream, and n


class _Window(NamedTuple):
    start: int  # its first position in the stream
    order: np.ndarray  # int64 [k]: the position, from there, of the example that comes i-th


class LaneOrder:
    """Which examples a step takes, as a function of the seed and the step alone."""

    def __init__(self, how: Lanes, batch: int, seed: int):
        self.n, self.batch, self.seed, self.window = int(how.starts[-1]), batch, seed, how.window
        self.lanes = how.lanes or batch
        if batch % self.lanes:
            what = f"is {self.lanes}, and a batch of {batch} takes as many examples from each"
            raise UserError(Field("data.lanes"), what, f"give a divisor of {batch}, or 0 for {batch}")
        self.starts = how.starts
        self.steps_per_epoch = self.n // batch
        self.share = batch // self.lanes  # examples of a lane in a batch
        self.length = self.steps_per_epoch * self.share  # of a lane
        self._lock = threading.Lock()
        self._epochs: OrderedDict[int, _Epoch] = OrderedDict()
        self._windows: dict[int, tuple[int, _Window]] = {}  # {lane: (epoch, its latest window)}

    def indices(self, step: int) -> np.ndarray:
        """int64 [batch]: the examples of a step, counted from 0."""
        return self.read(step)[:, 0]

    def read(self, step: int) -> np.ndarray:
        """The examples of a step, and what is read with each -> int64 [batch, 4]."""
        number, i = divmod(step, self.steps_per_epoch)
        places = i * self.share + np.arange(self.share)
        with self._lock:
            epoch = self._epoch(number)
            found = np.concatenate([self._shuffled(number, epoch, lane, places) for lane in range(self.lanes)])
        at, stop = found.T
        lane = np.repeat(np.arange(self.lanes), self.share) * self.length
        j = np.searchsorted(epoch.ends, at, "right") - 1
        offset = self.starts[epoch.blocks[j]] - epoch.ends[j]
        low, high = np.maximum(epoch.ends[j], lane), np.minimum(epoch.ends[j + 1], lane + self.length)
        last = number * self.steps_per_epoch + -(-(stop - lane) // self.share)
        return np.stack([at + offset, low + offset, high + offset, last], 1)

    def _epoch(self, number: int) -> _Epoch:
        """The stream of an epoch."""
        if number not in self._epochs:
            blocks = permutation(len(self.starts) - 1, BLOCKS, number, self.seed)
            self._epochs[number] = _Epoch(blocks, np.cumsum(np.concatenate([[0], np.diff(self.starts)[blocks]])))
            while len(self._epochs) > 2:  # two threads may be in two epochs
                self._epochs.popitem(last=False)
        return self._epochs[number]

    def _shuffled(self, number: int, epoch: _Epoch, lane: int, places: np.ndarray) -> np.ndarray:
        """For these places of a lane, int64 [k, 2]: a position in the stream, and the end of its window there."""
        out = np.empty((len(places), 2), np.int64)
        for i, place in enumerate((lane * self.length + places).tolist()):
            known, window = self._windows.get(lane, (-1, None))
            if window is None or known != number or not 0 <= place - window.start < len(window.order):
                window = self._open(number, epoch, lane, place)
                self._windows[lane] = (number, window)
            out[i] = window.start + window.order[place - window.start], window.start + len(window.order)
        return out

    def _open(self, number: int, epoch: _Epoch, lane: int, place: int) -> _Window:
        """The window of a lane that has a position of the stream."""
        begin, end = lane * self.length, (lane + 1) * self.length
        first, block = (int(np.searchsorted(epoch.ends, at, "right")) - 1 for at in (begin, place))
        # The first window has fewer blocks, other ones in each lane, so that not all lanes read at the same step.
        early = 1 + lane % self.window
        k = (block - first - early) // self.window + 1 if block - first >= early else 0
        low = first + early + (k - 1) * self.window if k else first
        high = first + early + k * self.window
        start = max(int(epoch.ends[low]), begin)
        stop = min(int(epoch.ends[min(high, len(epoch.blocks))]), end)
        return _Window(start, permutation(stop - start, WINDOWS, number, self.seed, lane, k))
