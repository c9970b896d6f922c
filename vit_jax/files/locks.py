"""Locks that end with the process that holds them, whatever ends it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import UserError
from .atomic import make_folder
from .reading import check_regular, show_path


@contextlib.contextmanager
def lock_file(path: Path, taken: Callable[[str], None]) -> Iterator[None]:
    """A context in which this process has locked a file, which is made with its folder."""
    held = False
    while not held:
        make_folder(path.parent)
        check_regular(path, link=False)  # its content is replaced
        try:
            file = open(path, "a+", encoding="utf-8")
        except FileNotFoundError:  # another process that has ended has removed the folder in between
            continue
        with file:
            try:
                free = try_lock(file.fileno())
            except OSError as error:
                raise UserError(
                    show_path(path),
                    f"cannot be locked ({error.strerror})",
                    "choose a folder on a file system that has locks",
                ) from error
            if not free:
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


def is_locked(path: Path) -> bool:
    """Whether a process has locked a file; False where that cannot be known."""
    with contextlib.suppress(OSError, UserError):
        check_regular(path, link=False)
        with open(path, "r+b") as file:
            return not try_lock(file.fileno())
    return False


def try_lock(file: int) -> bool:
    """Lock an open file until it is closed or its process ends; False if another process has locked it."""
    try:
        if os.name == "nt":
            import msvcrt

            # A byte far behind what the file holds, which others can then still read.
            os.lseek(file, 1 << 20, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:
        if os.name != "nt":  # there it says that another process has it
            raise
        return False
    finally:
        os.lseek(file, 0, os.SEEK_SET)
    return True
