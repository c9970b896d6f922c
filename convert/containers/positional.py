"""Files that are read by position: never memory-mapped, because a file cut meanwhile would kill the process."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import numpy as np

from vit_jax.errors import UserError

CHUNK = 8 << 20  # bytes read at a time where only a part of them is kept


class PositionalFile:
    """A file opened for reading by position, which must not change while it is open."""

    def __init__(self, path: str):
        self.path = path
        self._file = open(path, "rb", buffering=0)
        self._state = self._stat()
        self.size = self._state[0]

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`. Raises UserError where the file ends before, or has changed."""
        return self.array(offset, size).tobytes()

    def array(self, offset: int, size: int) -> np.ndarray:
        """`size` bytes from `offset` as uint8 [size], in memory of its own. Raises as `read`."""
        if not 0 <= offset <= offset + size <= self.size:  # before anything is allocated
            raise UserError(
                f"{self.path}: is cut off: bytes {offset} to {offset + size} are wanted of {self.size}; get the file again"
            )
        array = np.empty(size, np.uint8)
        self.into(offset, array)
        return array

    def into(self, offset: int, array: np.ndarray) -> None:
        """Fill uint8 [size] with the bytes from `offset`. Raises as `read`."""
        view, done, size = memoryview(array), 0, len(array)
        self._file.seek(offset)
        while done < size and (count := self._file.readinto(view[done:])):
            done += count
        if done < size or self._stat() != self._state:
            raise UserError(f"{self.path}: has changed while it was read; repeat the command when nothing writes to it")

    def checked(self, offset: int, size: int, crc: int, start: int, stop: int) -> np.ndarray | None:
        """Bytes `start` to `stop` of the `size` at `offset`, uint8 [stop - start]; None where their CRC-32 is not `crc`.

        All bytes are read, and no more of them held than are wanted.
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

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns
