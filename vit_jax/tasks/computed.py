"""What computes a task: its class, by the name in its spec, and the task of a run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from ..config.run import RunConfig
from .base import Task
from .table import task_spec


def task_class(name: str) -> type[Task]:
    """The class that computes a task."""
    module, _, cls = task_spec(name).computes.partition(":")
    return cast(type[Task], getattr(import_module(module), cls))


def task_of(run: RunConfig, metadata: Mapping[str, Any]) -> Task:
    """The task of a run."""
    return task_class(run.task).from_run(run, metadata)
