"""The thresholds over which a label is said to be of an image."""

from __future__ import annotations

import numpy as np

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
