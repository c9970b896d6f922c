"""Where inputs of a network come from, in an order of their own: a range of them is read at a time."""

from __future__ import annotations

import functools
import itertools
import os
import posixpath
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...data.images.config import TABLE
from ...data.images.preprocess import EXTENSIONS
from ...data.images.sources.layout import Folder, Unused
from ...data.images.tables.columns import Declared
from ...data.images.tables.files import find_table
from ...data.images.tables.open import table_files
from ...data.inputs import Stored
from ...data.items import Items, SourceRequest, open_items, source_named
from ...errors import UserError
from ...files.digests import bytes_digest
from ...files.lines import Line, read_lines
from ...files.places import Store, is_remote, store_of
from ...files.reading import open_regular
from ...files.terminal import print_note
from ...plugins import READERS

FILES = (".txt", ".tsv", ".csv", ".gz")  # what ends so is meant as a file's name, not as a sentence
PLACES = ("./", "../", "~/", "/")  # what begins so, likewise
LISTS = (".txt", ".list")  # end the names of files that list images
AHEAD = 64  # items that are read together


class Source(Protocol):
    """Inputs in their order."""

    def __len__(self) -> int:
        """How many."""

    def read(self, start: int, stop: int) -> list[Any]:
        """The inputs from `start` to before `stop`, as `Predictor.answer` takes them."""

    def marks(self) -> Iterator[str]:
        """Something of each by which it is known again: its name and its size, or its content."""


def sources_of(kind: str, given: Iterable[Any], column: str) -> list[Source]:
    """The sources that arguments name."""
    if kind == "ids":
        return [Listed(sentences(given))]
    if kind in READERS:
        return [Listed(READERS[kind].load()([*given]))]
    if kind not in ("pixels", ""):  # empty: unknown, of weights that `open_network` refuses
        raise ValueError(f"inputs of kind {kind}")
    found: list[Source] = []
    for local, several in itertools.groupby(given, _is_local):
        if local:
            found.append(Paths(image_paths(several, column)))
        else:
            found += [_elsewhere(text) for text in several]
    return found


def _is_local(given: Any) -> bool:
    """Whether images are in files here, and not items of a source or at a URL."""
    return os.path.lexists(given) or not (source_named(os.fspath(given)) or is_remote(os.fspath(given)))


def _elsewhere(text: str) -> Source:
    """The images of a source by name, or below a URL. Raises UserError where there are none."""
    if source_named(text):
        return ItemInputs(open_items(text, SourceRequest(text), images=True))
    folder, _, name = text.rpartition("/")
    if posixpath.splitext(name)[1].lower() in EXTENSIONS:
        return StoredImages(store_of(folder), [name])
    store = store_of(text)
    names = [each for each in store.list() if posixpath.splitext(each)[1].lower() in EXTENSIONS]
    if not names:
        raise UserError(text, "there are no images", f"known suffixes are {', '.join(sorted(EXTENSIONS))}")
    return StoredImages(store, names)


class Listed:
    """Inputs that are in memory: texts, or vectors."""

    def __init__(self, items: Sequence[Any]):
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def read(self, start: int, stop: int) -> list[Any]:
        return list(self._items[start:stop])

    def marks(self) -> Iterator[str]:
        for item in self._items:
            yield item if isinstance(item, str) else f"{item.name} {item.values.tobytes().hex()}"


class Paths:
    """Image files, whose paths are held as bytes: a million of them take tens of megabytes."""

    def __init__(self, paths: Iterable[str]):
        encoded = [os.fsencode(path) for path in paths]
        self._ends = np.cumsum([0, *map(len, encoded)])
        self._text = b"".join(encoded)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def read(self, start: int, stop: int) -> list[Any]:
        ends = itertools.pairwise(self._ends[start : stop + 1])
        return [Path(os.fsdecode(self._text[first:last])) for first, last in ends]

    def marks(self) -> Iterator[str]:
        for i in range(len(self)):
            (path,) = self.read(i, i + 1)
            yield f"{path} {path.stat().st_size if path.exists() else -1}"


