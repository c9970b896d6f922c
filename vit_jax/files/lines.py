"""The lines of texts, by one rule for every file that has some.

A text is UTF-8, and a line of it ends with LF or CRLF. All other characters are text, also those at which some programs
end lines: U+2028, U+2029, U+0085, vertical tab, form feed, and a CR alone. A byte order mark before a text is no part
of it. So the lines of two files correspond as `wc -l` counts them.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Protocol

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
