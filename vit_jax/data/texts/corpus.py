"""Pairs of sentences as ids: encoded some at a time, and kept on disk with their tokenizers, for all runs on them.

A corpus is a folder of the cache, named by a digest of all that decides its content. It is written under another name
and renamed, so it is whole or not there; what has been damaged since does not match its digests, and is made again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...errors import UserError
from ...files.atomic import read_json, write_json
from ...files.digests import bytes_digest, text_digest, with_digest, without_digest
from ...files.lines import quote
from ...files.reading import open_regular, read_regular
from ...machine.backend import cache_folder
from ...text.record import open_tokenizers, record_tokenizers
from ...text.spoken import prefix_of
from ...text.tokenizer import Tokenizer, encode_named
from .config import SentenceData
from .pairs import Pairs, place
from .sentences import Flat, dtype_of, from_lengths

CHUNK = 10_000
Rows = list[np.ndarray]  # int32 [N]


class Encoder:
    """Goes through the pairs of a split once, as their ids. `cut` counts the sentences that were cut so far."""

    def __init__(self, data: SentenceData, pairs: Pairs, source: Tokenizer, target: Tokenizer):
        self.pairs, self.sides, self.longest, self.cuts = pairs, (source, target), data.lengths[-1], data.cut
        self.source, self.cut = f"data.source {data.source}", 0
        self.prefix = prefix_of(data.prefix, data.task, source.files)

    def __iter__(self) -> Iterator[tuple[Rows, Rows]]:
        """(sources, targets) of some pairs after the others."""
        for first, some in self._chunks():
            # The decoder says an end, too.
            texts, rooms = zip(*some, strict=True), (self.longest, self.longest - 1)
            sources, targets = (self._encoded(*each, first) for each in zip((0, 1), rooms, texts, strict=True))
            yield sources, targets

    def _chunks(self) -> Iterator[tuple[int, list[tuple[str, str]]]]:
        """(the number of the first, some pairs)."""
        everything, first = iter(self.pairs), 0
        while some := list(itertools.islice(everything, CHUNK)):
            yield first, some
            first += len(some)

    def _encoded(self, side: int, room: int, texts: tuple[str, ...], first: int) -> Rows:
        tokenizer, rows, where = self.sides[side], [], functools.partial(self._where, side, first)
        for i, text in enumerate(texts):
            if not text.strip():
                raise UserError(where(i), "is empty", "mend it, or leave the pair out")
        texts = texts if side else tuple(self.prefix + text for text in texts)
        for i, found in enumerate(encode_named(tokenizer, texts, where)):
            if len(found) > room and not self.cuts:
                raise UserError(
                    where(i),
                    f"{quote(texts[i])} has {len(found)} {tokenizer.unit}, which is more than {room}",
                    "mend it, raise the last of `data.lengths`, or add `data.cut True` to cut all such sentences",
                )
            self.cut += len(found) > room
            rows.append(tokenizer.cut(found, room) if len(found) > room else found)
        return rows

    def _where(self, side: int, first: int, i: int) -> str:
        """Names a sentence of pair first + i of the split."""
        return f"{self.source}: {place(self.pairs, side, first + i)}"


class TextEncoder(Encoder):
    """Goes through texts once, as their ids without ends, in parts of at most `longest`; targets are empty."""

    def __init__(self, data: SentenceData, pairs: Pairs, source: Tokenizer, target: Tokenizer, longest: int):
        super().__init__(data, pairs, source, target)
        self.longest = longest

    def __iter__(self) -> Iterator[tuple[Rows, Rows]]:
        """(parts of texts, as many empty targets) of some texts after the others."""
        for first, some in self._chunks():
            where = functools.partial(self._where, 0, first)
            ids = encode_named(self.sides[1], [text for text, _ in some], where)
            parts = [x[start : start + self.longest] for x in ids for start in range(0, len(x), self.longest)]
            parts = [part for part in parts if len(part) > 1]  # of one token nothing can be taken out
            yield parts, [np.zeros(0, np.int32)] * len(parts)


def cut_remark(split: str, cut: int, pairs: int, longest: int) -> str:
    """A sentence on how many sentences of a split were cut; empty if none was."""
    return f"{split}: {cut:,} of {2 * pairs:,} sentences are longer than {longest} and were cut" if cut else ""


RECORD = "corpus.json"
LARGEST = 256 << 20  # bytes
SIDES = ("source", "target")
STALE = 86_400  # seconds after which a folder that nobody has finished is a killed process's


@dataclass(frozen=True)
class Corpus:
    """The pairs of a split as ids, and their tokenizers."""

    sides: tuple[Tokenizer, Tokenizer]
    source: Flat
    target: Flat
    cut: int
    digests: tuple[str, str]  # of the padded ids of both sides


def corpus_folder(key: Mapping[str, Any]) -> Path:
    """The folder of the corpus that `key`, a JSON object, decides."""
    return cache_folder("corpora") / text_digest(dict(key))


def find_corpus(folder: Path) -> Corpus | None:
    """The corpus in a folder; None if there is none, or a damaged one. Its ids are mapped, not read into memory."""
    try:
        record, intact = without_digest(read_json(folder / RECORD, LARGEST))
        if not intact or any(_digest(folder / name) != digest for name, digest in record["files"].items()):
            return None
        source, target = (_map_file(folder, side, record["sizes"][side]) for side in SIDES)
        metadata = {"vocabulary": record["vocabulary"]}
        metadata |= {"files": {name: read_regular(folder / name, LARGEST, "") for name in record["tokenizer"]}}
        return Corpus(open_tokenizers(metadata), source, target, record["cut"], tuple(record["digests"]))
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def build_corpus(
    folder: Path, sides: tuple[Tokenizer, Tokenizer], encoder: Encoder, digests: Callable[[Flat, Flat], Iterable[str]]
) -> None:
    """Encode a split into the folder of a corpus, unless another process has done so by then."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with open(unfinished / "source.ids", "wb") as a, open(unfinished / "target.ids", "wb") as b:
            lengths = [_append(rows, (a, b), sides) for rows in encoder]
        for side, each in zip(SIDES, zip(*lengths, strict=True), strict=True):
            (unfinished / f"{side}.lengths").write_bytes(np.concatenate(each).tobytes())
        metadata = record_tokenizers(*sides)
        for name, content in metadata.get("files", {}).items():
            (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / name).write_bytes(content)
        sizes = {side: len(each) for side, each in zip(SIDES, sides, strict=True)}
        names = [f"{side}.{what}" for side in SIDES for what in ("ids", "lengths")]
        tokenizer = [*metadata.get("files", {})]
        record = {
            "sizes": sizes,
            "cut": encoder.cut,
            "digests": [*digests(*(_map_file(unfinished, side, sizes[side]) for side in SIDES))],
            "vocabulary": metadata["vocabulary"],
            "tokenizer": tokenizer,
            "files": {name: _digest(unfinished / name) for name in (*names, *tokenizer)},
        }
        write_json(unfinished / RECORD, with_digest(record))
        _rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def link_corpus(alias: Path, folder: Path) -> None:
    """Let a corpus be found under the name of another key, too, where links can be made."""
    with contextlib.suppress(OSError):
        alias.symlink_to(folder.name)


