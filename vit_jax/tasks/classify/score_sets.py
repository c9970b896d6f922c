"""The metrics of sets of labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...scores.labels import score_labels
from ..base import Evaluation


@dataclass(frozen=True, repr=False)
class Labelled(Evaluation):
    """The result of a network of K labels on n images; `predicted` is bool [n, K].

    The metrics are loss and those of `vit_jax.scores.labels.score_labels`.
    """

    probabilities: np.ndarray  # float [n, K]
    per_label: dict[str, np.ndarray]  # of each metric of one label: float [K]


def score_sets(truth: np.ndarray, logits: np.ndarray, probabilities: np.ndarray, thresholds: np.ndarray) -> Labelled:
    """The metrics of n predicted sets.

    Args:
        truth: int8 [n, K], -1 where unknown.
        logits: float [n, K].
        probabilities: float [n, K], of the same, by the kind's temperature.
        thresholds: float [K].
    """
    known, z = truth >= 0, logits.astype(np.float64)
    losses = np.logaddexp(0, z) - z * (truth == 1)  # -log sigmoid(z), or of -z
    loss = float(losses[known].mean()) if known.any() else float("nan")
    scores = score_labels(truth, probabilities, thresholds)
    predicted = probabilities > thresholds
    metrics = {"loss": loss, **scores.values}
    return Labelled(
        metrics, predicted, probabilities, scores.each, notes=tuple(scores.notes), undefined=scores.undefined
    )
