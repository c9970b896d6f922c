"""JSON texts that can be understood in one way only: no key twice in an object, no NaN; of a bounded size when read."""

from __future__ import annotations

import json
from typing import Any

GROUPS, BYTES = 100_000, 10  # lists and objects of any text, or one for so many bytes: each takes 60 in memory


class Ambiguous(ValueError):
    """JSON that Python parses but that can be understood in two ways."""


def parse(content: bytes) -> Any:
    """The value of a JSON text."""
    if content.count(b"[") + content.count(b"{") > max(GROUPS, len(content) // BYTES):
        raise ValueError(f"it has more than {max(GROUPS, len(content) // BYTES):,} lists and objects")
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Ambiguous(f"the key {key[:100]!a} occurs twice")
        found[key] = value
    return found


def _constant(text: str) -> Any:
    raise Ambiguous(f"{text} is not a number in JSON")
