"""Ranges of numbers: declared with each field (fields.py), printed after its help, and checked here for all alike."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypedDict

from ..errors import UserError

LARGEST = 2**31  # whole numbers are below it: steps are counted in int32


class Bounds(TypedDict, total=False):
    """The bounds of a range, by name."""

    at_least: float
    above: float
    at_most: float
    below: float
    choices: tuple[float, ...]


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
            return " or ".join(map(_rendered, self.choices))
        if self.at_least is not None and self.at_most is not None:
            return f"{_rendered(self.at_least)} to {_rendered(self.at_most)}"
        words = (
            ("{} or more", self.at_least),
            ("above {}", self.above),
            ("at most {}", self.at_most),
            ("below {}", self.below),
        )
        return ", ".join(word.format(_rendered(bound)) for word, bound in words if bound is not None)


def check_ranges(config: Any, prefix: str = "") -> None:
    """Raise UserError naming the first field of a config, or of one inside it, whose number is outside its range.

    Whatever their range, whole numbers are below 2^31 and others are finite. Of a tuple each entry is checked. `prefix`
    precedes the names of fields in messages: "model." of a network.
    """
    for f in dataclasses.fields(config):
        name, value = prefix + f.name, getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{name}.")
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Real) and (remedy := _remedy(each, f.metadata.get("range", Range()))):
                verb = "has" if isinstance(value, tuple) else "is"
                raise UserError(f"{name} {verb} {_shown(each)}: give {remedy}")


def _remedy(number: Any, allowed: Range) -> str:
    """What to give in place of a number that is not allowed; empty where it is."""
    if number not in allowed:
        words = str(allowed)
        return words if words[0].isdigit() else f"a number {words}"
    if isinstance(number, float) and not math.isfinite(number):
        return "a finite number"
    bounded = allowed.at_most is not None or allowed.below is not None
    if isinstance(number, int) and not bounded and not -LARGEST <= number < LARGEST:
        return f"a number below {_rendered(LARGEST)}"
    return ""


def _shown(number: Any) -> str:
    return str(number) if isinstance(number, float) or abs(number) < 2**64 else "very large"


def _rendered(bound: float) -> str:
    """A bound in words: a great power of two as such."""
    power = round(bound).bit_length() - 1
    if power >= 20 and bound == 2**power:
        return f"2^{power}"
    return f"{bound:g}" if isinstance(bound, float) else str(bound)
