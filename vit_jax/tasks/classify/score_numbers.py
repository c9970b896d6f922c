"""The metrics of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...scores.numbers import score_numbers
from ..base import Evaluation, with_scores


@dataclass(frozen=True, repr=False)
class Estimated(Evaluation):
    """The result of a network of K numbers on n images; `predicted` is float64 [n, K], in the units of the data.

    The metrics are loss, of numbers as the network gives them, and those of `vit_jax.scores.numbers.score_numbers`.
    """

    prints_each: ClassVar[bool] = True


def score_numbers_of(
    truth: np.ndarray, predicted: np.ndarray, std: np.ndarray | None, names: Sequence[str]
) -> Estimated:
    """The metrics of n predictions: truth float64 [n, K], std float64 [K]."""
    loss = float((((predicted - truth) / (1 if std is None else std)) ** 2).mean())
    scores = score_numbers(truth, predicted, std, names)
    return with_scores(Estimated({"loss": loss}, predicted), scores)
