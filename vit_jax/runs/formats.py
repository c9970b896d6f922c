"""The number of the format that a run's config is written in, and the refusal of any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import Field, UserError

FORMAT = 4  # 1 to 3 were of versions before the first release
LAST_READER = "e3c4a86"  # the last commit that reads formats 1 to 3


def strip_format(values: Any) -> dict[str, Any]:
    """The JSON values of a run's config without the number of their format; without one they are of the current one.

    Raises:
        UserError: they are no JSON object, or of another format.
    """
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
