"""Strict JSON: no key twice in an object, no NaN, no deep nesting."""

from __future__ import annotations

import codecs
from typing import Any

from vit_jax.errors import UserError
from vit_jax.files import strict_json

from . import limits


def parse(data: bytes, path: str, nesting: int = limits.NESTING) -> Any:
    """The value of a JSON text."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(path, "is text in UTF-16 or UTF-32, and JSON files are UTF-8", "save it again as UTF-8")
    try:
        value = strict_json.parse(data)
    except ValueError as error:
        clause = str(error) if isinstance(error, strict_json.Ambiguous) else "it is cut off or damaged"
        raise UserError(path, f"holds no valid JSON: {clause}", "get the file again") from error
    if _depth(value) > nesting:
        raise UserError(path, f"its JSON is nested more than {nesting} levels deep", "give a file that a library wrote")
    return value


def _depth(value: Any) -> int:
    """Levels of nested objects and lists; 0 for a plain value."""
    depth, level = 0, [value]
    while level := [node for node in level if isinstance(node, dict | list)]:
        depth += 1
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
    return depth
