"""Labelled images in shards: tars of webdataset (`wds:PATTERN`) and parquet files (`parquet:PATTERN`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....errors import UserError
from ...shards.open import open_samples
from ...shards.samples import Samples, split_samples
from ..config import ImageData
from .base import Examples, Known, Source
from .shard_labels import read_shard_labels


@dataclass
class Sharded:
    """Examples that are samples of shards."""

    samples: Samples
    labels: np.ndarray
    known: Known
    sealed: bool = False

    def read(self, i: int) -> bytes:
        return self.samples.read(i, i + 1)[0]

    def name(self, i: int) -> str:
        return self.samples.name(i)

    def stamps(self) -> None:
        return None


def open_shards(data: ImageData) -> Source:
    """The images in shards, and what is learned of each.

    Args:
        data: names them as `source`, by a pattern of paths below `dir`.

    Raises:
        UserError: there are none, one cannot be read, or they have no images with labels.
    """
    field = f"data.source {data.source}"
    samples = open_samples(field, data.source, data.dir, data.verify)
    if samples.indexes[0].starts[0] < 0:
        raise UserError(field, f"{samples.name(0)} has no image", "give samples with an image, such as a .jpg")
    labels = read_shard_labels(field, samples, data)
    splits: dict[str, Examples] = {}
    for split, part in split_samples(samples).items():
        rows = part.rows
        known = Known(part.samples.identity(), part.samples.sizes.view(np.uint8).reshape(len(rows), -1))
        splits[split] = Sharded(part.samples, labels.values[rows], known)
    return Source(samples.title, labels.outputs, splits, labels.remarks, counted=labels.counted)
