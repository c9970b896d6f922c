"""How far the probabilities of a network can be trusted, and which labels seem to be wrong, on a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from ...scores.calibration import Reliability, error_of_drawn, reliability
from ...scores.classes import Scores


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
