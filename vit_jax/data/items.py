"""Items: what a `data.source NAME:REST` gives, for labelled images, captions, pairs of texts and predictions alike.

NAME is one of SOURCES in vit_jax/plugins.py, or an entry point `vit_jax.sources` of another package. It stands for a
function of REST and `SourceRequest`, which returns `Items`, or a list of (key, {field: value}, split) as `Listed` takes
it; or, for labelled images alone, a `Source` as of images/sources/base.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..config.hints import instead_of
from ..errors import UserError
from ..plugins import SOURCES
from .images.config import SPLITS
from .images.preprocess import read_image
from .images.sources.base import Source

SETS = "tfds"  # in SOURCES: what opens the sets whose names alone are a data.source of labelled images
MDS = "mds:"  # began the shards of MosaicML's streaming


class SourceRequest(NamedTuple):
    """What a source is to know besides its text."""

    field: str  # what messages call it
    folder: str = ""  # data.dir: the folder or URL that its paths begin in
    verify: bool = False  # whether nothing that is remembered of an earlier start is to be trusted
    download: bool = True  # data.download: whether a set may be fetched
    fetch: bool = True  # if not, black images may stand in for a set that would be fetched: nothing is learned


class Run(NamedTuple):
    """Items that follow each other, and are read together."""

    items: np.ndarray  # int64 [k], ascending; one that is taken several times is there as often
    stop: int  # the batch after the last that takes any of them


class Batch(NamedTuple):
    """What a batch takes of items that are read ahead."""

    epoch: int
    indices: np.ndarray  # int64 [B], the examples of the whole batch
    runs: Mapping[int, Run]  # {a number that is the run's own in its epoch: a run of which the batch takes some}


class Reading(Protocol):
    """What reads the images of the next batches before they are asked for; several threads call it."""

    def plan(self, number: int) -> np.ndarray:
        """Begin to read what a batch needs, and those after it -> its examples, int64 [B]."""

    def take(self, item: int) -> bytes | None:
        """An image that is read ahead; None where it is not."""

    def close(self) -> None:
        """End the threads."""


class Items:
    """The n items of a source, numbered from 0: each has the same fields, and an image or none.

    A source defines `__len__`, `key` and `texts`, and of images `image`; the others say that a source has no more.
    """

    title = ""  # what the set is called
    fields: Sequence[str] = ()  # the names of texts and numbers
    has_images = True
    together = False  # whether neighbours are read together: in `blocks`, as `runs_of` says, and `ahead`
    prefers_blocks = False  # whether training reads in blocks unless `data.order global` is given

    def __len__(self) -> int:
        raise NotImplementedError

    def key(self, i: int) -> str:
        """By what a table of labels knows item i."""
        raise NotImplementedError

    def name(self, i: int) -> str:
        """What item i is called in messages."""
        return f"{self.title} {self.key(i)}"

    def texts(self, field: str) -> Sequence[str]:
        """The text of a field in each item; of numbers how they are written."""
        raise NotImplementedError

    def classes(self, field: str) -> tuple[str, ...]:
        """The names of the classes that the numbers of a field stand for; empty where they have none."""
        return ()

    def image(self, i: int) -> bytes:
        """The encoded image of item i. Several threads call it."""
        raise NotImplementedError

    @property
    def sizes(self) -> np.ndarray:
        """int64 [n]: bytes of the images; 0 where that is not known."""
        return np.zeros(len(self), np.int64)

    def identity(self) -> str:
        """A digest that is equal exactly if the images are; empty: all are read before a run to know them."""
        return ""

    def splits(self) -> dict[str, Part]:
        """The items of each split, of train, validation and test; of items without splits all are train."""
        return {"train": Part(self, np.arange(len(self)))}

    def blocks(self, size: int) -> np.ndarray:
        """The block of each item, int64 [n], ascending: `size` neighbours, or those that are read together anyway."""
        return np.arange(len(self)) // size

    def runs_of(self, rows: np.ndarray) -> list[np.ndarray]:
        """The runs of neighbours that some items make up, each int64 [k]; an item is in one, and once."""
        return [*np.unique(rows)[:, None]]

    def read(self, start: int, stop: int) -> list[bytes]:
        """The images of items of one run, which are transferred together."""
        return [self.image(i) for i in range(start, stop)]

    def ahead(self, batch: Callable[[int], Batch], start: int, stop: int, room: float) -> Reading | None:
        """What reads the images of batches `start` to before `stop` ahead, and holds `room` bytes; None: nothing."""
        return None


class Part(NamedTuple):
    """The items of a split."""

    items: Items
    rows: np.ndarray  # among those of all splits


class Listed(Items):
    """Items that are in memory, or whose images are files.

    Args:
        title: what the set is called.
        items: (key, {field: value}, split) of each: a value is a text, a number, or the image, as encoded bytes or as
            the path of its file (a `Path`); a split is train, validation or test, and train where it is empty.
        names: {field: the names of the classes that its numbers stand for}.
    """

    def __init__(
        self, title: str, items: Iterable[tuple[str, Mapping[str, Any], str]], names: Mapping[str, Sequence[str]] = {}
    ):
        self.title, self._items, self._names = title, [*items], names
        first = self._items[0][1] if self._items else {}
        images = [field for field, value in first.items() if isinstance(value, bytes | os.PathLike)]
        if len(images) > 1:
            raise UserError(self.name(0), f"has several images, {' and '.join(images)}", "keep one of them")
        self._image, self.has_images = images[0] if images else "", bool(images)
        self.fields = [field for field in first if field not in images]
        for i, (_, values, split) in enumerate(self._items):
            if values.keys() != first.keys():
                what = f"has the fields {', '.join(values)}, and {self.name(0)} has {', '.join(first)}"
                raise UserError(self.name(i), what, "give all items the same")
            for field, value in values.items():
                if not isinstance(value, bytes | os.PathLike if field in images else str | int | float | np.number):
                    what = "no image" if field in images else "neither text nor number"
                    remedy = "give an image as its encoded bytes or as its Path"
                    raise UserError(self.name(i), f"its {field} is a {type(value).__name__}, {what}", remedy)
            if split and split not in SPLITS:
                raise UserError(self.name(i), f"is of the split {split!r}", f"give {', '.join(SPLITS)}")

    def __len__(self) -> int:
        return len(self._items)

    def key(self, i: int) -> str:
        return str(self._items[i][0])

    def texts(self, field: str) -> list[str]:
        values = (values[field] for _, values, _ in self._items)
        return [str(int(value) if isinstance(value, bool) else value) for value in values]

    def classes(self, field: str) -> tuple[str, ...]:
        return tuple(self._names.get(field, ()))

    def image(self, i: int) -> bytes:
        value = self._items[i][1][self._image]
        return value if isinstance(value, bytes) else read_image(value)

    @property
    def sizes(self) -> np.ndarray:
        images = (values.get(self._image, b"") for _, values, _ in self._items)
        known = (len(x) if isinstance(x, bytes) else os.path.getsize(x) if os.path.exists(x) else 0 for x in images)
        return np.fromiter(known, np.int64, len(self))

    def splits(self) -> dict[str, Part]:
        of = [split or "train" for *_, split in self._items]
        rows = {split: np.array([i for i, each in enumerate(of) if each == split]) for split in SPLITS if split in of}
        return {s: Part(Listed(self.title, [self._items[i] for i in rows[s]], self._names), rows[s]) for s in rows}


def source_named(source: str) -> str:
    """The name in SOURCES of what opens a data.source; empty where that is built in, or none. Raises UserError of a
    kind that is read no more.
    """
    name, colon, rest = source.partition(":")
    if source.startswith(MDS):
        raise UserError(source, "names shards of MDS, which are not read", instead_of(MDS))
    if not colon or name == SETS or name in SOURCES.built_in or rest.startswith("//"):  # s3:// is a store
        return ""
    return name if name in SOURCES else ""


def open_any(source: str, asked: SourceRequest) -> Items | Source:
    """What the function gives for whose name a data.source begins with."""
    name, _, rest = source.partition(":")
    open_source = SOURCES[name]
    with SOURCES.blaming(name):
        found = open_source(rest, asked)
        found = found if isinstance(found, Items | Source) else Listed(name, found)
    if isinstance(found, Items) and not len(found):
        raise UserError(asked.field, "holds no items", "give a source that has some")
    return found


def open_items(source: str, asked: SourceRequest, images: bool = False) -> Items:
    """The same of items, with images where these are wanted. Raises UserError for a source of labelled images alone."""
    found = open_any(source, asked)
    if isinstance(found, Source):
        raise UserError(asked.field, "has images with labels, and no other fields", "give another source")
    if images:
        check_images(asked.field, found)
    return found


def check_images(field: str, items: Items) -> None:
    """Raise UserError where items have no images."""
    if not items.has_images:
        raise UserError(field, f"{items.name(0)} has no image", "give samples with an image, such as a .jpg")
