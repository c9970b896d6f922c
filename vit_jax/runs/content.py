"""Whether data is that with which a run began, by its content, and where it is not, what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..data.base import Data


def data_difference(record: Mapping[str, Any], data: Data) -> str:
    """A clause on how data differs from that of a run.

    Args:
        record: the content of the run's config.json, or a part of it with "data".
        data: opened, wherever it lies: its name and place do not count.

    Returns:
        The first of these that differs: the number of examples, the classes, the words, the content; empty if none
        does, or if the run's data is not known, as of a converted one.
    """
    then, now = record["data"], data.identity
    if data.same_as(then):
        return ""
    if not isinstance(then, dict):
        return "that of the run is damaged"
    if then.get("once") or now.get("once"):
        return "the batches of an iterator come once"
    if then.get("classes") != now.get("classes"):
        return _other_names(record.get("class_names"), data.metadata().get("class_names"))
    were, are = (each.get("sizes") or {} for each in (then, now))
    for what, had, has in (("it", sum(were.values()), sum(are.values())), *((s, were.get(s, 0), are[s]) for s in are)):
        if had != has:
            return f"{what} has {has:,} examples, and had {had:,}"
    if then.get("vocabulary") != now.get("vocabulary"):
        return "its words, or how they are split, are others"
    kept = record.get("listings")
    for split, listing in data.listings.items():
        if clause := listing.first_difference(kept.get(split) if isinstance(kept, dict) else None):
            return clause
    return "its numbers of examples are the same, but their content is not"


def _other_names(then: Any, now: Any) -> str:
    """A clause on the first class that has another name."""
    if not isinstance(then, list) or not isinstance(now, list) or len(then) != len(now):
        known = isinstance(then, list) and isinstance(now, list)
        return f"it has {len(now)} classes, and had {len(then)}" if known else "its classes are others"
    pairs = (f"its class {k} is {a!r}, and was {b!r}" for k, (a, b) in enumerate(zip(now, then, strict=True)) if a != b)
    return next(pairs, "its classes are others")
