"""The metrics of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .classes import Scores, no_numbers

METRICS = ("mae", "rmse", "r2", "pearson", "spearman")


def score_numbers(truth: np.ndarray, predicted: np.ndarray, std: np.ndarray | None, names: Sequence[str]) -> Scores:
    """mae, rmse, r2, pearson and spearman of n predictions of K numbers, in the user's units: truth float [n, K],
    predicted float [n, K], std float [K].

    Of several numbers they are the means of those of each number, which are in `Scores.each`; as the units of numbers
    differ, rmse_scaled is then the root of the mean of squared errors divided by `std`.
    """
    truth, predicted = truth.astype(np.float64), predicted.astype(np.float64)
    out, fault = Scores(), no_numbers(predicted)
    out.each = dict.fromkeys(METRICS, np.full(len(names), np.nan)) if fault else _of_each(truth, predicted)
    same = (truth == truth[:1]).all(0)
    constant = [
        f"all {len(truth):,} images have the same value of {name}" if len(truth) > 1 else "there is but one image"
        for name, constant in zip(names, same, strict=True)
        if constant
    ]
    for name, each in out.each.items():
        why = fault or "; ".join(constant) or "all predictions are the same"
        out.add_mean(name, each, why)
    if len(names) > 1:
        note = f"mae, rmse, r2, pearson and spearman are means over {len(names)} numbers, each in its own unit"
        if std is not None:
            out.add("rmse_scaled", np.nan if fault else np.sqrt((((predicted - truth) / std) ** 2).mean()), fault)
            note += "; rmse_scaled is the root of their mean squared error in standard deviations of training"
        out.notes.append(note)
        left = [name for name in ("r2", "pearson", "spearman") if 0 < np.isnan(out.each[name]).sum() < len(names)]
        if left and not fault:
            why = "; ".join(constant) or "all predictions of a number are the same"
            counts = ", ".join(f"{name} of {(~np.isnan(out.each[name])).sum()}" for name in left)
            out.notes.append(f"not every number has them all ({counts}): {why}")
    return out


def _of_each(truth: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """{metric: float64 [K]}; NaN where it is undefined: r2 of a constant truth, correlations of anything constant."""
    from scipy.stats import rankdata

    error = predicted - truth
    spread = ((truth - truth.mean(0)) ** 2).sum(0)
    spread = np.where((truth == truth[:1]).all(0), np.nan, spread)  # a mean may be off by rounding
    return {
        "mae": np.abs(error).mean(0),
        "rmse": np.sqrt((error**2).mean(0)),
        "r2": 1 - (error**2).sum(0) / spread,
        "pearson": _correlation(truth, predicted),
        "spearman": _correlation(rankdata(truth, axis=0), rankdata(predicted, axis=0)),
    }


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's correlation of the columns of two arrays [n, K], float64 [K]."""
    constant = (a == a[:1]).all(0) | (b == b[:1]).all(0)
    a, b = a - a.mean(0), b - b.mean(0)
    size = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return np.where(constant, np.nan, (a * b).sum(0) / np.where(constant | (size == 0), 1, size))
