"""The flag that leaves out images that cannot be read, and where it is advised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from ..config.fields import option
from ..data.unreadable import FIELD, Unreadable


@dataclass(frozen=True, kw_only=True)
class UnreadableFlags:
    """What is done about images that cannot be read."""

    skip_unreadable: bool = option(
        False,
        "leave out unreadable images, and report how many, instead of stopping",
        also="data.skip-unreadable",  # as in training
    )


@contextlib.contextmanager
def flag_advised(skip: bool) -> Iterator[None]:
    """A context in which the error of an unreadable image names the flag, unless it was given."""
    try:
        yield
    except Unreadable as error:
        if not skip and FIELD not in error.remedy:
            error.add(f", or leave such images out with {FIELD}")
        raise
