"""What is in a shard and where: read once, then kept beside the shard, and in the user's cache."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...data.progress import progress
from ...errors import UserError
from ...files.arrays import read_arrays
from ...files.atomic import replacing
from ...files.digests import content_digest, text_digest
from ...files.places import Stat, Store
from ...machine.backend import cache_folder
from .pattern import INDEX, Shards

A = TypeVar("A")
FORMAT = 1
AGAIN = "write it again, or fetch it again whole"
EDGE = 8192  # bytes at the end of a shard by which it is known again where its tag is not
AT_ONCE = 32
_ARRAYS = ("format", "size", "tag", "edge", "keys", "starts", "sizes", "groups", "column", "classes", "fields", "texts")


@dataclass(frozen=True)
class Index:
    """The n samples of a shard."""

    name: str  # of the shard, in its store
    size: int  # bytes
    tag: str  # of the object; empty where it was not read from its store
    edge: str  # digest of its last bytes
    keys: tuple[str, ...]  # of the samples; empty where they have none, of a parquet file
    starts: np.ndarray  # int64 [n], offsets of the images in the shard; -1 where samples have none
    sizes: np.ndarray  # int64 [n], bytes of the images
    groups: np.ndarray  # int64 [n], of samples that are read together; empty: each can be read by itself
    texts: dict[str, tuple[str, ...]]  # {field: its text in each sample}
    column: str = ""  # of a parquet file: that of the images
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # {field: the names that its numbers stand for}

    def __len__(self) -> int:
        return len(self.starts)

    def to_bytes(self) -> bytes:
        """The content of its file."""
        file = io.BytesIO()
        np.savez_compressed(
            file,
            format=np.array(FORMAT),
            size=np.array(self.size),
            tag=_packed([self.tag]),
            edge=_packed([self.edge]),
            keys=_packed(self.keys),
            starts=self.starts,
            sizes=self.sizes,
            groups=self.groups,
            column=_packed([self.column]),
            classes=_packed([json.dumps(self.classes)]),
            fields=_packed([*self.texts]),
            texts=_packed([text for each in self.texts.values() for text in each]),
        )
        return file.getvalue()

    @classmethod
    def from_file(cls, name: str, path: Path) -> Index | None:
        """The index in a file; None where it is none, or damaged."""
        try:
            found = read_arrays(path, _ARRAYS)
            if found["format"] != FORMAT:
                return None
            n, fields, texts = len(found["starts"]), _unpacked(found["fields"]), _unpacked(found["texts"])
            each = {key: tuple(texts[i * n : (i + 1) * n]) for i, key in enumerate(fields)}
            (tag,), (edge,), keys = _unpacked(found["tag"]), _unpacked(found["edge"]), tuple(_unpacked(found["keys"]))
            starts, sizes, groups = (found[key].astype(np.int64) for key in ("starts", "sizes", "groups"))
            whole = len(sizes) == n and len(texts) == n * len(fields)
            if not whole or len(keys) not in (0, n) or len(groups) not in (0, n):
                return None
            (column,), (classes,) = _unpacked(found["column"]), _unpacked(found["classes"])
            named = {key: tuple(names) for key, names in json.loads(classes).items()}
            return cls(name, int(found["size"]), tag, edge, keys, starts, sizes, groups, each, column, named)
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, UserError):
            return None


class ObjectFile(io.RawIOBase):
    """An object of a store as a file, which is read by ranges."""

    def __init__(self, store: Store, name: str, size: int, tag: str):
        self._store, self._name, self._size, self._tag, self._at = store, name, size, tag, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        content = self._store.read(self._name, self._at, stop, self._tag) if stop > self._at else b""
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


Scan = Callable[[Store, str, int, str], Index]


def read_edge(store: Store, name: str, size: int, tag: str) -> bytes:
    """The last bytes of a shard, EDGE at most."""
    return store.read(name, max(0, size - EDGE), size, tag)


def open_indexes(shards: Shards, scan: Scan, verify: bool = False) -> list[Index]:
    """The indexes of shards: from the cache or from beside them if they are of these objects, else read and kept."""
    store = shards.store
    known = _each(lambda name: _known(store, name, verify), shards.names)
    unknown = {name: each for name, each in zip(shards.names, known, strict=True) if isinstance(each, Stat)}
    if unknown:
        total, done = sum(each.size for each in unknown.values()), 0
        title = f"reading {len(unknown):,} shards once, to index them"
        with progress(title, total, "GB", 1e9) as show:

            def read(name: str) -> Index:
                nonlocal done
                index = scan(store, name, *unknown[name])
                _keep_all(store, index)
                done += index.size
                show(done)
                return index

            read_now = dict(zip(unknown, _each(read, [*unknown]), strict=True))
        known = [read_now.get(name, each) for name, each in zip(shards.names, known, strict=True)]
    return [each for each in known if isinstance(each, Index)]


def _each(work: Callable[[str], A], names: Sequence[str]) -> list[A]:
    """What `work` gives for each name; several at the same time."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="vit-jax-index") as pool:
        return [*pool.map(work, names)]


def _known(store: Store, name: str, verify: bool) -> Index | Stat:
    """The index of a shard, or what is to be known to read it."""
    tag = store.tag(name)
    if tag is None:
        raise UserError(f"{store.url}/{name}", "is not there", "put it there, or mend the pattern")
    if not verify:
        if index := Index.from_file(name, _cache_file(store, name, tag)):
            return index
        if index := _read_beside(store, name, tag):
            _keep(_cache_file(store, name, tag), index.to_bytes())
            return index
    return store.stat(name)


def _cache_file(store: Store, name: str, tag: str) -> Path:
    """The file of the cache for the index of a shard."""
    return cache_folder("shards") / f"{text_digest([store.url, name, tag, FORMAT])}.npz"


def _keep_all(store: Store, index: Index) -> None:
    """Keep the index of a shard in the cache, and, where that is allowed, beside it in an object store."""
    content = index.to_bytes()
    _keep(_cache_file(store, index.name, index.tag), content)
    if not store.local:
        with suppress(UserError):
            store.put(index.name + INDEX, content)


def _read_beside(store: Store, name: str, tag: str) -> Index | None:
    """The index beside a shard, if it is of this object."""
    try:
        content = store.load(name + INDEX)
    except UserError:  # a store may deny what is not there
        return None
    if content is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index.npz")
        path.write_bytes(content)
        index = Index.from_file(name, path)
    if index is None or index.tag == tag:
        return index
    if store.stat(name, index.size).size != index.size:
        return None
    return replace(index, tag=tag) if content_digest(read_edge(store, name, index.size, tag)) == index.edge else None


def _keep(path: Path, content: bytes) -> None:
    """Write a file of the cache, where that is possible."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            unfinished.write_bytes(content)


def _packed(texts: Sequence[str]) -> np.ndarray:
    """Texts as bytes, each after its length."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    lengths = np.array([len(encoded), *map(len, encoded)], np.uint32)
    return np.frombuffer(lengths.tobytes() + b"".join(encoded), np.uint8)


def _unpacked(array: np.ndarray) -> list[str]:
    content = array.tobytes()
    (count,) = np.frombuffer(content, np.uint32, 1).tolist()
    stops = 4 * (count + 1) + np.cumsum([0, *np.frombuffer(content, np.uint32, count, 4).tolist()])
    pieces = zip(stops[:-1].tolist(), stops[1:].tolist(), strict=True)
    return [content[start:stop].decode("utf-8", "surrogateescape") for start, stop in pieces]
