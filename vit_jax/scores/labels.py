"""The metrics of sets of labels."""

from __future__ import annotations

import numpy as np

from .classes import Scores, precision_recall_f1, rank


def over(probabilities: np.ndarray, thresholds: np.ndarray | float) -> np.ndarray:
    """Whether probabilities [..., K] are greater than their thresholds [K]."""
    return probabilities.astype(np.float64) > thresholds


def score_labels(truth: np.ndarray, probabilities: np.ndarray, thresholds: np.ndarray | float = 0.5) -> Scores:
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
