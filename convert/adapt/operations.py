"""The operations of --adapt for any network with a config field of their name: (config, text, value) -> Adaptation.

`python -m convert formats` prints the first paragraph of each docstring, which begins with how to write the operation.
"""

from __future__ import annotations

import typing
from dataclasses import replace
from typing import Any

from vit_jax.config.hints import nearest
from vit_jax.errors import UserError

from .step import Adaptation

LARGEST = 1 << 25  # numbers in a parameter: 256 MB in the float64 in which they are computed


def eps(c: Any, text: str, value: str) -> Adaptation:
    """eps=NUMBER: another epsilon in every LayerNorm."""
    after = replace(c, eps=number(text, value, float, 0.0))
    return Adaptation(text, c, after, (), f"eps {c.eps} becomes {after.eps}: the function changes", changes=True)


def activation(c: Any, text: str, value: str) -> Adaptation:
    """activation=NAME: another activation in every mlp."""
    known = list(typing.get_args(typing.get_type_hints(type(c))["activation"]))
    if value not in known:
        raise UserError(f"adapt {text}", f"there is no activation {value!r}{nearest(value, known)}")
    after = replace(c, activation=value)
    says = f"activation {c.activation} becomes {value}: the function changes"
    return Adaptation(text, c, after, (), says, changes=True)


OPERATIONS = (eps, activation)


# ------------------------------------------------------------------------------- what they share


def need(holds: bool, text: str, reason: str) -> None:
    """Check what an operation needs.

    Args:
        reason: why it cannot be done otherwise.

    Raises:
        UserError: with this reason unless it holds.
    """
    if not holds:
        raise UserError(f"adapt {text}", reason, "leave it out")


def number(text: str, value: str, cls: type, least: float) -> Any:
    """A text as a finite number.

    Args:
        value: the part of it that is the number.
        cls: int or float.
        least: the smallest that may be.

    Raises:
        UserError: where it is no such number.
    """
    try:
        found = cls(value)
    except ValueError:
        found = least - 1
    if not least <= found < float("inf"):
        kind = "a whole number" if cls is int else "a number"
        raise UserError(f"adapt {text}", f"{value!r} is not {kind} of at least {least:g}", "give one")
    return found
