"""Tars of samples as webdataset writes them: members with one key, next to each other, are the fields of a sample.

The key is the name up to the first dot of its last part, the field what follows. Only the end mark of a tar, two blocks
of zeros, tells that it was not cut between two members.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...data.images.preprocess import EXTENSIONS
from ...errors import UserError
from ...files.places import Store
from .index import Index, edge_digest, read_edge

BLOCK = 512
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # how gzip, bzip2, xz and zstd begin
NEAR, FAR = 1 << 16, 8 << 20  # bytes that are read at once, of a file and of a store
AGAIN = "write it again, or fetch it again whole"
REGULAR, LONG_NAME, EXTENDED, SPARSE = (b"0", b"\0", b"7"), b"L", b"x", b"S"
_TEXT = 1 << 20  # bytes
_TEXTS = re.compile(r"(?:.*\.)?(cls|json|txt|text|captions?|transcript)")
_NAME = re.compile(r"((?:.*/|)[^./][^./]*|\./[^./]+)\.([^/]*)")


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    start: int  # of its content
    size: int


class Content:
    """The bytes of a shard, read from front to back."""

    def __init__(self, store: Store, name: str, size: int, tag: str):
        self.store, self.name, self.size, self.tag = store, name, size, tag
        self.kept: dict[int, bytes] = {}  # {start: content} of texts
        self._start, self._held = 0, b""
        self._step = NEAR if store.local else FAR

    def read(self, start: int, size: int) -> bytes:
        """Bytes of it, fewer at its end."""
        stop = min(start + size, self.size)
        if not self._start <= start <= stop <= self._start + len(self._held):
            self._start = start
            self._held = self.store.read(self.name, start, min(max(stop, start + self._step), self.size), self.tag)
        return self._held[start - self._start : stop - self._start]


def scan_tar(store: Store, name: str, size: int, tag: str) -> Index:
    """Read a tar once."""
    where = f"{store.url}/{name}"
    content = Content(store, name, size, tag)
    samples: dict[str, dict[str, Member]] = {}
    latest = ""
    for member in _members(where, content):
        parts = _NAME.fullmatch(member.name)
        if not parts or member.name.startswith("__meta__/"):
            continue
        key, field = parts[1], parts[2].lower()
        if key != latest and key in samples:
            what = f"has the sample {key} in two places: its fields do not follow each other"
            raise UserError(where, what, "write the fields of a sample together, and give each sample its own key")
        fields, latest = samples.setdefault(key, {}), key
        if field in fields:
            raise UserError(where, f"the sample {key} has .{field} twice", "give each sample its own key")
        fields[field] = member
    if not samples:
        raise UserError(where, "holds no samples", "write members such as 000001.jpg and 000001.cls")
    return _index(where, store, content, samples)


def is_text(field: str) -> bool:
    """Whether the content of a field is kept in the index: a label, JSON or a text."""
    return bool(_TEXTS.fullmatch(field))


def _index(where: str, store: Store, content: Content, samples: dict[str, dict[str, Member]]) -> Index:
    """The index of a tar with these samples. Raises UserError where one lacks a field that others have."""
    counts: dict[str, int] = {}
    images: list[Member | None] = []
    for key, fields in samples.items():
        pictures = [field for field in fields if f".{field}" in EXTENSIONS]
        if len(pictures) > 1:
            raise UserError(where, f"the sample {key} has two images, {' and '.join(pictures)}", "keep one of them")
        images.append(fields[pictures[0]] if pictures else None)
        for field in fields:
            if is_text(field):
                counts[field] = counts.get(field, 0) + 1
    lacking = [field for field, count in counts.items() if count < len(samples)]
    for field, has in (*((field, [field in each for each in samples.values()]) for field in lacking),
                       ("an image", [image is not None for image in images])):  # fmt: skip
        if any(has) and not all(has):
            key = [*samples][has.index(False)]
            said = field if field == "an image" else f".{field}"
            what = f"the sample {key} has no {said.removeprefix('an ')}, which others have"
            raise UserError(where, what, "add it, or leave the sample out")
    texts = {field: tuple(_texts(where, content, samples, field)) for field in sorted(counts)}
    n = len(images)
    starts = np.fromiter((image.start if image else -1 for image in images), np.int64, n)
    sizes = np.fromiter((image.size if image else 0 for image in images), np.int64, n)
    edge = edge_digest(read_edge(store, content.name, content.size, content.tag))
    nothing = np.zeros(0, np.int64)
    return Index(content.name, content.size, content.tag, edge, tuple(samples), starts, sizes, nothing, texts)


def _texts(where: str, content: Content, samples: dict[str, dict[str, Member]], field: str) -> Iterator[str]:
    """The content of a field in each sample."""
    for key, fields in samples.items():
        member = fields[field]
        if member.size > _TEXT:
            raise UserError(where, f"{key}.{field} has {member.size:,} bytes", f"give a text of {_TEXT:,} at most")
        try:
            yield content.kept[member.start].decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise UserError(where, f"{key}.{field} is no text in UTF-8", "write it as UTF-8") from error


def _members(where: str, content: Content) -> Iterator[Member]:
    """The regular files in a tar, by its headers; the contents of texts are kept. Raises UserError."""
    at, long_name, extended = 0, "", dict[str, str]()
    while True:
        header = content.read(at, BLOCK)
        if header.startswith(PACKED):
            what = "is compressed, so that no image in it can be read by itself"
            raise UserError(where, what, "unpack it to a plain tar")
        if len(header) < BLOCK or not any(header):
            break
        size, kind = _size(where, at, header), header[156:157]
        at += BLOCK
        if at + size > content.size:
            what = f"is cut: it ends in the content of {_name_of(header) or 'a member'}"
            raise UserError(where, what, AGAIN)
        if kind == LONG_NAME:
            long_name = content.read(at, size).rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif kind == EXTENDED:
            extended = _extended(content.read(at, size))
        elif kind == SPARSE:
            raise UserError(where, "has a sparse file", "write it again without")
        else:
            name = extended.get("path") or long_name or _name_of(header)
            size = int(extended["size"]) if extended.get("size", "").isdigit() else size
            if kind in REGULAR and not name.endswith("/"):
                if is_text(name.rpartition("/")[2].partition(".")[2].lower()) and size <= _TEXT:
                    content.kept[at] = content.read(at, size)
                yield Member(name, at, size)
            long_name, extended = "", {}
        at += -(-size // BLOCK) * BLOCK
    if len(header) < BLOCK or content.read(at, 2 * BLOCK) != bytes(2 * BLOCK):
        raise UserError(where, "is cut: it has no end mark, so members may be missing at its end", AGAIN)
    if any(content.read(at, FAR)):
        raise UserError(where, "has more after its end mark, as tars have that were joined", "give them one by one")


def _size(where: str, at: int, header: bytes) -> int:
    """The bytes of a member. Raises UserError where a header is none, or damaged."""
    field = header[148:156].strip(b"\0 ")
    sums = sum(header[:148]) + 8 * 32 + sum(header[156:])
    try:
        if int(field, 8) != sums:
            raise ValueError
        size = header[124:136]
        return int.from_bytes(size[1:], "big") if size[0] & 0x80 else int(size.strip(b"\0 ") or b"0", 8)
    except ValueError as error:
        what = "is no tar" if at == 0 else f"is damaged: there is no header at byte {at:,}"
        raise UserError(where, what, AGAIN if at else "give tars, as webdataset writes them") from error


def _name_of(header: bytes) -> str:
    """The name of a member as its header has it."""
    parts = (header[:100], header[345:500])
    name, prefix = (part.partition(b"\0")[0].decode("utf-8", "surrogateescape") for part in parts)
    return f"{prefix}/{name}" if prefix and header[257:262] == b"ustar" and header[262:263] != b" " else name


def _extended(content: bytes) -> dict[str, str]:
    """The records of a PAX header."""
    found = {}
    while content:
        length, _, _ = content.partition(b" ")
        if not length.isdigit() or not int(length):
            break
        key, _, value = content[len(length) + 1 : int(length) - 1].partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        content = content[int(length) :]
    return found
