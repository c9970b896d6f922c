"""What computes a task: its class, by the name in its spec, and the task of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.run import RunConfig
from ..plugins import Plugin
from .base import Task
from .table import TASKS, task_spec


def task_class(name: str) -> type[Task]:
    """The class that computes a task."""
    computes = Plugin(task_spec(name).computes)
    with TASKS.blaming(name, "cannot be loaded"):
        return computes.load()  # type: ignore[no-any-return]


def task_of(run: RunConfig, metadata: Mapping[str, Any]) -> Task:
    """The task of a run."""
    return task_class(run.task).from_run(run, metadata)
