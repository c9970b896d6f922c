"""The teacher of a run (`run.teacher`): a trained network from which another one learns, opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .config import RunConfig, Teacher, network_of, parameter_count, pixels, task_row, untrained
from .errors import UserError
from .interop import convert_first, stated_by, stating
from .starting.opening import place_of


def teacher_of(run: RunConfig, metadata: Mapping[str, Any] | None = None, *, values: bool = True) -> Teacher | None:
    """The teacher that a run names; None where it names none.

    `metadata` is that of the run's data, where this is open; without `values` only headers are read, no arrays. Raises
    UserError where it cannot be opened, or cannot teach this run.
    """
    check = task_row(run.task).teacher
    if not run.teacher or check is None:
        return None
    try:
        teacher = _opened(run.teacher, run.dir, values)
    except UserError as error:
        raise _named(error, run.teacher) from error
    check(teacher, run, metadata or {})
    return teacher


def says(teacher: Teacher) -> str:
    """What a teacher is, in a line."""
    what, cost = network_of(teacher.config).describe(teacher.config)
    size = "x".join(map(str, pixels(teacher.config) or ()))
    count = parameter_count(teacher.config)
    return f"{teacher.path}: {teacher.layout}, {what}, images {size}; {count:,} parameters, {cost}"


def _opened(path: str, folder: str, values: bool) -> Teacher:
    """The network at a path or address, or of the run with this name in the folder of all runs. Raises UserError."""
    with stating(place_of(path, folder)) as weights:
        arrays = dict(weights.arrays()) if values else {}
    metadata = stated_by(weights.facts, untrained(weights.config).task, weights.config)
    return Teacher(path, weights.layout, weights.config, metadata, arrays)


def _named(error: UserError, path: str) -> UserError:
    """An error of `_opened` that says that it is about the teacher, and what to do about it."""
    what = str(convert_first(error, path))
    place, _, rest = what.partition(": ")
    return UserError(f"teacher {path}: {rest if rest and (place == path or os.path.exists(place)) else what}")
