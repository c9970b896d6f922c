"""The curves of several runs, one over the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..files.output import shorten
from .curves import smooth
from .figure import BLUE, GREEN, GREY, ORANGE, SKY, AnyPath, page

# Of Okabe and Ito, without yellow, which is hard to see on white; then again with other lines.
COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", SKY, "#E69F00", "#000000")
LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Series:
    """A curve: of one run, or the mean of several; epochs, values and spread are float [points]."""

    epochs: np.ndarray
    values: np.ndarray
    spread: np.ndarray | None = None  # the standard deviation over the runs; None: one run


def draw_comparison(panels: dict[str, list[Series | None]], names: Sequence[str], path: AnyPath, title: str) -> None:
    """Draw panels of curves, with one legend.

    Training curves (title "training ...") are smoothed. A group is drawn as its mean with a band of one standard
    deviation.
    """
    named = [i for i, name in enumerate(names) if name]
    looks = {i: (COLORS[k % len(COLORS)], LINES[k // len(COLORS) % len(LINES)]) for k, i in enumerate(named)}
    rows = math.ceil((len(panels) + 1) / 2)
    with page(path, 11, 3.75 * rows + 0.3) as figure:
        title = shorten(title, 60)
        if any(series and series.spread is not None for curves in panels.values() for series in curves):
            title += "; bands are one standard deviation over the runs of a group"
        if len(named) < len(names):
            title += f"; in colour the {len(named)} with the lowest validation loss"
        figure.suptitle(title)
        axes = list(figure.subplots(rows, 2, squeeze=False).flat)
        handles: dict[int, Any] = {}
        for ax, (name, curves) in zip(axes, panels.items(), strict=False):
            ax.set(title=name[:1].upper() + name[1:], xlabel="epoch")
            handles |= _draw_panel(ax, curves, looks, smoothed=name.startswith("training"))
            if not ax.get_lines():
                ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", color=GREY)
        for ax in axes[len(panels) :]:
            ax.axis("off")
        columns = 1 if len(named) <= 16 else 2
        shown = [i for i in named if i in handles]
        if shown:
            lines, texts = [handles[i] for i in shown], [shorten(names[i], 56 // columns) for i in shown]
            look = {"fontsize": 9 if columns == 1 else 7, "ncols": columns, "handlelength": 3.2}
            axes[len(panels)].legend(lines, texts, loc="upper left", **look)


def _draw_panel(
    ax: Any, curves: Sequence[Series | None], looks: Mapping[int, tuple[str, str]], smoothed: bool
) -> dict[int, Any]:
    """Draw curves in a panel -> {number of a curve that has a color: its line}."""
    handles = {}
    grey: list[np.ndarray] = []  # one line for all: thousands would take a minute
    for i, series in enumerate(curves):
        if series is None or not np.isfinite(series.values).any():
            continue
        color, line = looks.get(i, ("#CCCCCC", "-"))
        window = len(series.values) // 25 if smoothed else 0
        values, few = smooth(series.values, window), len(series.values) <= 40
        if i not in looks and series.spread is None and len(values) > 1:
            grey += [np.stack([series.epochs, values]), np.full((2, 1), np.nan)]
            continue
        marker = {"marker": "o" if few else "", "ms": 3.5 if len(series.values) > 1 else 8}
        layer = 2 if i in looks else 1
        handles[i] = ax.plot(series.epochs, values, color=color, ls=line, lw=1.5, zorder=layer, **marker)[0]
        if series.spread is not None:
            spread = smooth(series.spread, window)
            ax.fill_between(series.epochs, values - spread, values + spread, color=color, alpha=0.18, lw=0)
    if grey:
        ax.plot(*np.concatenate(grey, 1), color="#CCCCCC", lw=1.5, zorder=1)
    return handles
