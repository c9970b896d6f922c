"""Locks that end with the process that holds them, whatever ends it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import check_regular, make_folder, shown


@contextlib.contextmanager
def locked(path: Path, taken: Callable[[str], None]) -> Iterator[None]:
    """A context in which this process has locked a file, which is made with its folder.

    While another process has it, `taken` is called again and again with the number of that process, or "unknown": it
    raises or waits. Raises UserError where the file system has no locks.
    """
    held = False
    while not held:
        make_folder(path.parent)
        check_regular(path, link=False)  # its content is replaced
        try:
            file = open(path, "a+", encoding="utf-8")
        except FileNotFoundError:  # another process that has ended has removed the folder in between
            continue
        with file:
            if not _try_lock(file):
                file.seek(0)
                taken(file.read().strip() or "unknown")
                continue
            # Another process that has ended may have removed the file in between: then lock a new one.
            with contextlib.suppress(FileNotFoundError):
                held = os.path.samestat(os.fstat(file.fileno()), path.stat())
            if held:
                file.seek(0)
                file.truncate()
                file.write(str(os.getpid()))
                file.flush()
                yield


def _try_lock(file: Any) -> bool:
    """Lock a file until it is closed or the process ends; False if another process has locked it."""
    try:
        if os.name == "nt":
            import msvcrt

            # A byte far behind the process id, which others can then still read.
            file.seek(1 << 20)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if os.name == "nt" and isinstance(error, PermissionError):  # how Windows says it; elsewhere it is not a lock
            return False
        raise UserError(
            f"{shown(Path(file.name))}: cannot be locked ({error.strerror}); "
            "choose a folder on a file system that has locks"
        ) from error
    return True
