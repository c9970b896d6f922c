"""The lines of a pipe in groups, as they come: who writes into it line by line has an answer to each at once."""

from __future__ import annotations

import io
import select
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import UserError
from .lines import Line, read_lines

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
