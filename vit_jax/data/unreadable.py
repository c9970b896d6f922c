"""Image files that cannot be read: refused by name, or left out and counted."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError

FIELD = "`data.skip_unreadable True`"


class Unreadable(UserError):
    """Image files that cannot be read, or are incomplete: what skip_unreadable leaves out."""


def refuse_unreadable(field: str, names: Sequence[str]) -> Unreadable:
    """The error for a source with unreadable images of these names."""
    remedy = f"replace or remove them, or leave them out with {FIELD}"
    return Unreadable(field, f"{_count(names)}: {_listed(names)}", remedy)


def left_out(names: Sequence[str]) -> str:
    """A remark on unreadable images that are left out."""
    return f"{_count(names)} left out: {_listed(names)}"


def stood_in(names: Sequence[str]) -> str:
    """A remark on unreadable images in whose place others are taken."""
    return f"{_count(names)} replaced by the next of the shard: {_listed(names)}"


def _count(names: Sequence[str]) -> str:
    return f"{len(names):,} unreadable image{'s' if len(names) > 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
