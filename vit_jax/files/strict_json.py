"""JSON texts that can be understood in one way only: no key twice in an object, no NaN."""

from __future__ import annotations

import json
from typing import Any


class Ambiguous(ValueError):
    """JSON that Python parses but that can be understood in two ways."""


def parse(content: bytes) -> Any:
    """The value of a JSON text in UTF-8, with or without a byte order mark.

    Raises ValueError (Ambiguous where Python's parser would not), and RecursionError.
    """
    return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Ambiguous(f"the key {key[:100]!a} occurs twice")
        found[key] = value
    return found


def _constant(text: str) -> Any:
    raise Ambiguous(f"{text} is not a number in JSON")
