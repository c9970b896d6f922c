"""Whether predictions are as often right as they say, and a temperature by which they are (Guo et al. 2017).

The bins of confidence and the calibration error are those of arXiv 1706.04599, and so is one temperature T for the
logits z of a network, so that the probabilities of z / T are as often right as they say. T has the least loss on
validation. As a function of b = 1 / T the loss is convex, so its slope has one root, which Brent's method finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from .classes import Scores

BINS = 15  # as Guo et al. 2017
DRAWS = 200


@dataclass(frozen=True)
class Reliability:
    """What predictions of similar confidence are worth: of each bin a count, the mean confidence, the share right."""

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


@dataclass(frozen=True)
class Trust:
    """The reliability of n probabilities."""

    before: Reliability
    told: Reliability
    drawn: float
    temperature: float
    loss: float

    @classmethod
    def of(cls, before: np.ndarray, told: np.ndarray, right: np.ndarray, temperature: float, loss: float) -> Self:
        """From probabilities without and with the temperature, float [n], and whether each is right, bool [n]."""
        return cls(reliability(before, right), reliability(told, right), error_of_drawn(told), temperature, loss)

    @property
    def panels(self) -> dict[str, Reliability]:
        """What a figure shows, by its titles."""
        if self.temperature == 1:
            return {"as trained": self.told}
        return {"as trained": self.before, f"with temperature {self.temperature:.3g}": self.told}

    def scores(self) -> Scores:
        """ece and ece_drawn; where there is a temperature, also ece_calibrated and loss_calibrated."""
        out, why = Scores(), "of no image is any label known"
        out.add("ece", self.before.error, why)
        if self.temperature != 1:
            out.add("ece_calibrated", self.told.error, why)
        out.add("ece_drawn", self.drawn, why)
        if self.temperature != 1:
            out.add("loss_calibrated", self.loss, why)
        return out


# A temperature.

SMALLEST, GREATEST = 0.01, 100.0  # of T; beyond, it runs to 0 or to infinity
PARTED = "hardly an image of validation is wrong, so its loss falls towards T = 0, where every probability is 0 or 1"
USELESS = "on validation the logits are no better than chance, so its loss falls towards T = infinity"
NOT_FINITE = "an output on validation is NaN or infinite"
NOTHING_KNOWN = "of no image of validation is any label known"


def class_temperature(labels: np.ndarray, logits: np.ndarray) -> tuple[float | None, str]:
    """(T, "") of classes, by cross entropy, or (None, why there is none); labels int [n], logits float [n, K]."""
    from scipy.special import softmax

    logits = logits.astype(np.float64)
    own = np.take_along_axis(logits, labels[:, None].astype(np.int64), 1)[:, 0]

    def slope(b: float) -> float:
        """The mean of E_p[z] - z_y, p the softmax of b z."""
        return float(((softmax(b * logits, axis=1) * logits).sum(1) - own).mean())

    return _bisect(slope, bool((own == logits.max(1)).all()), logits)


def set_temperature(truth: np.ndarray, logits: np.ndarray) -> tuple[float | None, str]:
    """`class_temperature` of all labels of a set, by binary cross entropy over the known cells; truth int8 [n, K]."""
    from scipy.special import expit

    known = truth >= 0
    z, true = logits.astype(np.float64)[known], truth[known] == 1

    def slope(b: float) -> float:
        """The mean of (s(b z) - m) z, s the sigmoid."""
        return float(((expit(b * z) - true) * z).mean())

    return _bisect(slope, bool(((z >= 0) | ~true).all() and ((z <= 0) | true).all()), z)


def class_loss(labels: np.ndarray, logits: np.ndarray) -> float:
    """The cross entropy of classes, a mean over images; labels int [n], logits float [n, K]."""
    from scipy.special import logsumexp

    z = logits.astype(np.float64)
    own = np.take_along_axis(z, labels[:, None].astype(np.int64), 1)[:, 0]
    return float((logsumexp(z, axis=1) - own).mean())


def set_loss(truth: np.ndarray, logits: np.ndarray) -> float:
    """The binary cross entropy of a set, a mean over the known cells; NaN where none is; truth int8 [n, K]."""
    known = truth >= 0
    z = logits.astype(np.float64)[known]
    return float((np.logaddexp(0, z) - z * (truth[known] == 1)).mean()) if known.any() else float("nan")


def _bisect(slope: Callable[[float], float], parted: bool, logits: np.ndarray) -> tuple[float | None, str]:
    """(1 / b where an increasing function of b is 0, ""), or (None, why that is nowhere in range)."""
    from scipy.optimize import brentq

    if not logits.size:
        return None, NOTHING_KNOWN
    if not np.isfinite(logits).all():
        return None, NOT_FINITE
    low, high = 1 / GREATEST, 1 / SMALLEST
    if slope(low) >= 0:
        return None, USELESS
    if parted or slope(high) <= 0:
        return None, PARTED
    return 1 / brentq(slope, low, high, xtol=1e-12), ""
