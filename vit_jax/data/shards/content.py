"""The bytes of a shard, read from front to back, to index it."""

from __future__ import annotations

from ...files.stores.base import Store

PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # how gzip, bzip2, xz and zstd begin
NEAR, FAR = 1 << 16, 8 << 20  # bytes that are read at once, of a file and of a store
AGAIN = "write it again, or fetch it again whole"


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
