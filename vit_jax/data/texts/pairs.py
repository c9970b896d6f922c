"""Pairs of sentences in files: a folder of splits, two files, or a table of two columns."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from ...errors import Field, UserError, about
from ...files.digests import bytes_digest
from ...files.lines import quote, read_lines, too_long
from ...files.reading import LINE, open_regular
from ..items import Items, SourceRequest, open_items
from .config import TEXTS


class Pairs(Protocol):
    """Pairs of a source and a target sentence, of which each iteration begins anew."""

    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    def __len__(self) -> int: ...


FORMS = "pairs:FROM-TO:FOLDER, pairs:FILE,FILE, tsv:FILE, wds:FROM-TO:PATTERN or parquet:FROM-TO:PATTERN"
_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def are_in_files(source: str) -> bool:
    """Whether a data.source names files of pairs."""
    return source.startswith(("pairs:", "tsv:"))


class InFiles:
    """The pairs in two files of one sentence per line, or in one table: read anew by each iteration, never held.

    Iterations, and the properties, raise UserError where a file cannot be read or has other than pairs.
    """

    def __init__(self, source: str, files: tuple[Path, ...]):
        self.source, self.files = source, files

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self._scanned  # noqa: B018  # as many lines in both files
        if len(self.files) == 1:
            return _table(self.source, self.files[0])
        left, right = (_lines(self.source, file, "mend it, or remove it from both files") for file in self.files)
        return zip(left, right, strict=True)

    def __len__(self) -> int:
        return self._scanned[0][0]

    @property
    def digests(self) -> list[str]:
        """What identifies the files' content."""
        return [digest for _, digest in self._scanned]

    def name(self, side: int, i: int) -> str:
        """Where the source (0) or the target (1) of pair i stands."""
        return f"{self.files[side * (len(self.files) - 1)].name} line {i + 1}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the user has to know of the files: that a table has more columns than two."""
        if len(self.files) == 2:
            return ()
        columns = next(_lines(self.source, self.files[0], ""), "").count("\t") + 1
        others = "the first two are source and target, the others are not read"
        return (f"{self.files[0].name} has {columns} columns from line 1 on: {others}",) if columns > 2 else ()

    @cached_property
    def _scanned(self) -> list[tuple[int, str]]:
        """(lines, digest) of each file."""
        found = [_scan(self.source, file) for file in self.files]
        (one, _), (two, _) = found[0], found[-1]
        if one != two:
            left, right = self.files
            raise UserError(
                f"data.source {self.source}",
                f"{left.name} has {one} lines and {right.name} has {two}",
                "give as many of both, line i of one being the translation of line i of the other",
            )
        return found


class InTexts:
    """The lines of files of texts that are not blank, each as a source without a target: read anew, never held.

    Iterations, and the properties, raise UserError where a file cannot be read.
    """

    def __init__(self, source: str):
        self.source = source
        path = Path(os.path.expanduser(source.removeprefix(TEXTS)))
        there = sorted(path.iterdir()) if path.is_dir() else [path]
        self.files = [file for file in there if file == path or file.name.endswith((".txt", ".txt.gz"))]
        if not self.files:
            raise UserError(f"data.source {source}", "has no .txt or .txt.gz file", "put texts there, one in a line")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        lines = (line for file in self.files for line in _lines(self.source, file, ""))
        return ((line, "") for line in lines if line.strip())

    @cached_property
    def _count(self) -> int:
        return sum(1 for _ in self)

    def __len__(self) -> int:
        if not self._count:
            raise UserError(f"data.source {self.source}", "holds no texts", "put some there, one in a line")
        return self._count

    @cached_property
    def digests(self) -> list[str]:
        """What identifies the files' content."""
        return [_scan(self.source, file)[1] for file in self.files]

    def name(self, side: int, i: int) -> str:
        """Where text i stands."""
        for file in self.files:
            for number, line in enumerate(_lines(self.source, file, ""), 1):
                i -= bool(line.strip())
                if i < 0:
                    return f"{file.name} line {number}"
        raise IndexError(i)


@dataclass(frozen=True)
class Chosen:
    """Some of the pairs, in their order: those where `mask`, bool [n], is True."""

    pairs: Pairs
    mask: np.ndarray

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return itertools.compress(self.pairs, self.mask)

    def __len__(self) -> int:
        return int(self.mask.sum())


class InItems:
    """The pairs in two fields of items."""

    def __init__(self, items: Items, fields: Sequence[str]):
        self._items, self._fields = items, fields

    def __iter__(self) -> Iterator[tuple[str, str]]:
        left, right = map(self._items.texts, self._fields)
        return zip(left, right, strict=True)

    def __len__(self) -> int:
        return len(self._items)

    def name(self, side: int, i: int) -> str:
        """Where the source (0) or the target (1) of pair i stands."""
        return f"{self._items.name(i)} {self._fields[side]}"


