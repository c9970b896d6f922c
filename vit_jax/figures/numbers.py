"""Results of a network of numbers: predictions and their errors over the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..files.output import shorten
from .figure import BLUE, GREY, ORANGE, AnyPath, message_page, page

MOST = 12
POINTS = 5000


def draw_numbers(
    truth: np.ndarray,
    predicted: np.ndarray,
    names: Sequence[str],
    each: Mapping[str, np.ndarray],
    baseline: np.ndarray,
    path: AnyPath,
    caption: str = "",
    whose: str = "training",
) -> None:
    """Draw for each number the predictions over the truth, and the errors over the predictions: truth float [n, K],
    predicted float [n, K], each float [K], baseline float [K].
    """
    rows = np.isfinite(predicted).all(1)
    if not rows.any():
        message_page(path, "No prediction is a number.")
        return
    truth, predicted = truth[rows], predicted[rows]
    step = -(-len(truth) // POINTS)
    some = f", of every {step}th image" if step > 1 else ""
    count = min(len(names), MOST)
    left = f"; the first {count} of {len(names)} numbers" if count < len(names) else ""
    size = max(1.5, 5 - np.log10(len(truth)))
    with page(path, max(3.4 * count + 0.4, 6.5), 6.2) as figure:
        title = f"Predictions and their errors{some}{left}; dashed: right, orange: the mean of {whose}"
        figure.suptitle("\n".join(filter(None, [title, caption])), x=0.01, ha="left")
        panels = figure.subplots(2, count, squeeze=False)
        for k, (above, below) in enumerate(panels.T):
            true, said = truth[::step, k], predicted[::step, k]
            ends = [min(true.min(), said.min()), max(true.max(), said.max())]
            above.plot(ends, ends, color=GREY, lw=1, ls="--")
            above.axhline(baseline[k], color=ORANGE, lw=1)
            above.plot(true, said, "o", ms=size, color=BLUE, alpha=0.5, mew=0)
            r2 = "-" if np.isnan(each["r2"][k]) else f"{each['r2'][k]:.3f}"
            # Above the exponent of the axis, which stands beside the last line of a title.
            above.set_title(f"{shorten(names[k], 24)}\nRMSE {each['rmse'][k]:.4g}, R² {r2}", pad=18)
            above.set(xlabel="truth", ylabel="" if k else "prediction")
            below.axhline(0, color=GREY, lw=1, ls="--")
            below.plot(said, said - true, "o", ms=size, color=BLUE, alpha=0.5, mew=0)
            below.set(xlabel="prediction", ylabel="" if k else "prediction - truth")
            for ax in (above, below):  # long numbers would meet
                ax.locator_params("x", nbins=4)
