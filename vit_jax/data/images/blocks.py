"""Images of shards in blocks: whether training takes them so, and what reads them before they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import Field, UserError
from ..base import Rows
from ..lanes import LaneOrder, Lanes
from ..shards.ahead import Ahead, Batch, Run
from ..shards.samples import KEPT
from .config import FittedImages
from .pixels import Images
from .sources.base import Examples
from .sources.sharded import Sharded

MANY = 20_000_000  # images beyond which shards are read in blocks, if nothing else is stated


def blocks_in(data: FittedImages, train: Examples, without: Mapping[str, Any]) -> np.ndarray | None:
    """The block of each image of train, int64 [n], where training reads in blocks; else None."""
    if not isinstance(train, Sharded):
        for name in ("order", "lanes"):
            if value := getattr(data, name):
                what = f"is {value}, and data.source {data.source} has no shards"
                raise UserError(Field(f"data.{name}"), what, "leave it out, or give wds:, parquet: or mds:PATTERN")
        return None
    many = len(train.labels) > MANY or train.samples.groups > KEPT
    if data.order == "global" or not (data.order or many):
        return None
    for name, value in without.items():
        what = f"is {value}, and data.order is blocks"
        raise UserError(Field(name), what, "leave it out, or give `data.order global`")
    return train.samples.blocks(data.block)


def lanes_of(data: FittedImages, blocks: np.ndarray) -> Lanes:
    """How training examples with these blocks, int64 [n], ascending, are read."""
    starts = np.flatnonzero(np.diff(blocks, prepend=-1, append=-1))
    return Lanes(starts, data.lanes, data.window)


def read_ahead(images: Images, of: np.ndarray, order: Any, start: int, stop: int, rows: Rows) -> Ahead | None:
    """What reads the images of training batches before they are needed; None where these do not come in blocks. Shapes:
    of int [n].
    """
    if not isinstance(order, LaneOrder) or not isinstance(images.examples, Sharded) or images.in_memory:
        return None

    def batch(step: int) -> Batch:
        found = order.read(step)
        own = found if rows is None else found[rows(len(found))]
        runs = {low: Run(of[low:high], last) for _, low, high, last in own.tolist()}
        return Batch(step // order.steps_per_epoch, found[:, 0], runs)

    return images.examples.read_ahead(batch, start, stop, images.room)


def read_in_order(images: Images, of: np.ndarray, parts: Sequence[np.ndarray], rows: Rows) -> Ahead | None:
    """The same of examples that come in their own order: of int [n]."""
    if not isinstance(images.examples, Sharded) or images.in_memory:
        return None
    own = [of[part if rows is None else part[rows(len(part))]] for part in parts]
    return images.examples.read_together(own, images.room)
