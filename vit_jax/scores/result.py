"""What all scores of predictions have in common.

n is the number of images, K that of classes, labels or numbers. The truth of a set is int8 [n, K]: 1 where an image has
the label, 0 where it has not, -1 where that is unknown; unknown cells count nowhere. What is undefined is NaN, and
`Scores.undefined` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Scores:
    """The metrics of the predictions for a split: each float [K]."""

    values: dict[str, float] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)
    each: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, why: str = "") -> None:
        """Add a metric."""
        self.values[name] = float(value)
        if np.isnan(value):
            self.undefined[name] = why or "it is no number"

    def add_mean(self, name: str, each: np.ndarray, why: str) -> None:
        """Add the mean of a metric over classes, labels or numbers: each float [K]."""
        self.add(name, each[~np.isnan(each)].mean() if not np.isnan(each).all() else np.nan, why)


def no_numbers(outputs: np.ndarray) -> str:
    """Why outputs [n, K] cannot be ranked: some are NaN or infinite; '' if none is."""
    rows = int((~np.isfinite(outputs)).any(1).sum())
    return f"{rows:,} of {len(outputs):,} images have an output that is NaN or infinite" if rows else ""