def _append(rows: tuple[Any, Any], files: tuple[BinaryIO, BinaryIO], sides: Iterable[Tokenizer]) -> list[np.ndarray]:
    """Append the ids of some pairs to the files of both sides; returns the lengths, int32, of both."""
    for its, file, side in zip(rows, files, sides, strict=True):
        file.write(np.concatenate(its).astype(dtype_of(len(side))).tobytes())
    return [np.array([*map(len, its)], np.int32) for its in rows]


def _map_file(folder: Path, side: str, size: int) -> Flat:
    file = folder / f"{side}.ids"  # of texts without targets it is empty, which cannot be mapped
    ids = np.memmap(file, dtype_of(size), mode="r") if file.stat().st_size else np.zeros(0, dtype_of(size))
    return from_lengths(ids, np.fromfile(folder / f"{side}.lengths", np.int32))


def _digest(file: Path) -> str:
    with open_regular(file) as opened_file:
        return hashlib.file_digest(opened_file, bytes_digest).hexdigest()


def _rename(unfinished: Path, folder: Path) -> None:
    """Give a whole corpus its name, in the place of a damaged one."""
    for _ in range(3):
        try:
            os.rename(unfinished, folder)
            return
        except OSError:
            if not folder.exists():
                raise
        if find_corpus(folder) is not None:
            return  # another process was faster
        damaged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            os.rename(folder, damaged / "damaged")
        except FileNotFoundError:
            pass  # another process has moved it
        finally:
            shutil.rmtree(damaged, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Remove what killed processes left of this corpus."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        if time.time() - left.stat().st_mtime > STALE:
            shutil.rmtree(left, ignore_errors=True)
