"""How well scores rank the images that have a label above those that have not: average precision and area under ROC."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .result import Scores, no_numbers

NO_POSITIVES = "no image here has the label"
ONE_KIND = "no label is both of some images and not of others"


def average_precision(truth: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The average precision of each label, sum over thresholds of (R_i - R_i-1) P_i; equal scores are one threshold.

    Args:
        truth: int8 [n, K], -1 where it is unknown.
        scores: float [n, K], finite; the larger, the more likely.

    Returns:
        float64 [K], NaN of a label that no image has (scikit-learn says 0, which would pull down a mean).
    """
    from sklearn.metrics import average_precision_score

    return _of_each(truth, scores, average_precision_score, lambda true: bool(true.any()))


def roc_auc(truth: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The area under the ROC curve of each label: the chance that an image with it has the larger score, ties half.

    Args:
        truth: as of `average_precision`.
        scores: likewise.

    Returns:
        float64 [K], NaN of a label that all images have, or none.
    """
    from sklearn.metrics import roc_auc_score

    return _of_each(truth, scores, roc_auc_score, lambda true: bool(true.any() and not true.all()))


def _of_each(
    truth: np.ndarray, scores: np.ndarray, metric: Callable[..., float], defined: Callable[[np.ndarray], bool]
) -> np.ndarray:
    """A metric of each label over the images of which it is known whether they have it."""
    each = np.full(truth.shape[1], np.nan)
    for k in range(len(each)):
        known = truth[:, k] >= 0
        true = truth[known, k] == 1
        if defined(true):
            each[k] = metric(true, scores[known, k])
    return each


def rank(truth: np.ndarray, scores: np.ndarray) -> Scores:
    """map and auroc_macro, with average_precision and auroc of each label; the means are over those that have one.

    Args:
        truth: int8 [n, K], -1 where it is unknown.
        scores: float [n, K].
    """
    out, fault = Scores(), no_numbers(scores)
    if fault:
        nothing = np.full(truth.shape[1], np.nan)
        out.each = {"average_precision": nothing, "auroc": nothing}
    else:
        out.each = {"average_precision": average_precision(truth, scores), "auroc": roc_auc(truth, scores)}
    out.add_mean("map", out.each["average_precision"], fault or NO_POSITIVES)
    out.add_mean("auroc_macro", out.each["auroc"], fault or ONE_KIND)
    return out
