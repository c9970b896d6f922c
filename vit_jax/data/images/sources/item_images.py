"""Labelled images that are items of a source by name, such as shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...items import Asked, Batch, Items, Reading, Run, check_images, open_any
from ..config import ImageData
from .base import Examples, Known, Source
from .item_labels import UNPUBLISHED, read_item_labels


@dataclass
class ItemImages:
    """Examples that are the images of items."""

    items: Items
    labels: np.ndarray
    known: Known | None
    sealed: bool = False
    reading: Reading | None = None

    def read(self, i: int) -> bytes:
        if self.reading and (image := self.reading.take(i)) is not None:
            return image
        return self.items.image(i)

    def read_ahead(self, batch: Callable[[int], Batch], start: int, stop: int, room: float) -> Reading | None:
        """Have images read before they are asked for, by what the caller closes."""
        self.reading = self.items.ahead(batch, start, stop, room)
        return self.reading

    def read_together(self, parts: Sequence[np.ndarray], room: float) -> Reading | None:
        """The same of images that are asked for in their order."""

        def batch(i: int) -> Batch:
            return Batch(i, parts[i], {int(run[0]): Run(run, i + 1) for run in self.items.runs_of(parts[i])})

        return self.read_ahead(batch, 0, len(parts), room)

    def name(self, i: int) -> str:
        return self.items.name(i)

    def stamps(self) -> None:
        return None


def examples_of(items: Items, labels: np.ndarray) -> ItemImages:
    """Items as examples: labels [n, ...]."""
    identity = items.identity()
    known = Known(identity, items.sizes.view(np.uint8).reshape(len(items), -1)) if identity else None
    return ItemImages(items, labels, known)


def open_source_named(data: ImageData, source: str, fetch: bool) -> Source:
    """What a source by name gives: labelled images, or the images of items, and what is learned of each."""
    field = f"data.source {data.source}"
    items = open_any(source, Asked(field, data.dir, data.verify, data.download, fetch))
    if isinstance(items, Source):
        return items
    check_images(field, items)
    labels = read_item_labels(field, items, data)
    splits: dict[str, Examples] = {}
    unlabelled = {}
    for split, part in items.splits().items():
        rows = part.rows
        if split != "train" and labels.outputs.kind == "class" and (labels.values[rows] == UNPUBLISHED).all():
            unlabelled[split] = f"the {split} split has no labels"
            continue
        splits[split] = examples_of(part.items, labels.values[rows])
    return Source(items.title, labels.outputs, splits, labels.remarks, unlabelled, counted=labels.counted)
