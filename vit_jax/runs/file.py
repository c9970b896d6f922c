"""A run's config from a file of JSON: what `--print-config` printed, or a run's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.run import RunConfig
from ..errors import Field, UserError, about
from ..files import strict_json
from ..files.reading import read_regular
from .values import FORMAT, from_dict, strip_format, to_dict

LARGEST = 1 << 20  # bytes; a config has some 4,000
REMEDY = "give a file that --print-config printed"


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
    try:
        content = read_regular(path, LARGEST, REMEDY)
    except UserError as error:
        error.subject = f"--config {path}"
        raise
    try:
        value = strict_json.parse(content)
    except ValueError as error:
        raise _unread(path, f"is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise _unread(path, "holds no JSON object")
    return value


def _unread(path: str, why: str) -> UserError:
    return UserError(f"--config {path}", why, REMEDY)
