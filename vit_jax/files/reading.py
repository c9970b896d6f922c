"""Files that are read: regular ones alone, within bounds on their bytes and lines, whoever wrote them.

Opening a pipe would wait for its writer, and a device has no end. `open_regular` is what all commands open files with.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ..errors import UserError

LINE = 1 << 20  # bytes
IN_ITS_PLACE = "put a file in its place, or remove it"
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISLNK, "a link"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


COPIES: dict[str, str] = {}  # {a folder in which this process has copies of what is kept in stores: its URL}


def show_path(path: str | os.PathLike[str]) -> str:
    """A path as a user would type it: relative if that is shorter; of a copy of what is kept in a store, its URL."""
    path = os.fspath(path)
    for folder, url in COPIES.items():
        if path.startswith(folder):
            return url + path[len(folder) :].replace(os.sep, "/")
    try:
        relative = os.path.relpath(path)
    except ValueError:  # on another drive of Windows
        return path
    return relative if len(relative) < len(path) else path


def check_regular(path: str | os.PathLike[str], link: bool = True) -> None:
    """Check that what is at a path, if anything, is a file."""
    try:
        mode = os.stat(path, follow_symlinks=link).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(show_path(path), "is a link that leads in a circle", IN_ITS_PLACE) from error
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        what = kind if stat.S_ISLNK(mode) else f"no regular file but {kind}"
        raise UserError(show_path(path), f"is {what}", IN_ITS_PLACE)


def open_regular(path: str | os.PathLike[str], link: bool = True, buffering: int = -1) -> io.BufferedReader:
    """A regular file, opened to be read as bytes."""
    check_regular(path, link)
    file = open(path, "rb", buffering, opener=_open_at_once)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was replaced in between
        file.close()
        raise UserError(show_path(path), "is no regular file", IN_ITS_PLACE)
    return file  # type: ignore[return-value]


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_regular(path: str | os.PathLike[str], most: int, remedy: str) -> bytes:
    """The content of a regular file."""
    try:
        with open_regular(path) as file:
            data = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    except (OSError, ValueError) as error:  # ValueError: no path, with a zero byte in it
        raise UserError(
            show_path(path), f"cannot be read ({getattr(error, 'strerror', None) or error})", remedy
        ) from error
    if data is None or len(data) > most:
        raise UserError(show_path(path), f"has more than {size_text(most)}", remedy)
    return data


def size_text(size: int) -> str:
    """A number of bytes, which is a power of two, in words: 64 MB."""
    for power, unit in ((30, "GB"), (20, "MB"), (10, "KB")):
        if size >> power:
            return f"{size >> power} {unit}"
    return f"{size} bytes"


def bounded_lines(file: BinaryIO, most: int = LINE) -> Iterator[bytes | None]:
    """The lines of a file with their ends; of one that has more bytes than the bound None, and it is not kept."""
    while line := file.readline(most + 1):
        if len(line) <= most:
            yield line
            continue
        yield None
        while line and not line.endswith(b"\n"):
            line = file.readline(most)
