"""A whole split, every example once."""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import Sentences, Split, whole
from .step import Engine
from .tasks import Evaluation


def evaluate(engine: Engine, parameters: dict[str, Any], split: Split | Sentences, batch: int) -> Evaluation:
    """Run a network (parameters on the devices) over a split, so many examples at a time."""
    parts = []
    for examples, real in whole(split, batch):
        parts.append({k: v[:real] for k, v in engine.outputs(parameters, examples).items()})
    out = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    return engine.task.score(engine.run.model, split, out)  # type: ignore[arg-type]  # the task's own
