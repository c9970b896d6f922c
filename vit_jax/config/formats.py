"""Conversion of configs in older formats to the current one.

Format 1 (which has no number) had one class of `data` and one of `augment` for all tasks, so a run also had fields that
its task does not use. In format 2 the field `position` of a Transformer was called `positions`. Format 3 had
no digest in config.json, and none of the fields `init_resize`, `init_channels`, `augment.mean`, `augment.std`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError

FORMAT = 4
FIRST_TASK = "classify"  # the only one before a run stated its task
RENAMED = {"positions": "position"}  # fields of networks: {name in older files: current name}
# The fields of a run of format 1 that its task does not use, as {task: {part: fields, or None for all fields}}.
_IMAGES = ("dir", "fit", "size", "interpolation", "background", "skip_unreadable", "memory", "threads")
_UNUSED: dict[str, dict[str, tuple[str, ...] | None]] = {
    "classify": {"data": ("tokens", "lengths", "shuffle_sources")},
    "translate": {"data": _IMAGES, "augment": None},
}


def upgraded(values: Any) -> dict[str, Any]:
    """The JSON values of a run's config, of any format, in the current format and without the format's number.

    Raises UserError on a format that this version does not know.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"config: {type(values).__name__} is not a group of fields")
    current = dict(values)
    number = current.pop("format", 1)
    if number in (3, FORMAT):
        return current
    if isinstance(current.get("model"), Mapping):
        current["model"] = renamed(current["model"])
    if number == 2:
        return current
    if number != 1:
        raise UserError(
            f"config: format {number!r} is not {FORMAT}, which this version of vit-jax writes; "
            "read it with the version that wrote it"
        )
    current.setdefault("task", FIRST_TASK)
    for part, names in _UNUSED.get(str(current["task"]), {}).items():
        if isinstance(current.get(part), Mapping):
            current[part] = {k: v for k, v in current[part].items() if names is not None and k not in names}
    return current


def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON values of a network's config, {field: value}, under the current names of the fields."""
    return {name if (now := RENAMED.get(name, name)) in fields else now: value for name, value in fields.items()}


def cannot_go_on(record: Mapping[str, Any]) -> str:
    """Why a run of an older format cannot be resumed to the same bits, as a clause; empty if it can.

    `record` is the content of config.json.
    """
    config = upgraded(record["config"])
    augment = config.get("augment", {})
    drawn = not config.get("overfit_batches") and (augment.get("crop_padding") or augment.get("flip"))
    if record["format"] == 1 and config.get("compute_dtype") == "float64" and drawn:
        return "it was begun by a version that drew crops and flips in float64, which gives other images"
    return ""
