"""Whether predictions are as often right as they say: bins of their confidence, and the calibration error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 15  # as Guo et al. 2017 (arXiv 1706.04599)
DRAWS = 200


@dataclass(frozen=True)
class Reliability:
    """What predictions of similar confidence are worth: counts int [bins], confidence float [bins], right float
    [bins].
    """

    counts: np.ndarray
    confidence: np.ndarray
    right: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error (ECE): sum over bins of n_b / n |right - confidence|; NaN of nothing."""
        n = self.counts.sum()
        return float((self.counts * np.abs(self.right - self.confidence)).sum() / n) if n else float("nan")


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> Reliability:
    """The bins of n predictions: confidence float [n], right bool [n]."""
    confidence = confidence.astype(np.float64)
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts, total = np.bincount(place, minlength=bins), np.maximum(np.bincount(place, minlength=bins), 1)
    means = (np.bincount(place, values, minlength=bins) / total for values in (confidence, right.astype(np.float64)))
    return Reliability(counts, *means)


def error_of_drawn(confidence: np.ndarray) -> float:
    """The mean ECE that the same predictions would have if they were right exactly as often as they say.

    A network that is perfectly calibrated has about this ECE on so few images, so only more than that means anything.
    """
    draw, confidence = np.random.default_rng(0), np.sort(confidence)  # in whichever order images come
    errors = [reliability(confidence, draw.random(len(confidence)) < confidence).error for _ in range(DRAWS)]
    return float(np.mean(errors))
