"""Whether predictions are as often right as they say, before and after a temperature."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..scores.reliability import Reliability
from .figure import BLUE, GREY, ORANGE, AnyPath, message_page, page


def draw_reliability(
    measured: Mapping[str, Reliability], path: AnyPath, what: str, drawn: float | None = None, caption: str = ""
) -> None:
    """Draw the share of predictions that are right over their confidence, and below it how many there are."""
    if not any(each.counts.sum() for each in measured.values()):
        message_page(path, "There are no predictions of which it is known whether they are right.")
        return
    title = ["Reliability: how often predictions are right, over their probability"]
    title += [] if drawn is None else [f"labels drawn from these probabilities have ECE {drawn:.3f} on as many"]
    with page(path, max(0.5 + 4.2 * len(measured), 7.5), 5.4) as figure:
        figure.suptitle("\n".join(filter(None, [*title, caption])), x=0.01, ha="left")
        panels = figure.subplots(2, len(measured), squeeze=False, sharex=True, height_ratios=(3, 1))
        for (name, each), ax, below in zip(measured.items(), *panels, strict=True):
            middle, width = (np.arange(len(each.counts)) + 0.5) / len(each.counts), 0.92 / len(each.counts)
            there = each.counts > 0
            ax.bar(middle[there], each.right[there], width, color=BLUE)
            ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
            ax.plot(each.confidence[there], each.right[there], "o", ms=4, color=ORANGE, mec="white", mew=0.5)
            ax.set(title=f"{name}: ECE {each.error:.3f}", xlim=(0, 1), ylim=(0, 1))
            below.bar(middle, each.counts, width, color=GREY)
            below.set(xlabel="probability")
        panels[0, 0].set_ylabel(what)
        panels[1, 0].set_ylabel("predictions")
