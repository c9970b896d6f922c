"""The records of a folder that is kept in a store: which objects its files were, one record after the other.

A record is created where none of its number is, once all that it names is there. So a reader always finds a folder
that is whole, and of two writers one learns that the other has gone on in its place.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ...files import strict_json
from ...files.digests import text_digest, with_digest
from ...files.places import Store, StoreError, check_name

KEPT = 2  # newest records whose objects stay
NEWEST = "records/newest.json"  # {"number": of the newest record, or of one shortly before}


class File(NamedTuple):
    """A file of the folder: its parts in the store, in order, as [(name of an object, its bytes)]."""

    bytes: int
    digest: str
    parts: list[tuple[str, int]]


@dataclass(frozen=True)
class Writer:
    """A process that writes records."""

    number: int  # each has a higher one than those before
    name: str
    place: str  # where it keeps its copy: a word that is drawn once for each folder of copies
    nonce: str  # drawn for it alone


@dataclass(frozen=True)
class Record:
    """What the folder held, as {path: File}; `open` where its writer meant to go on."""

    number: int
    writer: Writer
    open: bool
    files: dict[str, File]


class Records:
    """The records in a store."""

    def __init__(self, store: Store):
        self.store = store

    def newest(self) -> int:
        """The number of the newest record; 0 where there is none."""
        number = self._read_newest_number()
        if not number or self.store.tag(_name(number)) is None:
            number = max(self.numbers(), default=0)
        while number and self.store.tag(_name(number + 1)) is not None:  # its writer was killed, or a listing is late
            number += 1
        return number

    def _read_newest_number(self) -> int:
        if self.store.tag(NEWEST) is None:  # quick, also where nothing answers
            return 0
        with contextlib.suppress(ValueError, TypeError, KeyError):
            number = strict_json.parse(self.store.load(NEWEST) or b"")["number"]
            return number if isinstance(number, int) and number > 0 else 0
        return 0

    def read(self, number: int) -> Record | None:
        """The record of a number; None where there is none, or it is damaged."""
        content = self.store.load(_name(number))
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, StoreError):
            return _parse(number, content or b"")
        return None

    def last(self, number: int) -> Iterator[Record]:
        """The records up to a number that are kept and not damaged, newest first."""
        for each in range(number, max(number - KEPT, 0), -1):
            if (found := self.read(each)) is not None:
                yield found

    def create(self, record: Record) -> bool:
        """Write a record. Returns whether it is there now; else another of its number is."""
        content = json.dumps(with_digest(asdict(record)), separators=(",", ":")).encode()
        if not self.store.create(_name(record.number), content):
            return False
        self.store.put(NEWEST, json.dumps({"number": record.number}).encode())
        return True

    def delete(self, number: int) -> None:
        self.store.delete(_name(number))

    def clear(self) -> None:
        for number in self.numbers():
            self.delete(number)
        self.store.delete(NEWEST)

    def numbers(self) -> list[int]:
        """Those of all records that are listed."""
        found = (name.removeprefix("records/").removesuffix(".json") for name in self.store.list("records/"))
        return sorted(int(each) for each in found if each.isdecimal())


def _name(number: int) -> str:
    return f"records/{number:08}.json"


def _parse(number: int, content: bytes) -> Record:
    """A record. Raises ValueError, TypeError, KeyError, AttributeError or StoreError where it is damaged."""
    value: dict[str, Any] = strict_json.parse(content)
    if value.pop("digest") != text_digest(value) or value["number"] != number:
        raise ValueError("its digest differs")
    files = {
        check_name(path): File(int(size), str(digest), [(check_name(name), int(each)) for name, each in parts])
        for path, (size, digest, parts) in value["files"].items()
    }
    if any(file.bytes != sum(size for _, size in file.parts) for file in files.values()):
        raise ValueError("a file has other bytes than its parts")
    return Record(number, Writer(**value["writer"]), bool(value["open"]), files)
