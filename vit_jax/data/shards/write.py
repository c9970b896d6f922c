"""Write labelled images as tars of webdataset, each with its index beside it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ...errors import UserError
from ...files.stores.base import Store
from ...files.stores.folder import Folder
from ..images.config import numbered_classes
from ..images.sources.base import Examples, Source
from .pattern import INDEX
from .tar import BLOCK, scan_tar

_BEGINNINGS = {  # {how a file begins: its suffix}
    b"\xff\xd8": "jpg", b"\x89PNG": "png", b"RIFF": "webp", b"GIF": "gif", b"BM": "bmp", b"II": "tif", b"MM": "tif",
    b"P": "ppm",
}  # fmt: skip
NAMES = "classes.txt"  # the names of the classes, where their order is not that of the alphabet


class Written(NamedTuple):
    """The shards of a split."""

    split: str
    shards: int
    images: int
    size: int  # bytes


def write_splits(store: Store, source: Source, most: int, show: Callable[[int], None]) -> list[Written]:
    """Write all splits of a source."""
    if NAMES in flags_of(source):
        store.put(NAMES, "".join(f"{name}\n" for name in source.class_names).encode())
    written, before = [], 0
    for split, examples in source.splits.items():
        shards = size = images = 0
        for content, count in _tars(source, examples, most):
            name = f"{split}-{shards:05}.tar"
            store.put(name, content)
            store.put(name + INDEX, scan_tar(_Held(store.url, content), name, len(content), "").to_bytes())
            shards, size, images = shards + 1, size + len(content), images + count
            show(before + images)
        before += images
        written.append(Written(split, shards, images, size))
    return written


def flags_of(source: Source) -> str:
    """The flags by which the labels of what was written are read, beside the pattern."""
    if source.outputs.kind == "class":
        known = _in_cls(source) or [*source.class_names] == numbered_classes(len(source.class_names))
        return "" if known else f" --data.class-names {NAMES}"
    names = ["label"] if source.outputs.kind == "set" else [*source.outputs.names]
    return f" --data.labels {' '.join(names)} --data.target {source.outputs.kind}"


def _in_cls(source: Source) -> bool:
    """Whether the names of classes, written into .cls, get the numbers that they have."""
    names = [*source.class_names]
    return names == sorted(names) and not any(name.isdigit() or name != name.strip() for name in names)


def _tars(source: Source, examples: Examples, most: int) -> Iterator[tuple[bytes, int]]:
    """(the bytes of a tar, its images) of each shard of a split."""
    file, count = io.BytesIO(), 0
    for i in range(len(examples.labels)):
        image = _encoded(examples, i)
        label, content = _label(source, examples.labels[i])
        if count and file.tell() + len(image) > most:
            yield _ended(file), count
            file, count = io.BytesIO(), 0
        for suffix, each in ((_suffix(image), image), (label, content)):
            info = tarfile.TarInfo(f"{i:08}.{suffix}")
            info.size = len(each)
            file.write(info.tobuf(tarfile.GNU_FORMAT) + each + bytes(-len(each) % BLOCK))
        count += 1
    if count:
        yield _ended(file), count


def _ended(file: io.BytesIO) -> bytes:
    file.write(bytes(2 * BLOCK))
    return file.getvalue()


def _suffix(image: bytes) -> str:
    """The suffix of the file of an image, by how it begins."""
    return next((suffix for beginning, suffix in _BEGINNINGS.items() if image.startswith(beginning)), "jpg")


def _encoded(examples: Examples, i: int) -> bytes:
    """An image as the bytes of a file: its own, or a PNG of its pixels."""
    from PIL import Image

    raw: Any = examples.read(i)
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, np.ndarray):
        raw = Image.fromarray(raw[..., 0] if raw.ndim == 3 and raw.shape[-1] == 1 else raw)
    file = io.BytesIO()
    raw.save(file, "PNG")
    return file.getvalue()


def _label(source: Source, label: Any) -> tuple[str, bytes]:
    """(field, content) of the label of an image."""
    names = source.outputs.names
    if source.outputs.kind == "class":
        return "cls", (names[label] if _in_cls(source) else str(int(label))).encode()
    if source.outputs.kind == "number":
        return "json", json.dumps(dict(zip(names, map(float, label), strict=True))).encode()
    if (label < 0).any():
        raise UserError(
            "a label", "is unknown, and a list of labels cannot say that", "keep the table beside the images"
        )
    return "json", json.dumps({"label": [names[k] for k in np.flatnonzero(label)]}).encode()


class _Held(Folder):
    """A store that holds one object."""

    def __init__(self, url: str, content: bytes):
        self.url, self._content = url, content

    def read(self, name: str, start: int, stop: int, tag: str = "") -> bytes:
        return self._content[start:stop]