class ItemInputs:
    """The images of items. Neighbours are read together, and kept until others are."""

    def __init__(self, items: Items):
        self._items = items
        self._lock = threading.Lock()
        self._first, self._kept = 0, list[bytes]()

    def __len__(self) -> int:
        return len(self._items)

    def read(self, start: int, stop: int) -> list[Any]:
        return [Stored(self._items.name(i), functools.partial(self._content, i)) for i in range(start, stop)]

    def _content(self, i: int) -> bytes:
        with self._lock:
            if not 0 <= i - self._first < len(self._kept):
                run = self._items.runs_of(np.arange(i, min(i + AHEAD, len(self))))[0]
                self._kept = self._items.read(i, i + len(run))
                self._first = i
            return self._kept[i - self._first]

    def marks(self) -> Iterator[str]:
        if identity := self._items.identity():
            yield f"{len(self)} {identity}"
            return
        for i, size in enumerate(self._items.sizes.tolist()):
            yield f"{self._items.name(i)} {size}"


class StoredImages:
    """Images that are objects of a store."""

    def __init__(self, store: Store, names: Sequence[str]):
        self._store, self._names = store, names

    def __len__(self) -> int:
        return len(self._names)

    def read(self, start: int, stop: int) -> list[Any]:
        return [self._image(name) for name in self._names[start:stop]]

    def _image(self, name: str) -> Stored:
        def content() -> bytes:
            found = self._store.load(name)
            if found is None:
                raise UserError(f"{self._store.url}/{name}", "is not there any more", "restore it")
            return found

        return Stored(f"{self._store.url}/{name}", content)

    def marks(self) -> Iterator[str]:
        for name in self._names:
            yield f"{self._store.url}/{name}"


def digest_of(sources: Iterable[Source]) -> str:
    """A digest of what inputs are and of their order."""
    digest = bytes_digest()
    for source in sources:
        for mark in source.marks():
            digest.update(mark.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def image_paths(paths: Iterable[Any], column: str) -> list[str]:
    """Paths of image files."""
    found: list[str] = []
    unused = Unused()
    for given in paths:
        text, path = os.fspath(given), Path(given)
        if path.is_dir():
            inside = Folder(str(path)).image_paths(unused)
            if not inside:
                only = f", only {unused}" if len(unused) else ""
                what = f"there are no images in this folder{only}"
                raise UserError(text, what, f"known suffixes are {', '.join(sorted(EXTENSIONS))}")
            found += sorted(inside, key=lambda each: each.replace(os.sep, "\0"))  # folder by folder
        elif text.startswith(TABLE) and not os.path.lexists(text):
            found += table_files(find_table(text), Declared(file_column=column))
        elif text.endswith(LISTS) and path.exists():
            found += listed_paths(text)
        elif path.exists():
            found.append(str(path))
        else:
            raise UserError(text, "there is no such image or folder", "check the path")
    for remark in unused.remarks():
        print_note(remark, sys.stderr)
    return found


def listed_paths(file: str) -> list[str]:
    """The paths in a file that lists images, one a line; they begin where it lies. Raises UserError."""
    with open_regular(file) as opened:
        lines = [line.strip() for line in read_lines(opened, file, errors="surrogateescape")]
    if not any(lines):
        raise UserError(file, "lists no images", "write the path of one in each line")
    return [os.path.join(os.path.dirname(file), line) for line in lines if line]


def sentences(inputs: Iterable[str]) -> list[str]:
    """Sentences as they are typed; a file is replaced by its lines, blank ones among them."""
    found: list[str] = []
    for text in inputs:
        if len(text) > 255 or not os.path.lexists(text) or os.path.isdir(text):
            if "/" in text and os.path.isdir(text):
                raise UserError(text, "is a folder", "give a sentence, or a file of them, one per line")
            if (text.endswith(FILES) or text.startswith(PLACES)) and " " not in text:
                raise UserError(text, "there is no such file", "give a sentence, or a file of them, one per line")
            found.append(text)
            continue
        try:
            with open_regular(text) as file:
                found += (Line(line, f"{text} line {i}") for i, line in enumerate(read_lines(file, text), 1))
        except OSError as error:
            raise UserError(text, f"cannot be read ({error.strerror or error})", "give UTF-8 text") from error
    return found
