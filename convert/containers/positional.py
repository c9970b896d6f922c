"""Files that are read by position. Memory maps would kill the process where a file is cut while it is open."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

import numpy as np

from vit_jax.errors import UserError
from vit_jax.files.reading import open_regular

CHUNK = 8 << 20  # bytes read at a time where only some of them are wanted
OPEN = 64  # files that are open at the same time


class PositionalFile:
    """A file opened for reading by position; it must stay the same file, of the same size and time, while it is open.

    Of many (the shards of a large network) only the last OPEN are open for the system, which allows few to a process;
    the others are opened again when they are read.
    """

    _opened: ClassVar[dict[PositionalFile, BinaryIO]] = {}  # the last one used is the last

    def __init__(self, path: str):
        self.path = path
        self._state = _state(self._file())
        self.size = self._state[0]

    def close(self) -> None:
        """Close the file."""
        if file := self._opened.pop(self, None):
            file.close()

    def _file(self) -> BinaryIO:
        """The file, open."""
        file = self._opened.pop(self, None) or open_regular(self.path, buffering=0)
        while len(self._opened) >= OPEN:
            next(iter(self._opened)).close()
        self._opened[self] = file
        return file

    def read(self, offset: int, size: int) -> bytes:
        """The bytes of a part of the file."""
        return self.array(offset, size).tobytes()

    def array(self, offset: int, size: int) -> np.ndarray:
        """The bytes of a part of the file as an array of its own -> uint8 [size]."""
        if not 0 <= offset <= offset + size <= self.size:  # before anything is allocated
            raise UserError(
                self.path,
                f"is cut off: it has {self.size} bytes, and bytes {offset} to {offset + size} are needed",
                "get the file again",
            )
        array = np.empty(size, np.uint8)
        self.into(offset, array)
        return array

    def into(self, offset: int, array: np.ndarray) -> None:
        """Fill an array with the bytes of a part of the file: array uint8 [size]."""
        view, done, size = memoryview(array), 0, len(array)
        try:
            file = self._file()
        except FileNotFoundError:
            raise UserError(self.path, "was removed while it was read", "get the file again") from None
        try:
            file.seek(offset)
            while done < size and (count := file.readinto(view[done:])):  # type: ignore[attr-defined]
                done += count
        except OSError as error:  # the system does not say which file it is
            raise OSError(error.errno, error.strerror, self.path) from error
        if done < size or _state(file) != self._state:
            raise UserError(self.path, "has changed while it was read", "try again when no process writes to it")

    def checked(self, offset: int, size: int, crc: int, start: int, stop: int) -> np.ndarray | None:
        """Some of the bytes of a part of the file. All of the part is read for its CRC; only what is wanted is kept in
        memory. Returns uint8 [stop - start]; None if the CRC-32 is another.
        """
        if (start, stop) == (0, size):
            array = self.array(offset, size)
            return array if zlib.crc32(array) == crc else None
        kept, found = np.empty(stop - start, np.uint8), 0
        for at, chunk in self._chunks(offset, size):
            found = zlib.crc32(chunk, found)
            low, high = max(start, at), min(stop, at + len(chunk))
            if low < high:
                kept[low - start : high - start] = chunk[low - at : high - at]
        return kept if found == crc else None

    def _chunks(self, offset: int, size: int) -> Iterator[tuple[int, np.ndarray]]:
        for at in range(0, size, CHUNK):
            yield at, self.array(offset + at, min(CHUNK, size - at))


def _state(file: BinaryIO) -> tuple[int, ...]:
    """Size, time of the last change, and identity of an open file."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino
