"""The metrics of image classification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from ...scores.calibration import Reliability, error_of_drawn, reliability
from ...scores.classes import Scores, balanced_accuracy, precision_recall_f1
from ...scores.suspects import Suspects
from ..base import Evaluation

TOP = 5  # of accuracy_top5: so many most probable classes


@dataclass(frozen=True, repr=False)
class Classified(Evaluation):
    """The result of a network of K classes on n images; `predicted` is int [n].

    The metrics are loss (but of probes), accuracy, balanced_accuracy (of the classes that have an image), {precision,
    recall, f1}_{macro, micro} and, of more than TOP classes, accuracy_top5.
    """

    confidence: np.ndarray  # float [n]: the probability of the predicted class
    confusion: np.ndarray  # int [K, K]: rows are the truth, columns the prediction
    per_class: dict[str, np.ndarray]  # precision, recall, f1: float [K]
    probabilities: np.ndarray | None = field(default=None, kw_only=True)  # float [n, K], of a final result
    trust: Trust | None = field(default=None, kw_only=True)  # likewise
    suspects: Suspects | None = field(default=None, kw_only=True)  # likewise


def score(
    truth: np.ndarray,
    predicted: np.ndarray,
    confidence: np.ndarray,
    loss: np.ndarray | None,
    rank: np.ndarray,
    classes: int,
    averaged: np.ndarray | None = None,
) -> Classified:
    """The metrics of n predictions: truth int [n], predicted int [n], confidence float [n], loss float [n], rank int
    [n], averaged int [k].

    Precision, recall and F1 are counted over the whole split, not averaged over batches. A class that is never
    predicted has precision 0.
    """
    metrics = {} if loss is None else {"loss": float(loss.astype(np.float64).mean())}
    confusion = np.bincount(truth.astype(np.int64) * classes + predicted, minlength=classes**2)
    confusion = confusion.reshape(classes, classes)
    metrics |= {"accuracy": float((predicted == truth).mean()), "balanced_accuracy": balanced_accuracy(confusion)}
    if classes > TOP:
        metrics[f"accuracy_top{TOP}"] = float((rank < TOP).mean())
    right, said, true = np.diagonal(confusion), confusion.sum(0), confusion.sum(1)
    each = precision_recall_f1(right, said, true)
    counted = slice(None) if averaged is None else averaged
    metrics |= {f"{name}_macro": float(values[counted].mean()) for name, values in each.items()}
    micro = precision_recall_f1(right.sum(), said.sum(), true.sum())
    metrics |= {f"{name}_micro": float(value) for name, value in micro.items()}
    return Classified(metrics, predicted, confidence, confusion, each, each=each)


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


@dataclass(frozen=True)
class Calibration:
    """What validation decides of how outputs are read: thresholds [K]."""

    temperature: float | None = None
    thresholds: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
