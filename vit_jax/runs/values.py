"""Configs as JSON values of a numbered format, also in files, as flat dicts, and their differences."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from ..config.dotted import field_types
from ..config.fields import Mark
from ..config.flags import alternatives, describe_type
from ..config.hints import SAME_WITHOUT, hint, instead_of, names_of, nearest
from ..config.run import RunConfig
from ..errors import Field, UserError, about
from ..files import strict_json
from ..files.reading import read_regular
from ..tasks.table import task_spec

T = TypeVar("T")
FORMAT = 4  # 1 to 3 were of versions before the first release
LENGTH = ("epochs", "patience")  # of the identity, which may change where a run goes on
LARGEST = 1 << 20  # bytes of a file; a config has some 4,000
REMEDY = "give a file that --print-config printed"
LAST_READER = "e3c4a86"  # the last commit that reads formats 1 to 3


def to_dict(config: Any) -> dict[str, Any]:
    """A config as a dict of JSON values (tuples become lists); that of a run has the format's number first."""
    number = {"format": FORMAT} if isinstance(config, RunConfig) else {}
    return number | {
        f.name: to_dict(v)
        if dataclasses.is_dataclass(v := getattr(config, f.name))
        else list(v)
        if isinstance(v, tuple)
        else v
        for f in dataclasses.fields(config)
    }


def from_dict(cls: type[T], values: dict[str, Any], where: str = "") -> T:
    """The config of a class from the values of `to_dict`. Absent fields have defaults."""
    hints = field_types(cls)
    if cls is RunConfig:
        values = strip_format(values)
        hints = hints | part_classes(values.get("task"))
    kwargs: dict[str, Any] = {}
    defaults = {f.name: f.default for f in dataclasses.fields(typing.cast(Any, cls))}
    for name, value in values.items():
        field = f"{where}{name}"
        if name not in hints and field in SAME_WITHOUT and value in (SAME_WITHOUT[field] or (value,)):
            continue
        if name not in hints:
            reason = instead_of(field)
            clause = f": {reason}" if reason else nearest(name, list(hints))
            raise UserError(Field(field), f"is no field{clause}")
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, dict):
                raise UserError(Field(f"{where}{name}"), f"is {value!r}", "give a group of fields")
            usual = to_dict(defaults[name]) if type(defaults[name]) is hint else {}
            kwargs[name] = from_dict(typing.cast(type, hint), {**usual, **value}, f"{where}{name}.")
        else:
            value = _read(value, hint)
            if not _fits(value, hint):
                raise UserError(Field(f"{where}{name}"), f"is {value!r}", f"give {describe_type(hint)}")
            kwargs[name] = value
    for name in hints.keys() - values.keys():
        if dataclasses.is_dataclass(hints[name]) and type(defaults[name]) is not hints[name]:
            kwargs[name] = typing.cast(Any, hints[name])()
    return cls(**kwargs)


def strip_format(values: Any) -> dict[str, Any]:
    """The JSON values of a run's config without the number of their format; without one they are of the current one."""
    if not isinstance(values, Mapping):
        raise UserError(f"{type(values).__name__} is not a group of fields")
    check_format(values.get("format", FORMAT))
    return {name: value for name, value in values.items() if name != "format"}


def check_format(number: Any) -> None:
    """Raise UserError unless this is the number of the format that this version reads and writes."""
    if number == FORMAT:
        return
    older = type(number) is int and 0 < number < FORMAT
    reader = f"commit {LAST_READER} of vit-jax, the last that can" if older else "the version that wrote it"
    raise UserError(
        Field("format"), f"{number!r} is not {FORMAT}, which this version of vit-jax writes", f"read it with {reader}"
    )


def part_classes(task: Any) -> dict[str, type]:
    """The classes of model, data, augment and loss of a run with this task."""
    if not isinstance(task, str):
        raise UserError(
            Field("task"),
            f"is {'missing' if task is None else repr(task)}",
            "give the name of one, as in the run's preset",
        )
    spec = task_spec(task)
    return {"model": spec.network, "data": spec.data, "augment": spec.augment, "loss": spec.loss}


def _read(value: Any, hint: Any) -> Any:
    """A value of JSON or of Python as a field of this type has it: a list is a tuple, and 1 is 1.0 where it may be."""
    if isinstance(value, list | tuple):
        items = next((typing.get_args(each)[0] for each in alternatives(hint) if typing.get_origin(each) is tuple), Any)
        return tuple(_read(each, items) for each in value)
    whole = type(value) is int and abs(value) <= sys.float_info.max
    return float(value) if hint is float and whole else value


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


