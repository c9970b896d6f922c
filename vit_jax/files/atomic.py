"""The small files of a run: JSON, written whole or not at all and read within bounds; locks that end with a process."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import strict_json
from .reading import check_regular, read_regular, show_path

LARGEST_JSON = 16 << 20  # bytes
RESTORE = "restore the file or start a new run with `name`"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value to a file, atomically."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file of text as UTF-8, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: even after a power cut or on a full disk it has the old content or the new one."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context with the path of a new, empty file beside another, whose place it takes at the end if all went well."""
    temporary = path.with_name(f"{path.name}.tmp")
    for number in itertools.count(1):
        try:
            open(temporary, "xb").close()
            break
        except FileExistsError:
            temporary = path.with_name(f"{path.name}.{number}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, largest: int = LARGEST_JSON, remedy: str = RESTORE) -> dict[str, Any]:
    """Read a JSON object from a file."""
    try:
        value = strict_json.parse(read_regular(path, largest, remedy))
    except (OSError, ValueError) as error:
        raise UserError(show_path(path), f"cannot be read as JSON ({error})", remedy) from error
    if not isinstance(value, dict):
        raise UserError(show_path(path), "holds no JSON object", remedy)
    return value


def sync_file(path: Path) -> None:
    """Have the disk hold a file that was written, so that it may be renamed over another."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make renames inside a folder durable (a no-op on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(path: Path) -> None:
    """Have the disk hold the files and folders in a folder, all their names, and its own (a no-op on Windows)."""
    if os.name == "nt":
        return
    for base, _, files in os.walk(path):
        for name in files:
            sync_file(Path(base, name))
        sync_folder(Path(base))
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, so that their names are durable."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


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
