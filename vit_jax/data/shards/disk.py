"""Parts of shards in an object store, kept on this machine's disk: a later epoch, or run, does not fetch them again."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

from ...files.digests import bytes_digest, text_digest
from ...files.stores.base import Store
from ...machine.backend import cache_folder

_DIGEST = 16  # bytes at the end of a file, by which damage is seen


class Disk:
    """Reads of a store, of which so many bytes are kept. What another run left gives way, the oldest first."""

    def __init__(self, store: Store, room: float):
        self.url, self._store, self._room = store.url, store, room
        self._folder = cache_folder("shards") / "parts"
        self._lock = threading.Lock()
        found = []
        for path in self._folder.glob("*.part"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        self._others = deque(sorted(found))  # of other runs, or not asked for yet
        self._size = sum(size for _, size, _ in found)

    def read(self, name: str, start: int, stop: int, tag: str = "") -> bytes:
        """The bytes of an object, as `Store.read` gives them."""
        path = self._folder / f"{text_digest([self.url, name, tag, start, stop])}.part"
        with suppress(OSError):
            content = path.read_bytes()
            if len(content) == stop - start + _DIGEST and _digest(content[:-_DIGEST]) == content[-_DIGEST:]:
                os.utime(path)
                return content[:-_DIGEST]
        content = self._store.read(name, start, stop, tag)
        with suppress(OSError):  # a full disk, or one that cannot be written
            self._keep(path, content)
        return content

    def _keep(self, path: Path, content: bytes) -> None:
        size = len(content) + _DIGEST
        with self._lock:
            while self._size + size > self._room and self._others:
                changed, held, other = self._others.popleft()
                if other.exists() and other.stat().st_mtime_ns == changed:  # else it is used in this run
                    other.unlink()
                    self._size -= held
            if self._size + size > self._room:
                return
            self._size += size
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(prefix=".part-", dir=self._folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(content + _digest(content))
            os.replace(unfinished, path)
        except OSError:
            with self._lock:
                self._size -= size
            raise
        finally:
            Path(unfinished).unlink(missing_ok=True)


def _digest(content: bytes) -> bytes:
    digest = bytes_digest()
    digest.update(content)
    return digest.digest()
