"""Nested dictionaries and their dotted names: {"a": {"b": x}} and {"a.b": x}."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from ..errors import Field, UserError

Tree = dict[str, Any]  # nested dictionaries of arrays, with strings as keys


def flatten(tree: Mapping[Any, Any], separator: str = ".", *, strict: bool = True) -> dict[str, Any]:
    """{"a": {"b": x}} as {"a.b": x}, in the tree's order; an empty dictionary inside leaves no entry."""
    return dict(_entries(tree, separator, strict, ""))


def _entries(tree: Mapping[Any, Any], separator: str, strict: bool, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if strict and (not isinstance(key, str) or separator in key or not key):
            raise ValueError(f"{prefix}{key!r}: names in a tree are non-empty strings without {separator!r}")
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _entries(value, separator, strict, f"{name}{separator}")
        else:
            yield name, value


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": x} as {"a": {"b": x}}."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        node = out
        for key in path:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise UserError(Field(name), "is no field")
        node[leaf] = value
    return out


def partition(tree: Mapping[str, Any], names: Container[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(A tree of the leaves that `names` has, a tree of all others); `combine` joins them again."""
    flat = flatten(tree)
    inside = {name: leaf for name, leaf in flat.items() if name in names}
    return unflatten(inside), unflatten({name: leaf for name, leaf in flat.items() if name not in names})


def combine(tree: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of two trees in one."""
    return unflatten(flatten(tree) | flatten(other))
