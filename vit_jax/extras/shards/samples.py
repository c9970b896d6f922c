"""The samples of several shards in a row, numbered by the sorted names of the shards and their order inside them."""

from __future__ import annotations

import bisect
import functools
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from ...data.images.config import SPLITS
from ...data.items import Batch, Items, Part, SourceRequest
from ...errors import UserError
from ...files.digests import array_digest, text_digest
from ...files.places import Store
from .ahead import Ahead
from .index import Index, Scan, open_indexes
from .parquet import read_group, scan_parquet
from .pattern import find_shards
from .tar import scan_tar

Place = tuple[int, int]  # (shard, sample in it)
KEPT = 4


class Samples(Items):
    """The n samples of some shards."""

    together = True

    def __init__(self, store: Store, indexes: Sequence[Index], titles: Sequence[str], title: str = ""):
        self.store, self.indexes, self.titles, self.title = store, [*indexes], [*titles], title
        self.first = np.cumsum([0, *map(len, indexes)])  # int64 [shards + 1]: the number of each shard's first sample
        self._firsts = self.first.tolist()
        self.fields = [field for field in indexes[0].texts if all(field in index.texts for index in indexes)]
        self.has_images, self.prefers_blocks = bool(indexes[0].starts[0] >= 0), self.groups > KEPT
        self._lock = threading.Lock()
        self._groups: dict[Place, Future[list[bytes]]] = {}

    def __len__(self) -> int:
        return self._firsts[-1]

    def place(self, i: int) -> Place:
        """The shard of sample i, and its number there."""
        shard = bisect.bisect_right(self._firsts, i) - 1
        return shard, i - self._firsts[shard]

    def name(self, i: int) -> str:
        """What sample i is called in messages."""
        shard, row = self.place(i)
        keys = self.indexes[shard].keys
        return f"{self.titles[shard]} {keys[row] if keys else f'row {row}'}"

    def key(self, i: int) -> str:
        """The key of sample i; of a row of parquet its number."""
        shard, row = self.place(i)
        keys = self.indexes[shard].keys
        return keys[row] if keys else str(i)

    def texts(self, field: str) -> list[str]:
        return [text for index in self.indexes for text in index.texts[field]]

    def classes(self, field: str) -> tuple[str, ...]:
        """The names that the numbers of a field stand for; empty where they have none. Raises UserError."""
        for title, index in zip(self.titles, self.indexes, strict=True):
            if index.classes.get(field) != self.indexes[0].classes.get(field):
                what = f"{field} has other names of classes than in {self.titles[0]}"
                raise UserError(title, what, "write all shards of one set with the same features")
        return self.indexes[0].classes.get(field, ())

    @property
    def sizes(self) -> np.ndarray:
        """int64 [n]: bytes of the images."""
        return np.concatenate([index.sizes for index in self.indexes])

    def image(self, i: int) -> bytes:
        return self.read(i, i + 1)[0]

    def ahead(self, batch: Callable[[int], Batch], start: int, stop: int, room: float) -> Ahead:
        return Ahead(self, self.groups > 0, batch, start, stop, room)

    def read(self, start: int, stop: int) -> list[bytes]:
        """The images of samples that follow each other in one shard, which are transferred together."""
        shard, low = self.place(start)
        index, high = self.indexes[shard], low + stop - start
        if index.column:
            return self._read_rows(shard, low, high)
        starts, stops = index.starts[low:high], (index.starts + index.sizes)[low:high]
        begin = int(starts.min())
        content = self.store.read(index.name, begin, int(stops.max()), index.tag)
        return [content[a:b] for a, b in zip((starts - begin).tolist(), (stops - begin).tolist(), strict=True)]

    def _read_rows(self, shard: int, low: int, high: int) -> list[bytes]:
        """The images of some rows of a parquet file. Those of the groups that were read last are kept."""
        index = self.indexes[shard]
        found: list[bytes] = []
        for group in np.unique(index.groups[low:high]).tolist():
            first = int(np.searchsorted(index.groups, group))
            images = self._group(shard, group)
            found += images[max(low - first, 0) : high - first]
        return found

    def _group(self, shard: int, group: int) -> list[bytes]:
        """The images of a group of rows, which one thread reads for all."""
        with self._lock:
            reading = self._groups.pop((shard, group), None)
            mine = reading is None or (reading.done() and reading.exception() is not None)
            reading = Future() if mine or reading is None else reading
            self._groups[shard, group] = reading
            while len(self._groups) > KEPT:
                del self._groups[next(iter(self._groups))]
        if mine:
            try:
                reading.set_result(read_group(self.store, self.indexes[shard], group))
            except BaseException as error:
                reading.set_exception(error)
        return reading.result()

    @property
    def groups(self) -> int:
        """How many groups there are; of samples that can be read alone none."""
        return sum(int(index.groups.max()) + 1 for index in self.indexes if len(index.groups))

    def blocks(self, size: int) -> np.ndarray:
        """The block of each sample, int64 [n], ascending: `size` neighbours of a shard, or a group."""
        found = [index.groups if len(index.groups) else np.arange(len(index)) // size for index in self.indexes]
        starts = np.cumsum([0, *(int(each.max(initial=-1)) + 1 for each in found[:-1])])
        return np.concatenate([each + start for each, start in zip(found, starts.tolist(), strict=True)])

    def runs_of(self, rows: np.ndarray) -> list[np.ndarray]:
        """The runs of neighbours in a shard that some samples make up, each int64 [k]; a sample is in one, and once."""
        rows = np.unique(rows)
        shard = np.searchsorted(self.first, rows, "right")
        cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(shard) != 0)) + 1
        return [part for part in np.split(rows, cuts) if len(part)]

    def identity(self) -> str:
        """A digest of what the shards are: their names, bytes, and the sizes of their samples."""
        shards = [
            [title, index.size, array_digest(index.sizes)]
            for title, index in zip(self.titles, self.indexes, strict=True)
        ]
        return text_digest(shards)

    def splits(self) -> dict[str, Part]:
        """The samples of each split, train first; all are train where not each shard has the name of one split."""
        splits = [split_in(title) for title in self.titles]
        splits = splits if all(splits) else ["train"] * len(splits)
        found = {}
        for split in (name for name in SPLITS if name in splits):
            shards = [i for i, each in enumerate(splits) if each == split]
            rows = np.concatenate([np.arange(self.first[i], self.first[i + 1]) for i in shards])
            indexes, titles = [self.indexes[i] for i in shards], [self.titles[i] for i in shards]
            found[split] = Part(Samples(self.store, indexes, titles, self.title), rows)
        return found

    def check_alike(self, field: str) -> None:
        """Check that all shards have the same fields."""
        has = [{*index.texts, *(["an image"] if len(index) and index.starts[0] >= 0 else [])} for index in self.indexes]
        for each in sorted(set().union(*has)):
            without = [title for title, fields in zip(self.titles, has, strict=True) if each not in fields]
            if without:
                with_it = next(title for title, fields in zip(self.titles, has, strict=True) if each in fields)
                what = f"{with_it} has {each}, and {without[0]} has none"
                raise UserError(field, what, "give shards of the same fields, or leave out those that differ")


def split_in(title: str) -> str:
    """The split whose name is a word of a path; empty where there is none, or several."""
    words = re.findall(r"[a-z]+", title.rpartition(".")[0].casefold())
    splits = {split for split, names in SPLITS.items() for word in words if word in names}
    return splits.pop() if len(splits) == 1 else ""


def _open(pattern: str, asked: SourceRequest, scan: Scan) -> Samples:
    """The samples of the shards that a pattern names."""
    shards = find_shards(asked.field, pattern, asked.folder)
    indexes = open_indexes(shards, scan, asked.verify)
    samples = Samples(shards.store, indexes, shards.short, os.path.basename(shards.store.url))
    samples.check_alike(asked.field)
    return samples


open_wds = functools.partial(_open, scan=scan_tar)
open_parquet = functools.partial(_open, scan=scan_parquet)
