"""Tars of samples as webdataset writes them: members with one key, next to each other, are the fields of a sample.

The key is the name up to the first dot of its last part, the field what follows. Only the end mark of a tar, two blocks
of zeros, tells that it was not cut between two members.
"""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from ...data.images.preprocess import EXTENSIONS
from ...errors import UserError
from ...files.digests import content_digest
from ...files.places import Store
from .index import AGAIN, Index, ObjectFile, read_edge

BLOCK = 512
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # how gzip, bzip2, xz and zstd begin
NEAR, FAR = 1 << 16, 8 << 20  # bytes that are read at once, of a file and of a store
_TEXT = 1 << 20  # bytes
_TEXTS = re.compile(r"(?:.*\.)?(cls|json|txt|text|captions?|transcript)")
_NAME = re.compile(r"((?:.*/|)[^./][^./]*|\./[^./]+)\.([^/]*)")


class Member(NamedTuple):
    """A file in a tar."""

    name: str
    start: int  # of its content
    size: int
    text: bytes  # its content, of one that is kept in the index


def scan_tar(store: Store, name: str, size: int, tag: str) -> Index:
    """Read a tar once."""
    where = f"{store.url}/{name}"
    file = io.BufferedReader(ObjectFile(store, name, size, tag), NEAR if store.local else FAR)
    samples: dict[str, dict[str, Member]] = {}
    latest = ""
    for member in _members(where, file, size):
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
    images, texts = _images(where, samples), _texts(where, samples)
    n = len(images)
    starts = np.fromiter((image.start if image else -1 for image in images), np.int64, n)
    sizes = np.fromiter((image.size if image else 0 for image in images), np.int64, n)
    edge = content_digest(read_edge(store, name, size, tag))
    return Index(name, size, tag, edge, tuple(samples), starts, sizes, np.zeros(0, np.int64), texts)


def is_text(field: str) -> bool:
    """Whether the content of a field is kept in the index: a label, JSON or a text."""
    return bool(_TEXTS.fullmatch(field))


def _images(where: str, samples: dict[str, dict[str, Member]]) -> list[Member | None]:
    """The image of each sample, if they have one. Raises UserError where only some do."""
    images: list[Member | None] = []
    for key, fields in samples.items():
        pictures = [field for field in fields if f".{field}" in EXTENSIONS]
        if len(pictures) > 1:
            raise UserError(where, f"the sample {key} has two images, {' and '.join(pictures)}", "keep one of them")
        images.append(fields[pictures[0]] if pictures else None)
    if any(images):
        _check_all_have(where, "image", samples, [image is not None for image in images])
    return images


def _texts(where: str, samples: dict[str, dict[str, Member]]) -> dict[str, tuple[str, ...]]:
    """{field: its text in each sample}. Raises UserError where a sample lacks a field that others have."""
    found = {field for fields in samples.values() for field in fields if is_text(field)}
    for field in sorted(found):
        _check_all_have(where, f".{field}", samples, [field in fields for fields in samples.values()])
    return {
        field: tuple(_text(where, f"{key}.{field}", fields[field]) for key, fields in samples.items())
        for field in sorted(found)
    }


def _check_all_have(where: str, what: str, samples: dict[str, dict[str, Member]], has: list[bool]) -> None:
    """Raise UserError about the first sample that has not what others have."""
    if not all(has):
        key = [*samples][has.index(False)]
        raise UserError(where, f"the sample {key} has no {what}, which others have", "add it, or leave the sample out")


def _text(where: str, name: str, member: Member) -> str:
    """The content of a field."""
    if member.size > _TEXT:
        raise UserError(where, f"{name} has {member.size:,} bytes", f"give a text of {_TEXT:,} at most")
    try:
        return member.text.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(where, f"{name} is no text in UTF-8", "write it as UTF-8") from error


def _members(where: str, file: BinaryIO, size: int) -> Iterator[Member]:
    """The regular files in a tar of so many bytes, with the contents of texts. Raises UserError."""
    if file.read(BLOCK).startswith(PACKED):
        what = "is compressed, so that no image in it can be read by itself"
        raise UserError(where, what, "unpack it to a plain tar")
    file.seek(0)
    try:
        archive = tarfile.TarFile(fileobj=file, encoding="utf-8")
    except tarfile.TarError as error:
        raise UserError(where, "is no tar", "give tars, as webdataset writes them") from error
    try:
        while (found := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # else all stay in memory
            start, length = found.offset_data, found.size
            if start + length > size:
                raise UserError(where, f"is cut: it ends in the content of {found.name}", AGAIN)
            if found.issparse():
                raise UserError(where, "has a sparse file", "write it again without")
            if found.isreg():
                text = b""
                if length <= _TEXT and is_text(posixpath.basename(found.name).partition(".")[2].lower()):
                    file.seek(start)
                    text = file.read(length)
                yield Member(found.name, start, length, text)
    except (tarfile.TarError, ValueError) as error:
        raise UserError(where, f"is cut or damaged after byte {archive.offset:,} ({error})", AGAIN) from error
    _check_end(where, file, archive.offset)


def _check_end(where: str, file: BinaryIO, end: int) -> None:
    """Raise UserError unless a tar ends with two blocks of zeros behind its last member, and nothing after them."""
    file.seek(end)
    rest = file.read(FAR)
    if len(rest) >= BLOCK and any(rest[:BLOCK]):
        raise UserError(where, f"is damaged: there is no header at byte {end:,}", AGAIN)
    if rest[: 2 * BLOCK] != bytes(2 * BLOCK):
        raise UserError(where, "is cut: it has no end mark, so members may be missing at its end", AGAIN)
    if any(rest):
        raise UserError(where, "has more after its end mark, as tars have that were joined", "give them one by one")
