"""The computation of every task. What other code needs to know of a task without jax is in its row, in config/tasks.py.

Read contract.py, then classify.py, whose metrics and pictures are in the files beside it.
"""

from collections.abc import Mapping
from typing import Any

from ..config import RunConfig
from .caption import Caption
from .classify import Classify
from .classify_resnet import ClassifyResNet
from .contract import Answer, Batch, Evaluation, Predictor, Task, Trained
from .distil import Distil
from .translate import Translate

TASKS: dict[str, type[Task]] = {
    "caption": Caption,
    "classify": Classify,
    "classify-resnet": ClassifyResNet,
    "distil": Distil,
    "translate": Translate,
}

__all__ = ["TASKS", "Answer", "Batch", "Evaluation", "Predictor", "Task", "Trained", "task_of"]


def task_of(run: RunConfig, metadata: Mapping[str, Any]) -> Task:
    """The task of a run, from the metadata of its data: see `Task.from_run`."""
    return TASKS[run.task].from_run(run, metadata)
