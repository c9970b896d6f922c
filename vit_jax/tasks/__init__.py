"""The computation of every task. What other code needs to know of a task without jax is in its row, in config/tasks.py.

Read contract.py, then classify.py, whose metrics and pictures are in the files beside it.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..config import RunConfig, nearest
from ..config.decoding import Decoding
from ..errors import UserError
from .caption import Caption
from .caption_features import CaptionFeatures
from .classify import Classify
from .classify_resnet import ClassifyResNet
from .contract import Answer, Batch, Evaluation, Predictor, Task, Trained
from .distil import Distil
from .translate import Translate

TASKS: dict[str, type[Task]] = {
    "caption": Caption,
    "caption-features": CaptionFeatures,
    "classify": Classify,
    "classify-resnet": ClassifyResNet,
    "distil": Distil,
    "translate": Translate,
}

__all__ = ["TASKS", "Answer", "Batch", "Evaluation", "Predictor", "Task", "Trained", "searching", "task_of"]


def task_of(run: RunConfig, metadata: Mapping[str, Any]) -> Task:
    """The task of a run, from the metadata of its data: see `Task.from_run`."""
    return TASKS[run.task].from_run(run, metadata)


def searching(task: Task, changes: Mapping[str, Any]) -> Task:
    """The task with other settings of its search, {field of Decoding: value}; without any the task as it is.

    Raises UserError where it generates nothing, and on an unknown or invalid setting.
    """
    if not changes:
        return task
    name, known = next(iter(changes)), [f.name for f in fields(Decoding)]
    if unknown := [each for each in changes if each not in known]:
        raise UserError(f"{unknown[0]}: there is no such setting of a search{nearest(unknown[0], known)}")
    found = task.searching(changes)
    if found is None:
        remedy = f"the number of classes is top, so set that to {changes[name]}" if name == "top_k" else "leave it out"
        raise UserError(
            f"{name} is {changes[name]}, but this network generates nothing, so it searches nothing: {remedy}"
        )
    return found