def flat(config: Any, prefix: str = "") -> dict[str, tuple[Any, bool]]:
    """A config as {dotted field: (value, whether the field is execution)}."""
    out: dict[str, tuple[Any, bool]] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            out |= flat(value, f"{prefix}{f.name}.")
        else:
            out[prefix + f.name] = (value, f.metadata.get("execution", False))
    return out


def with_fields(run: RunConfig, fields: Mapping[str, Any]) -> RunConfig:
    """The run with other values of some fields; one value may stand for a list of it."""
    values, known = to_dict(run), flat(run)
    for name, value in fields.items():
        if name not in known:
            clause = hint(name, names_of(run)) or nearest(name, list(known))
            raise UserError(Field(name), f"is no field{clause}")
        *parts, last = name.split(".")
        node = values
        for part in parts:
            node = node[part]
        kind = field_types(type(functools.reduce(getattr, parts, run)))[last]
        one = typing.get_args(kind)[-1:] == (...,) and not isinstance(value, list | tuple)
        node[last] = [value] if one else value
    return from_dict(RunConfig, values)


def differences(old: RunConfig, new: RunConfig, execution: bool = False) -> dict[str, tuple[Any, Any]]:
    """{field: (old, new)} of two runs; what the data determines counts as equal if one of the two leaves it open."""
    a, b = flat(_with_usual_loss(old, new)), flat(_with_usual_loss(new, old))
    from_data = marked_fields(new, "from_data")
    pairs = {k: (a.get(k, (None,))[0], v, is_execution) for k, (v, is_execution) in b.items()}
    return {
        k: (x, y)
        for k, (x, y, on) in pairs.items()
        if on == execution and x != y and not (k in from_data and not (x and y))
    }


def _with_usual_loss(run: RunConfig, other: RunConfig) -> RunConfig:
    """The run with the loss that goes with its kind of labels, or with that of the other, where it names none."""
    kind = getattr(run.data, "target", "") or getattr(other.data, "target", "")
    if run.loss.name or (hasattr(run.data, "target") and not kind):
        return run
    loss = task_spec(run.task).with_data(run, {"outputs": {"kind": kind}}).loss
    return dataclasses.replace(run, loss=loss)


def marked_fields(config: Any, mark: Mark, prefix: str = "") -> set[str]:
    """The dotted names of the fields of a config and its parts that have a mark."""
    found: set[str] = set()
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            found |= marked_fields(value, mark, f"{prefix}{f.name}.")
        elif mark in f.metadata.get("marks", ()):
            found.add(prefix + f.name)
    return found


def changed_places(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """{field: (old, new)} of the places that two runs have both, but not the same."""
    places = marked_fields(new, "place")
    return {name: both for name, both in differences(old, new).items() if name in places and all(both)}


def other_identity(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """{field: (old, new)} of the fields that make two runs different ones, wherever what they read lies."""
    elsewhere = changed_places(old, new)
    return {name: both for name, both in differences(old, new).items() if name not in elsewhere}


# --------------------------------------------------------------------------------------------- from a file


def read_config(path: str) -> tuple[dict[str, Any], str]:
    """A run's config from a file."""
    values = _object(path)
    beside = values.get("preset")
    if isinstance(values.get("config"), dict):  # a run's config.json, in which the config is one entry
        values = {"format": values.get("format", FORMAT), **values["config"]}
    with about(f"--config {path}"):
        return strip_format(values), beside if isinstance(beside, str) else ""


def overlaid(run: RunConfig, values: Mapping[str, Any], path: str) -> RunConfig:
    """The run with the values of a file in place of its own."""
    task = values.get("task", run.task)
    with about(f"--config {path}"):
        if task != run.task:
            from_dict(RunConfig, {"task": task})  # raises if there is no such task
            raise UserError(Field("task"), f"is {task}, but the preset is one of {run.task}", "leave the preset out")
        return from_dict(RunConfig, _merge(to_dict(run), values))


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts in which the values of `new` take the place of those of `old`."""
    both = {
        name: _merge(old[name], value) if isinstance(value, dict) and isinstance(old.get(name), dict) else value
        for name, value in new.items()
    }
    return {**old, **both}


def _object(path: str) -> dict[str, Any]:
    """The JSON object in a file."""
    where = f"--config {path}"
    try:
        value = strict_json.parse(read_regular(path, LARGEST, REMEDY))
    except UserError as error:
        error.subject = where
        raise
    except ValueError as error:
        raise UserError(where, f"is not JSON ({error})", REMEDY) from error
    if not isinstance(value, dict):
        raise UserError(where, "holds no JSON object", REMEDY)
    return value
