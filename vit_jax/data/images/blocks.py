"""Training on images of shards in blocks: neighbours that are read together, in a shuffled order, by one reader.

Each epoch permutes the blocks, and shuffles the images of a few of them together (a window). Which images a step takes
depends on the seed, the step and the blocks alone: not on hosts, threads or what was read before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import Field, UserError
from ..base import Rows
from ..items import Batch, Reading, Run
from ..order import BLOCKS, WINDOWS, Sampling, permutation
from .config import FittedImages
from .pixels import Images
from .sources.base import Examples
from .sources.item_images import ItemImages

MIXED = 4096  # images that are shuffled together, if nothing else is stated: shards may be sorted by class
MANY = 20_000_000  # images beyond which shards are read in blocks, if nothing else is stated


class Blocks(NamedTuple):
    """The blocks of the examples to train on."""

    starts: np.ndarray  # int64 [blocks + 1]: the first example of each, and n at the end
    window: int


class BlockOrder:
    """Which examples a step takes, as a function of the seed and the step alone."""

    def __init__(self, blocks: Blocks, batch: int, seed: int):
        self.starts, self.window, self.batch, self.seed = *blocks, batch, seed
        self.n = int(blocks.starts[-1])
        self.steps_per_epoch = self.n // batch
        self._epoch = functools.lru_cache(maxsize=2)(self._permute)  # two threads may be in two epochs
        self._window = functools.lru_cache(maxsize=4)(self._shuffle)

    def indices(self, step: int) -> np.ndarray:
        """int64 [batch]: the examples of a step, counted from 0."""
        return self.read(step)[:, 0]

    def read(self, step: int) -> np.ndarray:
        """int64 [batch, 4]: the examples of a step; of each where the part of its block that the epoch takes begins and
        ends, and the step after the last that takes any of its window.
        """
        epoch, i = divmod(step, self.steps_per_epoch)
        blocks, ends = self._epoch(epoch)
        places = np.arange(i * self.batch, (i + 1) * self.batch)  # in the stream of the epoch
        windows = -(-(np.searchsorted(ends, places, "right") - 1) // self.window)  # the first has one block only
        at, stop = np.empty_like(places), np.empty_like(places)
        for k in np.unique(windows).tolist():
            start, order = self._window(epoch, k)
            at[windows == k] = start + order[places[windows == k] - start]
            stop[windows == k] = start + len(order)
        j = np.searchsorted(ends, at, "right") - 1
        offset = self.starts[blocks[j]] - ends[j]
        high = np.minimum(ends[j + 1], self.steps_per_epoch * self.batch)
        last = epoch * self.steps_per_epoch + -(-stop // self.batch)
        return np.stack([at + offset, ends[j] + offset, high + offset, last], 1)

    def _permute(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks of an epoch in their order, int64 [blocks], and where each begins in it, and n, [blocks + 1]."""
        blocks = permutation(len(self.starts) - 1, BLOCKS, epoch, self.seed)
        return blocks, np.cumsum(np.concatenate([[0], np.diff(self.starts)[blocks]]))

    def _shuffle(self, epoch: int, k: int) -> tuple[int, np.ndarray]:
        """Where window k begins in the stream of an epoch, and the place from there of each of its examples, [m]."""
        _, ends = self._epoch(epoch)
        first, last = (min(max(1 + i * self.window, 0), len(ends) - 1) for i in (k - 1, k))
        start, stop = int(ends[first]), min(int(ends[last]), self.steps_per_epoch * self.batch)
        return start, permutation(stop - start, WINDOWS, epoch, self.seed, 0, k)


def blocks_in(
    data: FittedImages, train: Examples, repeats: int = 1, sampling: Sampling = "natural"
) -> np.ndarray | None:
    """The block of each image of train, int64 [n], where training reads in blocks; else None."""
    items = train.items if isinstance(train, ItemImages) else None
    if items is None or not items.together:
        if data.order:
            what = f"is {data.order}, and data.source {data.source} has no shards"
            raise UserError(Field("data.order"), what, "leave it out, or give wds:PATTERN or parquet:PATTERN")
        return None
    if data.order == "global" or not (data.order or len(items) > MANY or items.prefers_blocks):
        return None
    if repeats > 1 or sampling != "natural":
        name, value = ("augment.repeats", repeats) if repeats > 1 else ("data.sampling", sampling)
        what = f"is {value}, and data.order is blocks"
        raise UserError(Field(name), what, "leave it out, or give `data.order global`")
    return items.blocks(data.block)


def blocks_of(data: FittedImages, blocks: np.ndarray | None, rows: np.ndarray) -> Blocks | None:
    """The blocks of the training examples, `rows` int [n], by `blocks_in`; None where these do not come in blocks."""
    if blocks is None:
        return None
    starts = np.flatnonzero(np.diff(blocks[rows], prepend=-1, append=-1))
    return Blocks(starts, data.window or max(4, math.ceil(MIXED * (len(starts) - 1) / max(len(rows), 1))))


class Pictured:
    """The n examples of a split, whose images are the given rows, int [n], of a source's split."""

    def __init__(self, images: Images, rows: np.ndarray):
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, i: int) -> str:
        """The name of the image of example i in messages: its file, or its index in the source, such as test[17]."""
        return self.images.examples.name(int(self.rows[i]))

    def ahead(self, order: Any, start: int, stop: int, rows: Rows) -> Reading | None:
        """What reads the images of training batches before they are needed; None where they do not come in blocks."""
        images = self.images.examples
        if not isinstance(order, BlockOrder) or not isinstance(images, ItemImages) or self.images.in_memory:
            return None

        def batch(step: int) -> Batch:
            found = order.read(step)
            own = found if rows is None else found[rows(len(found))]
            runs = {low: Run(self.rows[low:high], last) for _, low, high, last in own.tolist()}
            return Batch(step // order.steps_per_epoch, found[:, 0], runs)

        return images.read_ahead(batch, start, stop, self.images.room)

    def ahead_in_order(self, parts: Sequence[np.ndarray], rows: Rows) -> Reading | None:
        """The same of examples that come in their own order, each part int [k]."""
        images = self.images.examples
        if not isinstance(images, ItemImages) or self.images.in_memory:
            return None
        own = [self.rows[part if rows is None else part[rows(len(part))]] for part in parts]
        return images.read_together(own, self.images.room)
