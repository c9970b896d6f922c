"""Every task: what it computes. Its row, with all that help and convert have to know, is in config/tasks.py under the same name.

Read contract.py, then classify.py.
"""

from collections.abc import Mapping
from typing import Any

from ..config import RunConfig
from .classify import Classify
from .contract import Answer, Batch, Evaluation, Load, Ready, Record, Task
from .translate import Translate

TASKS: dict[str, type[Task]] = {"classify": Classify, "translate": Translate}

__all__ = ["TASKS", "Answer", "Batch", "Evaluation", "Load", "Ready", "Record", "Task", "task"]


def task(run: RunConfig, kept: Mapping[str, Any]) -> Task:
    """The task of a run whose config.json keeps this."""
    return TASKS[run.task].of(run, kept)
