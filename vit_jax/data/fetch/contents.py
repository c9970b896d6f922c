"""What official archives hold: pixels, labels and names of classes, read without TensorFlow and without pickle.

Members are read by their exact names and in their exact sizes; nothing is extracted to the disk.
"""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import UserError
from .archives import CifarSet, IdxSet, OfficialSet

_MOST_NAMES = 1 << 16  # bytes of a list of class names
_OTHER = 1 << 20  # bytes of a member that is not used, such as readme.html


@dataclass(frozen=True)
class Contents:
    """A set as its archives hold it."""

    pixels: dict[str, np.ndarray]  # {split: uint8 [n, h, w, C]}
    labels: dict[str, np.ndarray]  # {split: integers [n]}
    names: tuple[str, ...]  # of the classes


def read_contents(official: OfficialSet, paths: Sequence[Path]) -> Contents:
    """The images and labels in a set's archives."""
    try:
        return _cifar(official, paths[0]) if isinstance(official, CifarSet) else _idx(official, paths)
    except (EOFError, ValueError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        named = " and ".join(map(str, paths))
        raise UserError(named, f"cannot be read ({error})", "remove it, and repeat the command") from error


def _cifar(official: CifarSet, path: Path) -> Contents:
    first = official.label + 1  # byte of the pixels
    record = first + math.prod(official.shape)
    exact = {batch.member: batch.images * record for batch in official.batches}
    most = {official.names: _MOST_NAMES, **exact}
    found: dict[str, bytes] = {}
    with tarfile.open(path, "r:gz") as archive:
        while found.keys() != most.keys() and (member := archive.next()) is not None:
            if member.size > most.get(member.name, _OTHER) or member.size < exact.get(member.name, 0):
                raise ValueError(f"{member.name!r} has {member.size:,} bytes")
            if member.name in most:
                file = archive.extractfile(member) if member.isreg() else None
                if file is None:
                    raise ValueError(f"{member.name!r} is not a file")
                found[member.name] = file.read()
    if missing := sorted(most.keys() - found.keys()):
        raise ValueError(f"it has no {missing[0]}")

    pixels, labels = {}, {}
    for split in official.splits:
        records = np.concatenate(
            [np.frombuffer(found.pop(b.member), np.uint8) for b in official.batches if b.split == split]
        ).reshape(-1, record)
        labels[split] = records[:, official.label]
        pixels[split] = records[:, first:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Contents(pixels, labels, tuple(filter(None, found[official.names].decode().split("\n"))))


def _idx(official: IdxSet, paths: Sequence[Path]) -> Contents:
    pixels, labels = {}, {}
    for i, (split, n) in enumerate(official.splits.items()):
        with gzip.open(paths[2 * i]) as images, gzip.open(paths[2 * i + 1]) as numbers:
            pixels[split] = _array(images, 0x803, (n, *official.shape[:2]))[..., None]
            labels[split] = _array(numbers, 0x801, (n,))
    return Contents(pixels, labels, official.names)


def _array(file: IO[bytes] | gzip.GzipFile, magic: int, shape: tuple[int, ...]) -> np.ndarray:
    """The array of an idx file: `magic` and the sizes as big-endian int32, then uint8 in C order."""
    head = np.array([magic, *shape], ">i4").tobytes()
    size = len(head) + int(np.prod(shape))
    content = file.read(size + 1)
    if len(content) != size or not content.startswith(head):
        raise ValueError(f"it does not hold bytes of shape {list(shape)}")
    return np.frombuffer(content, np.uint8, offset=len(head)).reshape(shape)
