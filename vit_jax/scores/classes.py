"""The metrics of classes that need every probability, or counts of every class."""

from __future__ import annotations

import numpy as np

from .ranking import rank
from .result import Scores


def balanced_accuracy(confusion: np.ndarray) -> float:
    """The mean of the recall of each class that has an image, from a confusion matrix, int [K, K], rows the truth."""
    counts = confusion.sum(1)
    there = counts > 0
    return float((np.diagonal(confusion)[there] / counts[there]).mean()) if there.any() else float("nan")


def rank_classes(labels: np.ndarray, probabilities: np.ndarray) -> Scores:
    """ap_macro and auroc_macro of each class against the rest; the means are over the classes that have an image.

    Args:
        labels: int [n].
        probabilities: float [n, K].
    """
    classes = probabilities.shape[1]
    out = rank((labels[:, None] == np.arange(classes)).astype(np.int8), probabilities, "ap_macro")
    there = int((~np.isnan(out.each["average_precision"])).sum())
    if 0 < there < classes:
        out.notes.append(
            f"ap_macro and auroc_macro are over the {there:,} of {classes:,} classes that have an image here"
        )
    return out
