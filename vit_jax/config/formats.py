"""Older forms of a run's config, brought to today's in this one place.

Format 1 (no number in it) had one class of `data` and one of `augment` for every task, so that each run also stated what its
task never read. Format 2 called a Transformer's `position` `positions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError

FORMAT = 3
RENAMED = {"positions": "position"}  # fields of a network: {the name in older files: today's}
# What a run of format 1 stated and its task never read; of `augment`, None is all of it.
_IMAGES = ("dir", "fit", "size", "interpolation", "background", "skip_unreadable", "memory", "threads")
_UNREAD: dict[str, dict[str, tuple[str, ...] | None]] = {
    "classify": {"data": ("tokens", "lengths", "shuffle_sources")},
    "translate": {"data": _IMAGES, "augment": None},
}


def upgraded(values: Any) -> dict[str, Any]:
    """A run's config as JSON values, of any format, in today's form and without its number. Raises UserError on a later one."""
    if not isinstance(values, Mapping):
        raise UserError(f"config: {type(values).__name__} is no group of fields")
    current = dict(values)
    number = current.pop("format", 1)
    if number == FORMAT:
        return current
    if isinstance(current.get("model"), Mapping):
        current["model"] = renamed(current["model"])
    if number == 2:
        return current
    if number != 1:
        raise UserError(
            f"config: format {number!r} is not {FORMAT}, which this version of vit-jax writes; read it with the version that wrote it"
        )
    current.setdefault("task", "classify")
    for part, names in _UNREAD.get(str(current["task"]), {}).items():
        if isinstance(current.get(part), Mapping):
            current[part] = {k: v for k, v in current[part].items() if names is not None and k not in names}
    return current


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a network as JSON values, under today's names."""
    return {name if (now := RENAMED.get(name, name)) in fields else now: value for name, value in fields.items()}


def cannot_go_on(record: Mapping[str, Any]) -> str:
    """Why a run that was begun in an older format cannot go on as if never stopped, a clause; empty where it can."""
    config = upgraded(record["config"])
    augment = config.get("augment", {})
    drawn = not config.get("overfit_batches") and (augment.get("crop_padding") or augment.get("flip"))
    if record["format"] == 1 and config.get("compute_dtype") == "float64" and drawn:
        return "it was begun by a version that drew crops and flips in float64, which gives other images"
    return ""
