"""Probes: a simple classifier learns from the features of a network, which stays as it is, how well they tell classes.

Either the nearest neighbours vote, as in DINO (Caron et al. 2021, arXiv 2104.14294), or a logistic regression learns,
as in CLIP (Radford et al. 2021, arXiv 2103.00020, appendix A.3) and DINOv2 (Oquab et al. 2023, arXiv 2304.07193). Both
are scikit-learn's. Features are float [n, D], labels int [n].
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..config.run import RunConfig
from ..data.order import VALIDATION, hold_out
from ..errors import Field, UserError
from ..machine import backend

NEIGHBOURS, TEMPERATURE = 20, 0.07
LARGEST = 6  # C is searched for from 10^-6 to 10^6, CLIP's range: in steps of 100, ever smaller around the best
STEPS_PER_DECADE = 8  # the last of them
FEW = 2**20  # numbers in the features of train, below which one thread computes as fast as several
ITERATIONS = 1000  # of the solver, at most: CLIP's and DINOv2's
HELD_OUT = 0.1  # the share of train that C is chosen on where there is no validation split


@dataclass(frozen=True)
class Probe:
    """A classifier that has learnt from features."""

    estimator: Any
    chosen: Mapping[str, float]  # its settings
    notes: tuple[str, ...]

    def scores(self, features: np.ndarray, classes: int) -> np.ndarray:
        """The share of each of K classes, float [n, K]; 0 of those that it has not learnt."""
        out = np.zeros((len(features), classes))
        out[:, self.estimator.classes_] = self.estimator.predict_proba(features)
        return out


def knn(features: np.ndarray, labels: np.ndarray) -> Probe:
    """The vote of the 20 nearest neighbours by cosine similarity s, each of weight exp(s / 0.07)."""
    from sklearn.neighbors import KNeighborsClassifier

    def weights(distances: np.ndarray) -> np.ndarray:
        return np.exp((1 - distances) / TEMPERATURE)

    k = min(NEIGHBOURS, len(labels))
    estimator = KNeighborsClassifier(k, weights=weights, metric="cosine", algorithm="brute").fit(features, labels)
    notes: tuple[str, ...] = (
        f"the {k} nearest of {len(labels):,} images of train vote: cosine similarity, temperature {TEMPERATURE}",
    )
    if k < NEIGHBOURS:
        notes += (f"train has only {k} images, so all of them vote, not {NEIGHBOURS}",)
    return Probe(estimator, {"k": k, "temperature": TEMPERATURE}, notes)


def linear(
    features: np.ndarray, labels: np.ndarray, unseen: np.ndarray, their_labels: np.ndarray, where: str = "validation"
) -> Probe:
    """A logistic regression with the C that is the most accurate on other features; of equal ones the smallest. Shapes:
    features float [n, D], labels int [n], unseen float [m, D], their_labels int [m].
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    features, unseen = (np.asarray(x, np.float64) for x in (features, unseen))
    tried: dict[float, tuple[float, Any]] = {}  # {logarithm of C: (accuracy, the regression)}

    def quality(power: float) -> tuple[float, float]:
        if power not in tried:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # of the one that is chosen the user is told
                regression = LogisticRegression(C=10**power, max_iter=ITERATIONS).fit(features, labels)
            tried[power] = regression.score(unseen, their_labels), regression
        return tried[power][0], -power

    step = 2.0
    best = max(np.arange(-LARGEST, LARGEST + step, step).tolist(), key=quality)
    while step > 1 / STEPS_PER_DECADE:
        step /= 2
        best = max((p for p in (best - step, best, best + step) if abs(p) <= LARGEST), key=quality)
    accuracy, estimator = tried[best]
    notes: tuple[str, ...] = (
        f"logistic regression on {len(labels):,} images of train, its C {10**best:.3g} chosen on {where} "
        f"(accuracy {accuracy:.4f}) of {len(tried)} values from 1e-06 to 1e+06",
    )
    if estimator.n_iter_.max() >= ITERATIONS:
        notes += (f"the regression stopped after {ITERATIONS:,} iterations, before it had converged",)
    return Probe(estimator, {"C": 10**best, "chosen_accuracy": accuracy}, notes)


def learn_probe(kind: str, features: Callable[[Any], np.ndarray], splits: Mapping[str, Any], seed: int) -> Probe:
    """The probe of a network's features, which learns from the split train: features float [n, D]."""
    train = splits["train"]
    known, labels = features(train), train.labels
    if kind == "knn":
        return knn(known, labels)
    if "validation" in splits:
        return linear(known, labels, features(splits["validation"]), splits["validation"].labels)
    stay, held = hold_out(labels, HELD_OUT, VALIDATION, seed)
    if not len(held):
        raise UserError(
            Field("probe"),
            f"is linear, but there is no validation split, and {len(labels)} images of train are too few to hold some "
            "out",
            "give more, or take `probe knn`",
        )
    return linear(known[stay], labels[stay], known[held], labels[held], f"{len(held):,} other images of train")


def measure_probe(
    kind: str, outputs: Callable[[Any], Mapping[str, np.ndarray]], data: Any, name: str, task: Any, run: RunConfig
) -> Any:
    """The Evaluation of a probe."""
    from threadpoolctl import threadpool_limits

    @functools.cache  # the split that is measured may be the one that C is chosen on
    def features(split: Any) -> np.ndarray:
        pooled = outputs(split)["pooled"]
        if not math.isfinite(pooled.sum(dtype=np.float64)):
            raise UserError("probe", "the network's features are not finite, so it has diverged", "take other weights")
        return pooled

    train, split = features(data.splits["train"]), data.splits[name]
    # More threads than cores wait for each other most of the time, and so do two whose work is small.
    with threadpool_limits(1 if train.size < FEW else backend.cores()):
        probe = learn_probe(kind, features, data.splits, run.seed)
        scores = probe.scores(features(split), data.sizes["classes"])
    return replace(task.score(run.model, split, {"scores": scores}), chosen=probe.chosen, notes=probe.notes)
