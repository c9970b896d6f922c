"""Shards of MDS, the format of MosaicML's streaming: a table of offsets, a header, and samples one after the other.

u32 n; u32 offsets [n + 1], from the beginning of the file; the header, JSON with the columns; then of each sample the
u32 sizes of those columns whose size is not fixed, and the columns. All is little-endian. Compressed shards
(.mds.zstd, ...) cannot be read in parts.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from ...errors import UserError
from ...files.stores.base import Store
from .content import AGAIN, PACKED, Content
from .index import Index, edge_digest, read_edge

IMAGES = ("image", "img", "images", "bytes", "jpg", "png")  # names of columns of images that are plain bytes
_FILES = ("jpeg", "png")  # encodings of an image as a file
_TEXTS = ("str", "json", "str_int", "str_float", "str_decimal")
_NUMBERS = {"int": "i8"} | {f"{kind}{8 * size}": f"{kind[0]}{size}" for kind, sizes in
            (("uint", (1, 2, 4, 8)), ("int", (1, 2, 4, 8)), ("float", (2, 4, 8))) for size in sizes}  # fmt: skip


class Column(NamedTuple):
    """A column of the samples."""

    name: str
    encoding: str
    size: int | None  # in each sample; None: it differs


def scan_mds(store: Store, name: str, size: int, tag: str) -> Index:
    """Read an MDS shard once."""
    where = f"{store.url}/{name}"
    content = Content(store, name, size, tag)
    offsets, columns = _table(where, content)
    image = _image_column(where, columns)
    kept = [column.name for column in columns if column.encoding in (*_TEXTS, *_NUMBERS) and column.name != image]
    n = len(offsets) - 1
    starts, sizes = np.full(n, -1, np.int64), np.zeros(n, np.int64)
    texts: dict[str, list[str]] = {name: [] for name in kept}
    for i, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        for column, at, length in _cells(where, content, columns, i, start, stop):
            if column.name == image:
                starts[i], sizes[i] = at, length
            elif column.name in texts:
                texts[column.name].append(_text(where, i, column, content.read(at, length)))
    edge = edge_digest(read_edge(store, name, size, tag))
    nothing = np.zeros(0, np.int64)
    return Index(name, size, tag, edge, (), starts, sizes, nothing, {name: tuple(each) for name, each in texts.items()})


def _table(where: str, content: Content) -> tuple[np.ndarray, list[Column]]:
    """(offsets, int64 [n + 1]; the columns) of a shard. Raises UserError."""
    first = content.read(0, 4)
    if first.startswith(PACKED):
        what = "is compressed, so that no image in it can be read by itself"
        raise UserError(where, what, "write it with compression None, or unpack it")
    n = int.from_bytes(first, "little")
    end = 4 * (n + 2)
    offsets = np.frombuffer(content.read(4, end - 4), "<u4").astype(np.int64) if end < content.size else np.zeros(0)
    try:
        if not n or not end < offsets[0] <= content.size or (np.diff(offsets) <= 0).any():
            raise ValueError
        header = json.loads(content.read(end, int(offsets[0]) - end))
        names, encodings, sizes = (header[f"column_{key}"] for key in ("names", "encodings", "sizes"))
        columns = [Column(str(x), str(y), z) for x, y, z in zip(names, encodings, sizes, strict=True)]
        if not all(column.size is None or type(column.size) is int for column in columns):
            raise ValueError
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(where, "is no shard of MDS", "give those that MDSWriter writes, such as *.mds") from error
    if offsets[-1] != content.size:
        what = f"has {content.size:,} bytes, and its samples end at {offsets[-1]:,}"
        raise UserError(where, what, AGAIN)
    return offsets, columns


def _image_column(where: str, columns: list[Column]) -> str:
    """The column of images; empty where there is none. Raises UserError where there are several, or none is read."""
    found = [column for column in columns if column.encoding in _FILES]
    found = found or [column for column in columns if column.name in IMAGES and column.encoding == "bytes"]
    if len(found) > 1:
        raise UserError(where, f"has several images: {', '.join(column.name for column in found)}", "write it with one")
    other = next((column for column in columns if column.name in IMAGES), None)
    if not found and other and other.encoding not in (*_TEXTS, *_NUMBERS):
        what = f"its column {other.name} is encoded as {other.encoding}, which only its writer reads"
        raise UserError(where, what, "write it as jpeg or png")
    return found[0].name if found else ""


def _cells(
    where: str, content: Content, columns: list[Column], i: int, start: int, stop: int
) -> list[tuple[Column, int, int]]:
    """(column, where it begins, its bytes) of each column of sample i. Raises UserError where they do not fill it."""
    open_ = sum(column.size is None for column in columns)
    sizes = iter(np.frombuffer(content.read(start, 4 * open_), "<u4").tolist())
    at, found = start + 4 * open_, []
    for column in columns:
        length = next(sizes, 0) if column.size is None else column.size
        found.append((column, at, length))
        at += length
    if at != stop:
        raise UserError(where, f"is damaged: the columns of sample {i} do not fill it", AGAIN)
    return found


def _text(where: str, i: int, column: Column, content: bytes) -> str:
    """A cell as text. Raises UserError."""
    try:
        if kind := _NUMBERS.get(column.encoding):
            (number,) = np.frombuffer(content, f"<{kind}").tolist()
            return str(number)
        return content.decode("utf-8").strip()
    except (UnicodeDecodeError, ValueError) as error:
        what = f"{column.name} of sample {i} is no {column.encoding}"
        raise UserError(where, what, AGAIN) from error
