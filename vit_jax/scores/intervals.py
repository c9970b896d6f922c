"""Bootstrap intervals: how far metrics would vary if other images had been drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

LEVEL = 0.95


def bootstrap(
    measure: Callable[[np.ndarray], Mapping[str, float]], n: int, samples: int, groups: np.ndarray | None = None
) -> dict[str, tuple[float, float]]:
    """{metric: (low, high)}: 95 % of its values on samples of the images, drawn with replacement; groups int [n]."""
    draw = np.random.default_rng(0)
    members = None if groups is None else [np.flatnonzero(groups == each) for each in np.unique(groups)]
    drawn: dict[str, list[float]] = {}
    for _ in range(samples):
        if members is None:
            rows = draw.integers(0, n, n)
        else:
            rows = np.concatenate([members[i] for i in draw.integers(0, len(members), len(members))])
        for name, value in measure(rows).items():
            drawn.setdefault(name, []).append(value)
    return {name: _ends(np.array(values)) for name, values in drawn.items()}


def _ends(values: np.ndarray) -> tuple[float, float]:
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
