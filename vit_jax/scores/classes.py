"""The metrics of classes that need every probability, or counts of every class."""

from __future__ import annotations

import numpy as np

from .ranking import rank
from .result import Scores


def precision_recall_f1(right: np.ndarray, said: np.ndarray, true: np.ndarray) -> dict[str, np.ndarray]:
    """{name: array} of counts of true positives, of what was predicted and of what is true; 0/0 is 0."""

    def ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a / np.maximum(b, 1)

    return {"precision": ratio(right, said), "recall": ratio(right, true), "f1": ratio(2 * right, said + true)}


def balanced_accuracy(confusion: np.ndarray) -> float:
    """The mean of the recall of each class that has an image, from a confusion matrix, int [K, K], rows the truth."""
    counts = confusion.sum(1)
    there = counts > 0
    return float((np.diagonal(confusion)[there] / counts[there]).mean()) if there.any() else float("nan")


def rank_classes(labels: np.ndarray, probabilities: np.ndarray) -> Scores:
    """ap_macro and auroc_macro of each class against the rest; the means are over the classes that have an image.
    Shapes: labels int [n], probabilities float [n, K].
    """
    classes = probabilities.shape[1]
    out = rank((labels[:, None] == np.arange(classes)).astype(np.int8), probabilities, "ap_macro")
    there = int((~np.isnan(out.each["average_precision"])).sum())
    if 0 < there < classes:
        out.notes.append(
            f"ap_macro and auroc_macro are over the {there:,} of {classes:,} classes that have an image here"
        )
    return out
