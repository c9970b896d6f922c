"""The metrics of classes that need every probability, or counts of every class."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


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
    """ap_macro and auroc_macro of each class against the rest, means over the classes that have an image."""
    classes = probabilities.shape[1]
    out = rank((labels[:, None] == np.arange(classes)).astype(np.int8), probabilities, "ap_macro")
    there = int((~np.isnan(out.each["average_precision"])).sum())
    if 0 < there < classes:
        out.notes.append(
            f"ap_macro and auroc_macro are over the {there:,} of {classes:,} classes that have an image here"
        )
    return out


@dataclass
class Scores:
    """The metrics of the predictions for a split: each float [K]."""

    values: dict[str, float] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)
    each: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, why: str = "") -> None:
        """Add a metric."""
        self.values[name] = float(value)
        if np.isnan(value):
            self.undefined[name] = why or "it is no number"

    def add_mean(self, name: str, each: np.ndarray, why: str) -> None:
        """Add the mean of a metric over classes, labels or numbers: each float [K]."""
        self.add(name, each[~np.isnan(each)].mean() if not np.isnan(each).all() else np.nan, why)


def no_numbers(outputs: np.ndarray) -> str:
    """Why outputs [n, K] cannot be ranked: some are NaN or infinite; '' if none is."""
    rows = int((~np.isfinite(outputs)).any(1).sum())
    return f"{rows:,} of {len(outputs):,} images have an output that is NaN or infinite" if rows else ""


NO_POSITIVES = "no image here has the label"
ONE_KIND = "no label is both of some images and not of others"


def _rank_each(truth: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The average precision and the area under the ROC curve of each label, over the images of which it is known ->
    float64 [2, K].

    The precision is the sum over thresholds of (R_i - R_i-1) P_i, where equal scores are one threshold; the area is
    the chance that an image with the label has the larger score, ties half. Both as scikit-learn computes them, but
    from one sort: it would take a minute for a thousand classes.
    """
    each = np.full((2, truth.shape[1]), np.nan)
    for k in range(truth.shape[1]):
        known = truth[:, k] >= 0
        true, column = truth[known, k] == 1, scores[known, k]
        if not true.any():
            continue
        order = np.argsort(-column, kind="stable")
        column, right = column[order], np.cumsum(true[order])
        ends = np.append(np.flatnonzero(column[1:] != column[:-1]), len(column) - 1)  # of runs of equal scores
        right, said = np.append(0, right[ends]), np.append(0, ends + 1)
        gained, wrong = np.diff(right), said - right
        each[0, k] = (gained * right[1:] / said[1:]).sum() / right[-1]
        if wrong[-1]:
            each[1, k] = (np.diff(wrong) * (right[1:] + right[:-1]) / 2).sum() / (right[-1] * wrong[-1])
    return each


def rank(truth: np.ndarray, scores: np.ndarray, mean: str = "map") -> Scores:
    """Average precision, area under ROC and their means over the labels that have one; truth int8 [n, K]."""
    out, fault = Scores(), no_numbers(scores)
    precision, area = np.full((2, truth.shape[1]), np.nan) if fault else _rank_each(truth, scores)
    out.each = {"average_precision": precision, "auroc": area}
    out.add_mean(mean, precision, fault or NO_POSITIVES)
    out.add_mean("auroc_macro", area, fault or ONE_KIND)
    return out
