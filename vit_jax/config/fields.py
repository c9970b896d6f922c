"""The fields of configs: each with its help text and its range, and marked as identity or execution."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

from ..errors import Field, UserError, fields_inside

LARGEST = 2**31  # whole numbers are below it: steps are counted in int32


@dataclass(frozen=True)
class Range:
    """The numbers that a field takes: those of `choices`, or all within the bounds, of which None is none."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[float, ...] = ()

    def __contains__(self, number: float) -> bool:
        return (
            (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
            and (self.below is None or number < self.below)
            and (not self.choices or number in self.choices)
        )

    def __str__(self) -> str:
        """The range in words, such as "1 or more"; empty where it has no bounds."""
        if self.choices:
            return " or ".join(map(_show_bound, self.choices))
        if self.at_least is not None and self.at_most is not None:
            return f"{_show_bound(self.at_least)} to {_show_bound(self.at_most)}"
        words = (
            ("{} or more", self.at_least),
            ("above {}", self.above),
            ("at most {}", self.at_most),
            ("below {}", self.below),
        )
        return ", ".join(word.format(_show_bound(bound)) for word, bound in words if bound is not None)


def check_ranges(config: Any) -> None:
    """Check the numbers, choices and switches of a config and of those inside it against what their fields take.

    Whatever their range, whole numbers are below 2^31 and others are finite. Of a tuple each entry is checked.
    """
    hints = _hints(typing.cast(Any, type(config)))
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            with fields_inside(f.name):
                check_ranges(value)
        elif "range" in f.metadata:
            verb, entries = ("has", value) if isinstance(value, tuple) else ("is", (value,))
            for each in entries:
                if remedy := _remedy(each, _of_one(hints[f.name]), f.metadata["range"]):
                    raise UserError(Field(f.name), f"{verb} {_show(each)}", remedy)


_hints = functools.cache(typing.get_type_hints)
_KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}  # {type of a field: (what a value has to be, that in words)}


@functools.cache
def _of_one(hint: Any) -> Any:
    """The type of a value that is no tuple, or else of each entry."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType, tuple):
        return _of_one(typing.get_args(hint)[0])
    return hint


def _remedy(value: Any, hint: Any, allowed: Range) -> str:
    """What to give in place of a value that is not allowed; empty where it is."""
    if typing.get_origin(hint) is Literal:
        *others, last = typing.get_args(hint)
        return "" if value in (*others, last) else f"choose {', '.join(others)} or {last}"
    if hint not in _KINDS:
        return ""
    kind, words = _KINDS[hint]
    if not isinstance(value, kind) or (isinstance(value, bool) and hint is not bool):
        return f"give {words}"
    if value not in allowed:
        return f"give {allowed}" if str(allowed)[0].isdigit() else f"give a number {allowed}"
    if hint is float and not math.isfinite(value):
        return "give a finite number"
    if hint is int and allowed.at_most is None and allowed.below is None and not -LARGEST <= value < LARGEST:
        return f"give a number below {_show_bound(LARGEST)}"
    return ""


def _show(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**40:
        return "very large"
    return str(value) if isinstance(value, Real) else f"{value!r:.40}"


def _show_bound(bound: float) -> str:
    """A bound in words: a great power of two as such."""
    power = round(bound).bit_length() - 1
    if power >= 20 and bound == 2**power:
        return f"2^{power}"
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


Size = int | tuple[int, int]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"]
Decaying = Literal["kernel", "bias", "norm", "token", "position", "scale", "embedding"]
Kind = Literal[Decaying, "frequency", "relative"]

DEEPEST = 1000  # blocks: as many as the deepest Transformer that was published (Wang et al. 2022, arXiv 2203.00555)
# What other code needs to know of a field, of a network (`NetworkConfig.marked`) or of augmentation (not_drawn).
Mark = Literal[
    "training_only", "drops", "not_in_weights", "from_data", "of_head", "counts_blocks", "place", "not_drawn"
]


def identity(default: Any, help: str, **more: Any) -> Any:
    """A field that changes the result of a run; `more` are its marks, each True, and the bounds of its Range."""
    marks = {mark for mark in get_args(Mark) if more.pop(mark, False)}
    return _field(default, help, Range(**more), execution=False, marks=marks)


def dropout_rate(help: str) -> Any:
    """A field that is the rate at which training drops values: an identity field that is 0 by default."""
    return _field(0.0, help, Range(at_least=0, below=1), execution=False, marks={"training_only", "drops"})


def execution(default: Any, help: str, **bounds: Any) -> Any:
    """A field that may change when a run is resumed."""
    return _field(default, help, Range(**bounds), execution=True)


def option(default: Any, help: str, *, also: str = "", **bounds: Any) -> Any:
    """An option of a command, which is no part of a run; `also` is another name that it has."""
    return _field(default, help, Range(**bounds), also=also)


def _field(default: Any, help: str, allowed: Range, **metadata: Any) -> Any:
    help = "; ".join(filter(None, (help, str(allowed))))
    return field(default=default, metadata={"help": help, "range": allowed, **metadata})


def pair(size: Size) -> tuple[int, int]:
    """A size as (height, width); an integer stands for a square."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def are_texts(value: Any) -> bool:
    """Whether a JSON value is a list of strings."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
