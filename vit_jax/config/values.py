"""Configs as plain values: to JSON and back, flat, compared."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import sys
import types
import typing
from typing import Any, Literal, TypeVar

from ..errors import UserError
from .run import NETWORKS, ModelConfig, RunConfig

T = TypeVar("T")
_hints = functools.cache(typing.get_type_hints)
LONGEST, LISTED = 200, 20  # letters of a mistaken name that are compared; known names that are listed


def to_dict(config: Any) -> dict[str, Any]:
    """A config as JSON's own types (tuples become lists)."""
    return {
        f.name: to_dict(v) if dataclasses.is_dataclass(v := getattr(config, f.name)) else list(v) if isinstance(v, tuple) else v
        for f in dataclasses.fields(config)
    }


def from_dict(cls: type[T], values: dict[str, Any], where: str = "") -> T:
    """The config that `to_dict` wrote. Absent fields keep their defaults.

    Raises UserError on a field that does not exist or a value of the wrong type.
    """
    hints = _hints(typing.cast(Any, cls))
    kwargs: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise UserError(f"config: there is no field {where}{name}{nearest(name, list(hints))}")
        hint = NETWORKS.get(values.get("task", "classify"), ModelConfig) if hints[name] is ModelConfig else hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, dict):
                raise UserError(f"config: {where}{name} is {value!r}, which is not a group of fields")
            kwargs[name] = from_dict(typing.cast(type, hint), value, f"{where}{name}.")
        else:
            value = tuple(value) if isinstance(value, list) else value
            value = float(value) if hint is float and type(value) is int and abs(value) <= sys.float_info.max else value
            if not _fits(value, hint):
                raise UserError(f"config: {where}{name} is {value!r}, which is not {_described(hint)}")
            kwargs[name] = value
    return cls(**kwargs)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is tuple:
        items = arguments[:1] * len(value) if isinstance(value, tuple) and arguments[-1:] == (...,) else arguments
        return isinstance(value, tuple) and len(items) == len(value) and all(map(_fits, value, items))
    return type(value) is hint


def _described(hint: Any) -> str:
    """A field's type, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return f"a list, each {_described(arguments[0])}" if arguments[-1] is ... else f"[{', '.join(map(_described, arguments))}]"
    return " or ".join(map(_described, arguments)) if arguments else hint.__name__


def flat(config: Any, prefix: str = "") -> dict[str, tuple[Any, bool]]:
    """{dotted field: (value, is execution)}."""
    out: dict[str, tuple[Any, bool]] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            out |= flat(value, f"{prefix}{f.name}.")
        else:
            out[prefix + f.name] = (value, f.metadata.get("execution", False))
    return out


def differences(old: RunConfig, new: RunConfig, execution: bool = False) -> dict[str, tuple[Any, Any]]:
    """Identity fields (or, if asked, execution fields) in which two runs differ: {field: (old, new)}.

    A size that the data decides takes the old run's where the new one leaves it at 0.
    """
    a, b = flat(old), flat(new)
    from_data = {f"model.{name}" for name in ("classes", "source_vocabulary", "target_vocabulary", "outputs")}
    pairs = {k: (a.get(k, (None,))[0], v, is_execution) for k, (v, is_execution) in b.items()}
    return {k: (x, y) for k, (x, y, on) in pairs.items() if on == execution and x != y and not (k in from_data and y == 0)}


def nearest(name: str, known: list[str]) -> str:
    """A clause naming the known names most like a mistaken one: '; nearest: ...'."""
    close = difflib.get_close_matches(name[:LONGEST], known, n=3, cutoff=0.4)
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"; nearest: {', '.join(close)}" if close else f"; known: {', '.join(sorted(known)[:LISTED])}{more}"
