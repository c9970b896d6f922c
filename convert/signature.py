"""Whether a file's names are those that marks ask for: regular expressions, each of which a whole name has to match.

A stranger's file may hold fifty thousand names, and is asked for hundreds of marks. So a mark without a wildcard is looked
up, of the others only names are tried that hold the mark's longest certain text, and no mark is tried twice.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping

from .rules import Shape

GROUP, WILD, DOT = r"\((?:[^()\\]|\\.)*\)[?*+]?", r"\\d[?*+]?|\[[^]]*\][?*+]?|.[?*]|[.^$+]", "\1"


class Seen:
    """The names of a file, and their shapes where they are given."""

    def __init__(self, names: Iterable[str]):
        self.shapes: Mapping[str, Shape] | None = names if isinstance(names, Mapping) else None
        self.names = dict.fromkeys(names)
        self._text = "\n".join(self.names)
        self._has: dict[str, bool] = {}

    def meets(self, marks: Iterable[str]) -> bool:
        """Whether each mark is matched by some name or, with a leading "!", by none."""
        return all(self.has(mark.removeprefix("!")) != mark.startswith("!") for mark in marks)

    def has(self, mark: str) -> bool:
        """Whether some name matches a mark."""
        if mark not in self._has:
            text, whole = certain(mark)
            among = self.names if not whole and text in self._text else ()
            match = re.compile(mark).fullmatch
            self._has[mark] = text in self.names if whole else any(text in name and match(name) for name in among)
        return self._has[mark]


@functools.cache
def certain(mark: str) -> tuple[str, bool]:
    """The longest text that every name that matches a mark holds, and whether that is all of the name."""
    rest, found = mark.replace(r"\.", DOT), 1
    while found:
        rest, found = re.subn(GROUP, "\n", rest)
    if "|" in rest:
        return "", False
    pieces = re.sub(WILD, "\n", rest).split("\n")
    return max(pieces, key=len).replace(DOT, "."), len(pieces) == 1
