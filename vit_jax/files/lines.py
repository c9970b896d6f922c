"""The lines of texts, by one rule for every file that has some.

A text is UTF-8, and a line of it ends with LF or CRLF. All other characters are text, also those at which some programs
end lines: U+2028, U+2029, U+0085, vertical tab, form feed, and a CR alone. A byte order mark before a text is no part
of it. So the lines of two files correspond as `wc -l` counts them. Those of a pipe come in groups: who writes into it
line by line has an answer to each at once.
"""

from __future__ import annotations

import codecs
import io
import select
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from ..errors import UserError
from .reading import LINE

QUOTED = 100


class Line(str):
    """A line of a file, which messages that quote it place there; `where` is such as "a.txt line 3"."""

    where: str

    def __new__(cls, text: str, where: str) -> Line:
        line = super().__new__(cls, text)
        line.where = where
        return line


class Readable(Protocol):
    """A binary file, compressed or not."""

    def readline(self, size: int, /) -> bytes:
        """The next line with its end, or its first `size` bytes."""


def read_lines(file: Readable, where: str, blank: str = "", errors: str = "strict") -> Iterator[str]:
    """The lines of a file, without their ends."""
    number = 0
    while line := file.readline(LINE + 1):
        number += 1
        if len(line) > LINE:
            raise too_long(where, number, LINE)
        if number == 1:
            line = without_mark(line)
            if b"\r" in line[:-1] and not line.endswith(b"\n"):
                raise UserError(where, "ends its lines with CR alone", "save it with LF or CRLF")
        try:
            text = line.decode("utf-8", errors).removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where} line {number}", f"is no UTF-8 (it has the byte 0x{line[error.start]:02x})",
                "save the file as UTF-8",
            ) from error  # fmt: skip
        if blank and not text.strip():
            raise UserError(f"{where} line {number}", "is empty", blank)
        yield text
    if blank and not number:
        raise UserError(f"{where} line 1", "is empty", blank)


def too_long(where: str, number: int, longest: int = LINE) -> UserError:
    """The error for a line that is too long."""
    return UserError(f"{where} line {number}", f"has more than {longest:,} bytes", "break it into shorter lines")


def without_mark(content: bytes) -> bytes:
    """The content of a file of text without the byte order mark with which some programs begin one."""
    return content.removeprefix(codecs.BOM_UTF8)


def quote(value: object) -> str:
    """A value as messages show it: a text in quotes, a `Line` with its place, a long one cut."""
    shown = value if isinstance(value, str) else repr(value)
    shown = shown if len(shown) <= QUOTED else shown[:QUOTED] + "..."
    shown = repr(str(shown)) if isinstance(value, str) else shown
    return f"{shown} ({value.where})" if isinstance(value, Line) else shown


_PIECE = 1 << 16


class _Arriving:
    """The bytes of a stream as they come, a line at a time."""

    def __init__(self, stream: BinaryIO):
        self._stream, self._held, self._ended = stream, bytearray(), False

    def readline(self, size: int, /) -> bytes:
        """The next line with its end, or its first `size` bytes, or what is left without an end."""
        searched = 0
        while (end := self._held.find(b"\n", searched, size)) < 0 and len(self._held) < size and not self._ended:
            searched = len(self._held)
            self._fill()
        line = bytes(self._held[: end + 1 if end >= 0 else size])
        del self._held[: len(line)]
        return line

    def ready(self) -> bool:
        """Whether a whole line, or the end of the stream, is there to be read without waiting."""
        while not self._ended and b"\n" not in self._held:
            if not self._has_more():
                return False
            self._fill()
        return True

    def _has_more(self) -> bool:
        try:
            return bool(select.select([self._stream.fileno()], [], [], 0)[0])
        except (OSError, ValueError, io.UnsupportedOperation):  # no descriptor; on Windows a pipe cannot be asked
            return True

    def _fill(self) -> None:
        piece = self._stream.read1(_PIECE)  # type: ignore[attr-defined]  # of every buffered stream
        self._ended = not piece
        self._held += piece


def arriving_lines(stream: BinaryIO, where: str, most: int, errors: str = "strict") -> Iterator[list[Line]]:
    """The lines of a stream in groups: what is there is not held back until more comes."""
    arriving = _Arriving(stream)
    lines = read_lines(arriving, where, errors=errors)
    group: list[Line] = []
    number = 0
    fault: UserError | None = None
    while fault is None:
        try:
            if (line := next(lines, None)) is None:
                break
            number += 1
            group.append(Line(line, f"{where} line {number}"))
        except UserError as error:
            fault = error
        if len(group) == most:
            yield group
            group = []
        elif fault is None and not arriving.ready():
            while group:
                several = 1 << (len(group).bit_length() - 1)
                yield group[:several]
                group = group[several:]
    if group:
        yield group
    if fault:
        raise fault
