"""What computes a task: its class, by the name in its spec, and the task of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any, cast

from ..config.decoding import Decoding
from ..config.nearest import nearest
from ..config.run import RunConfig
from ..errors import Field, UserError
from .base import Task
from .table import task_spec


def task_class(name: str) -> type[Task]:
    """The class that computes a task. Raises UserError on an unknown name."""
    module, _, cls = task_spec(name).computes.partition(":")
    return cast(type[Task], getattr(import_module(module), cls))


def task_of(run: RunConfig, metadata: Mapping[str, Any]) -> Task:
    """The task of a run, from the metadata of its data: see `Task.from_run`."""
    return task_class(run.task).from_run(run, metadata)


def searching(task: Task, changes: Mapping[str, Any]) -> Task:
    """The task with other settings of its search.

    Args:
        task: the task.
        changes: {field of Decoding: value}; without any the task is as it was.

    Raises:
        UserError: it generates nothing, or there is no such setting, or no such value.
    """
    if not changes:
        return task
    name, known = next(iter(changes)), [f.name for f in fields(Decoding)]
    if unknown := [each for each in changes if each not in known]:
        raise UserError(unknown[0], f"there is no such setting of a search{nearest(unknown[0], known)}")
    found = task.searching(changes)
    if found is None:
        remedy = f"the number of classes is top, so set that to {changes[name]}" if name == "top_k" else "leave it out"
        raise UserError(
            Field(name), f"is {changes[name]}, but this network generates nothing, so it searches nothing", remedy
        )
    return found
