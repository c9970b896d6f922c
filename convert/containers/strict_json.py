"""JSON from strangers: every key once, no NaN, no deep nesting."""

from __future__ import annotations

import json
from typing import Any

from vit_jax.errors import UserError

from .source import NESTING


def parse(data: bytes, path: str, nesting: int = NESTING) -> Any:
    """The value of a JSON text. Raises UserError naming `path` where it is damaged or says one thing twice."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        clause = str(error) if isinstance(error, Refused) else "it is cut off or was changed"
        raise UserError(f"{path}: holds no sound JSON: {clause}; get the file again") from error
    if _depth(value) > nesting:
        raise UserError(f"{path}: its JSON is nested more than {nesting} deep; this is no model's file")
    return value


class Refused(ValueError):
    """JSON that parses but is not unambiguous."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Refused(f"the key {key[:100]!a} is there twice")
        found[key] = value
    return found


def _constant(text: str) -> Any:
    raise Refused(f"{text} is no number of JSON")


def _depth(value: Any) -> int:
    """Levels of objects and lists: 0 of a plain value."""
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
    return depth
