"""The metrics of classes that need every probability, or counts of every class; and those of sets of labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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


# Sets of labels.


def over(probabilities: np.ndarray, thresholds: Any) -> np.ndarray:
    """Whether probabilities [..., K] are greater than their thresholds [K]."""
    return probabilities.astype(np.float64) > np.asarray(thresholds)


def score_labels(truth: np.ndarray, probabilities: np.ndarray, thresholds: Any = 0.5) -> Scores:
    """The metrics of n predicted sets of K labels: truth int8 [n, K], probabilities float [n, K], thresholds float [K].

    precision, recall and f1 are means over labels (macro; of each also in `Scores.each`), of all cells together
    (micro), and means over images (samples); map and auroc_macro do not depend on thresholds. subset_accuracy is the
    share of images with all labels right, hamming that of wrong cells. What is never predicted has precision 0, as in
    scikit-learn. Macro means are over the labels that some image has; notes say of how many, and what scikit-learn
    would say, for which the others are 0.
    """
    known, true = truth >= 0, truth == 1
    said = over(probabilities, thresholds) & known
    out = rank(truth, probabilities)
    right = true & said
    absent = ~true.any(0)
    each = precision_recall_f1(right.sum(0), said.sum(0), true.sum(0))  # 0 of those that are absent
    for name, values in each.items():
        out.each[name] = np.where(absent, np.nan, values)
        out.add_mean(f"{name}_macro", out.each[name], "no image here has any label")
    nothing = "no image has a label here, and none was predicted"
    for name, value in precision_recall_f1(right.sum(), said.sum(), true.sum()).items():
        out.add(f"{name}_micro", float(value) if said.any() or true.any() else np.nan, nothing)
    rows = known.any(1)
    unknown = "of no image is any label known"
    by_image = precision_recall_f1(right[rows].sum(1), said[rows].sum(1), true[rows].sum(1))
    for name, values in by_image.items():
        out.add(f"{name}_samples", values.mean() if rows.any() else np.nan, unknown)
    wrong = (said != true) & known
    out.add("subset_accuracy", (~wrong[rows].any(1)).mean() if rows.any() else np.nan, unknown)
    out.add("hamming", wrong.sum() / known.sum() if known.any() else np.nan, unknown)
    empty = int((~(true | said)[rows].any(1)).sum())
    if absent.any() and not absent.all():
        out.notes.append(_note_absent(out, each, int(absent.sum())))
    if empty:
        lenient = (by_image["f1"].sum() + empty) / rows.sum()
        out.notes.append(
            f"{empty:,} of {rows.sum():,} images have no label and none was predicted: they count as 0 in precision, "
            f"recall and f1 of samples, as in scikit-learn; as 1, f1_samples is {lenient:.4f}"
        )
    return out


def _note_absent(out: Scores, each: dict[str, np.ndarray], absent: int) -> str:
    """How many labels macro means are over, and what they are with 0 for the others."""
    labels = len(each["f1"])
    counted_as_0 = np.nansum(out.each["average_precision"]) / labels
    return (
        f"macro means and map are over {labels - absent:,} of {labels:,} labels, since no image here has the others; "
        f"over all, these as 0, f1_macro is {each['f1'].mean():.4f} and map {counted_as_0:.4f}"
    )


DEFAULT = 0.5
FEWEST = 10  # images with a label: of fewer none is chosen


def choose_thresholds(truth: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The threshold of each label that gives the greatest F1: truth int8 [n, K], probabilities float [n, K] -> float64
    [K].

    It lies midway between two neighbouring probabilities, so that no image lies on it; of several with the same F1 it
    is the largest. A label of fewer than FEWEST images, or of all of which it is known, keeps DEFAULT.
    """
    chosen = np.full(truth.shape[1], DEFAULT)
    for k in range(len(chosen)):
        known = (truth[:, k] >= 0) & np.isfinite(probabilities[:, k])
        true = truth[known, k] == 1
        if true.sum() >= FEWEST and not true.all():
            chosen[k] = _of_greatest_f1(true, probabilities[known, k].astype(np.float64))
    return chosen


def _of_greatest_f1(true: np.ndarray, scores: np.ndarray) -> float:
    """The threshold of greatest F1 of one label; true bool [n], scores float64 [n]."""
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], np.cumsum(true[order])
    said = np.arange(1, len(scores) + 1)
    f1 = 2 * right / (said + right[-1])
    below = np.append(scores[1:], 0.0)  # the next smaller probability
    f1 = np.where(scores > below, f1, 0.0)  # equal probabilities are not parted, nor is 0 from what is below it
    best = int(np.argmax(f1))
    return float((scores[best] + below[best]) / 2) if f1[best] else DEFAULT
