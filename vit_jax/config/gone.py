"""What earlier versions had: the names of flags, fields, arguments and commands, and what takes their place."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import UserError

# {name, without dashes before it: a clause that says what to use}
GONE = {
    "continue": "a run trains on in one way, as if so many epochs had been given at first: resume RUN with more epochs; "
    "for a schedule that begins anew start a new run from its weights with init RUN",
}


def check_arguments(given: Iterable[str]) -> None:
    """Raise UserError for an argument that a function had, and TypeError for one that it never had."""
    for name in given:
        if reason := GONE.get(name.rstrip("_").replace("_", "-")):
            raise UserError(f"{name} is gone", remedy=reason)
        raise TypeError(f"there is no argument {name!r}")
