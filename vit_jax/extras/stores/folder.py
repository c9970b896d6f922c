"""The store that is a local folder; and what all stores say of objects that are not as they were."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ...files.atomic import make_folder, sync_folder, write_bytes
from ...files.places import Stat, StoreError, check_name
from ...files.reading import check_regular, open_regular


def replaced(where: str) -> StoreError:
    """The error for an object that is another one than before."""
    return StoreError(
        where, "was replaced while it was read: its tag is another", "start again with the object as it is"
    )


def too_short(where: str, size: int, stop: int) -> StoreError:
    """The error for an object that ends too early."""
    return StoreError(where, f"ends after {size:,} bytes, and {stop:,} were to be read", "restore the whole object")


class Folder:
    """The files below a local folder."""

    local = True

    def __init__(self, path: str):
        self.url = os.path.expanduser(path or ".").rstrip("/") or "/"

    def _path(self, name: str) -> str:
        return os.path.join(self.url, check_name(name))

    def stat(self, name: str, guess: int = 0) -> Stat:
        path = self._path(name)
        try:
            check_regular(path)
            found = os.stat(path)
        except OSError as error:
            raise StoreError(path, f"cannot be read ({error.strerror})", "put it there, or mend its path") from error
        return Stat(found.st_size, _tag(found))

    def tag(self, name: str) -> str | None:
        return self.stat(name).tag if os.path.lexists(self._path(name)) else None

    def read(self, name: str, start: int, stop: int, tag: str = "") -> bytes:
        path = self._path(name)
        try:
            with open_regular(path) as file:
                found = os.fstat(file.fileno())
                if tag and _tag(found) != tag:
                    raise replaced(path)
                file.seek(start)
                content = file.read(stop - start)
                if len(content) < stop - start:
                    raise too_short(path, found.st_size, stop)
                return content
        except OSError as error:
            raise StoreError(path, f"cannot be read ({error.strerror})", "put it there, or mend its path") from error

    def load(self, name: str) -> bytes | None:
        if not os.path.lexists(self._path(name)):
            return None
        return self.read(name, 0, self.stat(name).size)

    def list(self, prefix: str = "") -> list[str]:
        base = prefix.rpartition("/")[0]
        found = []
        for folder, folders, files in os.walk(os.path.join(self.url, base), followlinks=True):
            inside = os.path.relpath(folder, self.url)
            folders[:] = [each for each in folders if not each.startswith(".")]
            found += [each if inside == "." else f"{inside}/{each}" for each in files]
        return sorted(name for name in found if name.startswith(prefix))

    def put(self, name: str, content: bytes) -> None:
        path = Path(self._path(name))
        make_folder(path.parent)
        write_bytes(path, content)

    def create(self, name: str, content: bytes) -> bool:
        path = Path(self._path(name))
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            write_bytes(temporary, content)
            os.link(temporary, path)  # unlike a rename it replaces nothing
        except FileExistsError:
            return self.load(name) == content
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
        return True

    def delete(self, name: str) -> None:
        Path(self._path(name)).unlink(missing_ok=True)


def _tag(found: os.stat_result) -> str:
    return f"{found.st_size}-{found.st_mtime_ns}" if stat.S_ISREG(found.st_mode) else ""
