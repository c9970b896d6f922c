"""The metrics of sets of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ...scores.labels import over, score_labels
from ...scores.suspects import Suspects
from ...scores.temperature import set_loss
from ..base import Evaluation, with_scores
from .trust import Trust


@dataclass(frozen=True, repr=False)
class Labelled(Evaluation):
    """The result of a network of K labels on n images; `predicted` is bool [n, K].

    The metrics are loss and those of `vit_jax.scores.labels.score_labels`.
    """

    probabilities: np.ndarray  # float [n, K]
    prints_each: ClassVar[bool] = True
    trust: Trust | None = field(default=None, kw_only=True)  # of all known cells, of a final result
    suspects: Sequence[Suspects] = field(default=(), kw_only=True)  # of each label, likewise


def score_sets(truth: np.ndarray, logits: np.ndarray, probabilities: np.ndarray, thresholds: np.ndarray) -> Labelled:
    """The metrics of n predicted sets: truth int8 [n, K], logits float [n, K], probabilities float [n, K], thresholds
    float [K].
    """
    loss = set_loss(truth, logits)
    scores = score_labels(truth, probabilities, thresholds)
    predicted = over(probabilities, thresholds)
    result = Labelled({"loss": loss}, predicted, probabilities)
    if not (truth >= 0).any():
        result = replace(result, undefined={"loss": "of no image is any label known"})
    return with_scores(result, scores)
