"""Numbers as cells of a table have them: by one strict pattern, without the readings that Python or pandas add."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_ZERO_OR_ONE = re.compile(r"([01])(\.0*)?|(true|false)", re.IGNORECASE | re.ASCII)


def as_number(text: str) -> float | None:
    """The value of a text that is a finite decimal number; None of any other, such as 1,5 or nan or 1_000."""
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def with_comma(text: str) -> str:
    """A text such as 1,5 with a point in place of the comma; empty where it is no such number."""
    return text.replace(",", ".") if len(text) <= 400 and _COMMA.fullmatch(text) else ""


def zero_or_one(text: str) -> int | None:
    """0 or 1 (also 0.0, 1.0, False, True), -1 of an empty text, which is unknown, and None of any other."""
    match = _ZERO_OR_ONE.fullmatch(text)
    if match is None:
        return None if text else -1
    return int(match[1]) if match[1] else int(text.casefold() == "true")
