"""A whole split, every example once: loss, accuracy, precision, recall and F1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .data import Split, whole
from .step import Engine


@dataclass(frozen=True)
class Evaluation:
    """What a network did on a split of n examples and K classes."""

    metrics: dict[str, float]  # loss, accuracy and {precision, recall, f1}_{macro, micro}
    predicted: np.ndarray  # int [n]
    confidence: np.ndarray  # float [n], the probability given to the predicted class
    confusion: np.ndarray  # int [K, K]: rows are the truth, columns the prediction
    per_class: dict[str, np.ndarray]  # precision, recall, f1: float [K]


def evaluate(engine: Engine, parameters: dict[str, Any], split: Split, classes: int, batch: int) -> Evaluation:
    """Run a network (parameters on the devices) over a split.

    Precision, recall and F1 are counted over the split, not averaged over batches; a class that
    is never predicted has precision 0.
    """
    parts = []
    for examples, real in whole(split, batch):
        parts.append({k: v[:real] for k, v in engine.outputs(parameters, examples).items()})
    out = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    return score(split.labels, out["predicted"], out["confidence"], out["loss"], classes)


def score(truth: np.ndarray, predicted: np.ndarray, confidence: np.ndarray, loss: np.ndarray, classes: int) -> Evaluation:
    """Metrics of n predictions; truth and predicted are int [n], confidence and loss float [n]."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels, names = np.arange(classes), ("precision", "recall", "f1")
    metrics = {"loss": float(loss.astype(np.float64).mean()), "accuracy": float((predicted == truth).mean())}
    for average in ("macro", "micro"):
        values = precision_recall_fscore_support(truth, predicted, labels=labels, average=average, zero_division=0)
        metrics |= {f"{name}_{average}": float(v) for name, v in zip(names, values, strict=False)}
    each = precision_recall_fscore_support(truth, predicted, labels=labels, average=None, zero_division=0)
    return Evaluation(
        metrics, predicted, confidence, confusion_matrix(truth, predicted, labels=labels), dict(zip(names, each, strict=False))
    )
