"""The results of a sweep, over the values of each of its fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files.output import shorten
from .comparison import COLORS
from .figure import GREY, AnyPath, page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE = 8  # numbers of which the largest is so many times the least are on a logarithmic axis
LETTERS = 18  # of a value on an axis


def draw_sweep(
    path: AnyPath, fields: Mapping[str, Sequence[Any]], values: np.ndarray, spread: np.ndarray, metric: str, sign: int,
    title: str,
) -> None:  # fmt: skip
    """Draw a panel for each field: the points of the sweep, and a line through the best one at each value. Shapes:
    values float [points].
    """
    columns = min(len(fields), 3)
    rows = math.ceil(len(fields) / columns)
    with page(path, max(4.4 * columns, 6), 3.6 * rows + 0.8) as figure:
        figure.suptitle(shorten(title, 44 * columns))
        axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
        for i, (ax, (name, row)) in enumerate(zip(axes, fields.items(), strict=False)):
            ax.margins(x=0.1)
            _draw_field(ax, _places(ax, row), values, spread, sign, COLORS[i % len(COLORS)])
            ax.set_xlabel(name)
            if i % columns == 0:
                ax.set_ylabel(metric)
        for ax in axes[len(fields) :]:
            ax.axis("off")
        named = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend([*named.values()], [*named], loc="outside lower center", ncols=3, fontsize=9)


def _draw_field(ax: Axes, x: np.ndarray, values: np.ndarray, spread: np.ndarray, sign: int, color: str) -> None:
    known = ~np.isnan(values)
    if lost := list(x[~known]):
        bottom = ax.get_xaxis_transform()
        ax.plot(
            lost, [0.0] * len(lost), "x", color=GREY, ms=8, mew=2, label="no result", transform=bottom, clip_on=False
        )
    if not known.any():
        return
    error = spread[known] if spread[known].any() else None
    ax.errorbar(x[known], values[known], error, fmt="o", color=color, ms=4.5, alpha=0.45, elinewidth=1)
    places = np.unique(x[known])
    tops = [sign * np.nanmax(sign * values[x == place]) for place in places]
    ax.plot(places, tops, color=color, lw=1.8, label="best at each value")
    best = np.nanargmax(sign * values)
    ax.plot(x[best], values[best], "*", color="#000000", ms=13, zorder=5, label="best of all")


def _places(ax: Axes, row: Sequence[Any]) -> np.ndarray:
    """Where the points are on the axis of a field, whose values it labels: numbers where they lie, else side by side.

    Returns float [points].
    """
    values = [*dict.fromkeys(row)]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values) and len(values) > 1:
        numbers = sorted(map(float, values))
        if numbers[0] > 0 and numbers[-1] >= WIDE * numbers[0]:
            ax.set_xscale("log")
        ax.minorticks_off()
        ax.set_xticks(numbers, [f"{number:g}" for number in numbers], rotation=0 if len(numbers) <= 6 else 45)
        return np.array(row, np.float64)
    texts = [shorten(_text(value), LETTERS) for value in values]
    crowded = sum(map(len, texts)) > 30
    ax.set_xticks(range(len(texts)), texts, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    return np.array([values.index(value) for value in row], np.float64)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"
