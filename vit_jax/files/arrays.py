"""Arrays in files of numpy, .npy and .npz, which strangers may have written: none is larger than its file can hold."""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from ..errors import UserError
from .reading import open_regular, show_path

UNPACKED, RATIO = 256 << 20, 100  # bytes of any compressed array; how many more than its packed ones it may have beyond
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_array(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of a .npy."""
    with open_regular(path) as file, _damage():
        return _array(file, os.fstat(file.fileno()).st_size, Path(path).name)


def array_sizes(path: str | os.PathLike[str]) -> dict[str, int]:
    """{array of a .npz: the bytes that it states}."""
    with open_regular(path) as file, _damage(), zipfile.ZipFile(file) as archive:
        return {name: member.file_size for name, member in _members(archive).items()}


def read_arrays(path: str | os.PathLike[str], names: Collection[str]) -> dict[str, np.ndarray]:
    """Those arrays of a .npz whose names are wanted and there."""
    found: dict[str, np.ndarray] = {}
    with open_regular(path) as file, _damage(), zipfile.ZipFile(file) as archive:
        for name, member in _members(archive).items():
            if name not in names:
                continue
            if member.file_size > max(UNPACKED, RATIO * member.compress_size):
                raise UserError(
                    show_path(path),
                    f"{name} takes {member.file_size:,} bytes, more than {RATIO} times its {member.compress_size:,}",
                    "save it with numpy.savez, which does not compress",
                )
            with archive.open(member) as content:
                found[name] = _array(content, member.file_size, name)
    return found


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """A context in which the exceptions of many classes that a damaged file causes are a ValueError."""
    try:
        yield
    except (OSError, UserError, ValueError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by the names of their arrays. Raises ValueError where two have one name."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in found:
            raise ValueError(f"the array {name[:100]!r} is there twice")
        found[name] = member
    return found


def _array(file: IO[bytes], size: int, name: str) -> np.ndarray:
    """The array in a .npy of `size` bytes, open at its beginning."""
    header = HEADERS.get(npy.read_magic(file))
    if header is None:
        raise ValueError(f"{name} is of another version of .npy than 1 and 2")
    shape, _, dtype = header(file)
    stated, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if stated != held and not dtype.hasobject:
        raise ValueError(f"{name} is {dtype} {list(shape)}, which takes {stated:,} bytes, but {held:,} are in the file")
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)
