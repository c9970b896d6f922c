"""How well scores rank the images that have a label above those that have not: average precision and area under ROC."""

from __future__ import annotations

import numpy as np

from .result import Scores, no_numbers

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
    """Average precision and area under ROC of each label, and their means over the labels that have one: truth int8 [n,
    K], scores float [n, K].
    """
    out, fault = Scores(), no_numbers(scores)
    precision, area = np.full((2, truth.shape[1]), np.nan) if fault else _rank_each(truth, scores)
    out.each = {"average_precision": precision, "auroc": area}
    out.add_mean(mean, precision, fault or NO_POSITIVES)
    out.add_mean("auroc_macro", area, fault or ONE_KIND)
    return out
