"""The search of a task for texts, with other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..config.decoding import Decoding
from ..config.hints import hint, names_of
from ..config.nearest import nearest
from ..errors import Field, UserError
from .base import Task


def searching(task: Task, changes: Mapping[str, Any]) -> Task:
    """The task with other settings of its search."""
    if not changes:
        return task
    name, known = next(iter(changes)), [f.name for f in fields(Decoding)]
    if "top" in changes and task.searching({}) is not None:
        count = changes["top"]
        what, remedy = f"is {count}, but this network says a text and no classes", f"`beam {count}` and `nbest {count}`"
        raise UserError(Field("top"), what, f"for {count} texts of each input give {remedy}")
    if unknown := [each for each in changes if each not in known]:
        clause = hint(unknown[0], names_of(Decoding), {}) or nearest(unknown[0], known)
        raise UserError(unknown[0], f"there is no such setting of a search{clause}")
    found = task.searching(changes)
    if found is None:
        remedy = f"the number of classes is `top`, so give `top {changes[name]}`" if name == "top_k" else "leave it out"
        raise UserError(
            Field(name), f"is {changes[name]}, but this network generates nothing, so it searches nothing", remedy
        )
    return found
