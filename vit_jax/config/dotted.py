"""Fields by dotted names: a config may have others inside it, and "vit.depth" is a field of one of them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from ..errors import Field, UserError, fields_inside
from .fields import check_ranges
from .hints import hint, names_of, nearest

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Leaf(NamedTuple):
    """A field that is no config itself: the type of its value, and its default."""

    hint: Any
    default: Any


def _cached(function: F) -> F:
    """`functools.cache`; mypy takes the class of a config for unhashable."""
    return typing.cast(F, functools.cache(function))


@_cached
def field_types(cls: type) -> dict[str, Any]:
    """{name: type of the value} of the fields of a config class, without those inside other configs."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@_cached
def leaves(cls: type) -> dict[str, Leaf]:
    """{dotted name: Leaf} of all fields of a config class, also those of the configs inside it."""
    hints = field_types(cls)
    found: dict[str, Leaf] = {}
    for f in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[f.name]):
            inner = leaves(typing.cast(type, hints[f.name]))
            found |= {f"{f.name}.{name}": Leaf(leaf.hint, value_at(f.default, name)) for name, leaf in inner.items()}
        else:
            found[f.name] = Leaf(hints[f.name], f.default)
    return found


def value_at(config: Any, name: str) -> Any:
    """The value of a field by its dotted name."""
    return functools.reduce(getattr, name.split("."), config)


def with_options(config: T, options: Mapping[str, Any], part: str) -> T:
    """A part of a run's config with other values of some fields."""
    types, values = field_types(type(config)), dict(options)
    with fields_inside(part):
        for name, value in options.items():
            if name not in types:
                clause = hint(f"{part}.{name}", names_of(config, f"{part}."), inside=part)
                raise UserError(Field(name), f"is no field{clause or nearest(name, list(types))}")
            if typing.get_origin(types[name]) is tuple:
                if not isinstance(value, list | tuple):
                    raise UserError(Field(name), f"is {value!r}", "give a list")
                values[name] = tuple(value)
        changed = replace_fields(config, values)
        check_ranges(changed)
    return changed


def replace_fields(config: T, values: Mapping[str, Any]) -> T:
    """The config with other values of some fields, {dotted name: value}."""
    own: dict[str, Any] = {}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        part, dot, rest = name.partition(".")
        if dot:
            inside.setdefault(part, {})[rest] = value
        else:
            own[name] = value
    own |= {part: replace_fields(getattr(config, part), its) for part, its in inside.items()}
    return dataclasses.replace(typing.cast(Any, config), **own)
