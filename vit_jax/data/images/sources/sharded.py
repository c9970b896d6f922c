"""Labelled images in shards: tars of webdataset (`wds:PATTERN`) and parquet files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import UserError
from ...shards.ahead import Ahead, Batch, Run
from ...shards.open import open_samples
from ...shards.samples import Samples, split_samples
from ..config import ImageData
from .base import Examples, Known, Source
from .shard_labels import UNPUBLISHED, read_shard_labels


@dataclass
class Sharded:
    """Examples that are samples of shards."""

    samples: Samples
    labels: np.ndarray
    known: Known
    sealed: bool = False
    ahead: Ahead | None = None

    def read(self, i: int) -> bytes:
        if self.ahead and (image := self.ahead.take(i)) is not None:
            return image
        return self.samples.read(i, i + 1)[0]

    def read_ahead(self, batch: Callable[[int], Batch], start: int, stop: int, room: float) -> Ahead:
        """Have images read before they are asked for; see `Ahead`, which the caller closes."""
        self.ahead = Ahead(self.samples, batch, start, stop, room)
        return self.ahead

    def read_together(self, parts: Sequence[np.ndarray], room: float) -> Ahead:
        """The same of images that are asked for in their order."""

        def batch(i: int) -> Batch:
            return Batch(i, parts[i], {int(run[0]): Run(run, i + 1) for run in self.samples.runs_of(parts[i])})

        return self.read_ahead(batch, 0, len(parts), room)

    def name(self, i: int) -> str:
        return self.samples.name(i)

    def stamps(self) -> None:
        return None


def examples_of(samples: Samples, labels: np.ndarray) -> Sharded:
    """Samples as examples: labels [n, ...]."""
    known = Known(samples.identity(), samples.sizes.view(np.uint8).reshape(len(samples), -1))
    return Sharded(samples, labels, known)


def open_shards(data: ImageData) -> Source:
    """The images in shards, and what is learned of each."""
    field = f"data.source {data.source}"
    samples = open_samples(field, data.source, data.dir, data.verify)
    if samples.indexes[0].starts[0] < 0:
        raise UserError(field, f"{samples.name(0)} has no image", "give samples with an image, such as a .jpg")
    labels = read_shard_labels(field, samples, data)
    splits: dict[str, Examples] = {}
    unlabelled = {}
    for split, part in split_samples(samples).items():
        rows = part.rows
        if split != "train" and labels.outputs.kind == "class" and (labels.values[rows] == UNPUBLISHED).all():
            unlabelled[split] = f"the {split} split has no labels"
            continue
        splits[split] = examples_of(part.samples, labels.values[rows])
    return Source(samples.title, labels.outputs, splits, labels.remarks, unlabelled, counted=labels.counted)
