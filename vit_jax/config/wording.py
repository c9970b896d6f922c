"""What messages call a field: a flag in the shell, and in Python an argument or an entry of `fields`.

Messages are written with flags. Those of a public function are told to its caller in the words of Python.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import shlex
import typing
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, TypeVar

from ..errors import CheckFailed, UserError

F = TypeVar("F", bound=Callable[..., Any])
# {flag: the argument of a function}, where they are not the same.
ARGUMENTS = {
    "weights": "which", "data.source": "source", "data.dir": "data_dir", "data.range": "data_range",
    "data.skip_unreadable": "skip_unreadable", "data.source_language": "source_language",
    "data.target_language": "target_language", "no_ema": "ema",
}  # fmt: skip
# A flag, and the words that may be its values; what is in backticks is a command, and stays.
_FLAG = re.compile(r"`[^`]*`|(?<![\w-])--(?P<name>[a-z][a-z0-9.-]*[a-z0-9])(?P<values>(?: (?!--)[^\s,;()`]+(?<!:))*)")


def in_python(function: F, types: Callable[[], Mapping[str, Any]]) -> F:
    """A public function whose errors name its arguments and `fields`, where they would name flags."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except (UserError, CheckFailed) as error:
            reword(error, parameters, types())
            raise
        return forward(result) if isinstance(result, Generator) else result

    def forward(steps: Generator[Any, None, Any]) -> Generator[Any, None, Any]:
        try:
            return (yield from steps)
        except (UserError, CheckFailed) as error:
            reword(error, parameters, types())
            raise

    parameters = inspect.signature(function).parameters
    call.__module__ = "vit_jax"  # where pickle finds it
    return typing.cast(F, call)


def reword(error: UserError | CheckFailed, parameters: Collection[str], types: Mapping[str, Any]) -> None:
    """Let an error name arguments of a function, and entries of its `fields`, in place of flags."""
    write = functools.partial(python_words, parameters=parameters, types=types)
    if isinstance(error, UserError):
        error.reword(write)
    else:
        error.args = tuple(write(str(each)) for each in error.args)


def python_words(text: str, parameters: Collection[str], types: Mapping[str, Any]) -> str:
    """A text in which arguments of a function, or else entries of its `fields`, stand for flags."""

    def write(match: re.Match[str]) -> str:
        if match[0].startswith("`"):
            return match[0]
        name, words = match["name"].replace("-", "_"), match["values"].split()
        argument = next((each for each in (ARGUMENTS.get(name, ""), name) if each in parameters), "")
        off = re.sub(r"(^|\.)no_", r"\1", name)
        if not argument and name not in types:
            if off == name or off not in types:
                return match[0]
            name, (value, used) = off, (typing.cast(Any, False), 0)
        else:
            value, used = _value(types.get(name, str), words)
        rest = "".join(f" {word}" for word in words[used:])
        if value is None:
            return f"{argument or name}{rest}"
        return (f"{argument}={value!r}" if argument else f"fields={{{name!r}: {value!r}}}") + rest

    return _FLAG.sub(write, text).replace("} fields={", ", ")


def _value(hint: Any, words: list[str]) -> tuple[Any, int]:
    """(the value of a type that begins some words, or None; how many of them it takes)."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is bool:
        return (True, 0) if not words or words[0] not in ("True", "False") else (words[0] == "True", 1)
    if origin is typing.Literal:
        return (words[0], 1) if words and words[0] in parts else (None, 0)
    if origin is tuple:
        found: list[Any] = []
        while len(found) < len(words) and (one := _value(parts[0], words[len(found) :]))[1]:
            found.append(one[0])
        return (tuple(found), len(found)) if found else (None, 0)
    if parts:  # a union
        return max((_value(each, words) for each in parts), key=lambda read: read[1])
    if hint in (int, float):
        try:
            number = float(words[0]) if words else math.nan
        except ValueError:
            return None, 0
        return (None, 0) if math.isnan(number) else (hint(number), 1)
    if words and re.search(r"[/:.*'A-Z0-9_]", words[0]):  # not a word of the sentence
        return " ".join(shlex.split(words[0])) if words[0].count("'") % 2 == 0 else words[0], 1
    return None, 0