def find_pairs_of_items(source: str) -> dict[str, InItems]:
    """The pairs of texts that are items -> {split: pairs}; of items without splits all are train."""
    field = f"data.source {source}"
    parts = re.fullmatch(r"([^:]+:)([^-:,/]+)-([^:,/]+):(.+)", source)
    if not parts:
        raise UserError(field, "does not say which fields are source and target", f"give {FORMS}")
    items = open_items(parts[1] + parts[4], SourceRequest(field))
    fields = []
    for side in parts[2], parts[3]:
        found = [name for name in items.fields if name in (side, f"{side}.txt")]
        if not found:
            has = ", ".join(items.fields) or "no texts"
            raise UserError(field, f"its samples have no text {side} ({has})", "name two of their fields, FROM-TO")
        fields.append(found[0])
    for name in fields:
        empty = next((i for i, text in enumerate(items.texts(name)) if not text.strip()), -1)
        if empty >= 0:
            raise UserError(items.name(empty), f"its {name} is empty", "write it, or leave the sample out")
    return {split: InItems(part.items, fields) for split, part in items.splits().items()}


def place(pairs: Pairs, side: int, i: int) -> str:
    """Where a sentence of pair i stands, the source (0) or the target (1): its file and line, or its number."""
    if isinstance(pairs, Chosen):
        return place(pairs.pairs, side, int(np.flatnonzero(pairs.mask)[i]))
    return pairs.name(side, i) if isinstance(pairs, InFiles | InItems | InTexts) else f"pair {i}"


def read_pairs(source: str) -> dict[str, InFiles]:
    """{split: pairs} of a source; without splits all are train. Files are UTF-8, gzipped if their names end in .gz."""
    kind, _, rest = source.partition(":")
    if kind == "tsv":
        return {"train": InFiles(source, (Path(os.path.expanduser(rest)),))}
    if re.match(r"[^-:,/]+-[^:,/]+:.", rest):
        return _folder(source)
    files = rest.split(",")
    if len(files) != 2 or not all(files):
        raise UserError(Field("data.source"), f"is {source}", f"give {FORMS}, such as pairs:en-de:multi30k")
    return {"train": InFiles(source, tuple(Path(os.path.expanduser(file)) for file in files))}


def _folder(source: str) -> dict[str, InFiles]:
    """The pairs of `pairs:FROM-TO:FOLDER`; files whose names begin with test are read as test."""
    languages, _, path = source.removeprefix("pairs:").partition(":")
    left, _, right = languages.partition("-")
    folder = Path(os.path.expanduser(path))
    if not folder.is_dir():
        raise UserError(f"data.source {source}", f"there is no folder {path}", "check the path")
    names_there = (p.name.removesuffix(".gz") for p in folder.iterdir())
    stems = sorted({name.removesuffix(f".{left}") for name in names_there if name.endswith(f".{left}")})
    found: dict[str, InFiles] = {}
    for split, names in _NAMES.items():
        for stem in (s for s in stems if s in names or (split == "test" and s.startswith("test"))):
            files = [folder / f"{stem}.{language}" for language in (left, right)]
            there = [file if os.path.lexists(file) else file.with_name(f"{file.name}.gz") for file in files]
            found.setdefault(split, InFiles(source, tuple(there)))
    if "train" not in found:
        raise UserError(
            f"data.source {source}", f"has no pairs in train.{left} and train.{right} (or .gz)", "put them there"
        )
    return found


def _table(source: str, file: Path) -> Iterator[tuple[str, str]]:
    """The first two columns of a table, of which each line has as many as the first."""
    remedy, wide = "give a source, a tab and a target in each line", 0
    for i, line in enumerate(_lines(source, file, remedy), 1):
        columns = line.split("\t")
        fault = "" if len(columns) > 1 and columns[0].strip() and columns[1].strip() else f"{quote(line)} is no pair"
        wide = wide or len(columns)
        if not fault and len(columns) != wide:
            fault = f"has {len(columns)} columns, and line 1 has {wide}"
        if fault:
            raise UserError(f"data.source {source}: {file.name} line {i}", fault, remedy)
        yield columns[0], columns[1]


@contextlib.contextmanager
def _open_decompressed(source: str, path: Path) -> Iterator[gzip.GzipFile | BinaryIO]:
    """A file, decompressed. Raises UserError where it cannot be read."""
    try:
        with about(f"data.source {source}"):
            file = open_regular(path)
        with file, gzip.open(file) if path.suffix == ".gz" else file as text:
            yield text
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"data.source {source}",
            f"{path.name} cannot be read ({reason})",
            "give UTF-8 text with one sentence per line",
        ) from error


def _scan(source: str, path: Path) -> tuple[int, str]:
    """(lines, digest) of a file; a file without any has one that is empty."""
    digest, lines, last, unended = bytes_digest(), 0, b"", 0
    with _open_decompressed(source, path) as file:
        while data := file.read(1 << 20):
            digest.update(data)
            lines, last = lines + data.count(b"\n"), data[-1:]
            unended = len(data) - 1 - data.rfind(b"\n") if b"\n" in data else unended + len(data)
            if unended > LINE:  # at once, and not when its lines are read
                raise too_long(f"data.source {source}: {path.name}", lines + 1)
    return max(1, lines + (last not in (b"", b"\n"))), digest.hexdigest()


def _lines(source: str, path: Path, blank: str) -> Iterator[str]:
    """The lines of a file; `blank` as of `read_lines`."""
    with _open_decompressed(source, path) as file:
        yield from read_lines(file, f"data.source {source}: {path.name}", blank=blank)
