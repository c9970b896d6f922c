"""Training curves: of a run, from the rows of metrics.jsonl, and of several, one over the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files.metrics import RESERVED_METRICS, as_title, spelled_out
from ..files.output import shorten
from .figure import BLUE, GREEN, GREY, ORANGE, SKY, AnyPath, page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of Okabe and Ito, without yellow, which is hard to see on white; then again with other lines.
COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", SKY, "#E69F00", "#000000")
LINES = ("-", "--", ":", "-.")


def draw_curves(
    rows: list[dict[str, Any]],
    path: AnyPath,
    training_loss: str = "",
    selection_metric: str = "accuracy",
    best_step: int | None = None,
) -> None:
    """Draw loss, the task's metric, learning rate and gradient norm over epochs."""
    train = [row for row in rows if row.get("kind") == "train"]
    metric = training_metric(train, selection_metric)
    # A panel each: (name in rows of training or "", name in rows of evaluations or ""). Two metrics never share one:
    # one may be a share, and the other in the units of the data.
    panels = [
        ("loss", "loss"),
        *([(metric, metric)] if metric else []),
        *([("", selection_metric)] if selection_metric not in (metric, "loss") else []),
        ("lr", ""),
        ("grad_norm", ""),
    ]
    count = math.ceil(len(panels) / 2)
    with page(path, 11, 3.75 * count) as figure:
        figure.suptitle("Training curves")
        axes = list(figure.subplots(count, 2).flat)
        for ax, (name, evaluated) in zip(axes, panels, strict=False):
            words = spelled_out(name or evaluated)
            ax.set(title=as_title(words), xlabel="epoch", ylabel=words)
            label = f"train ({training_loss})" if name == "loss" and training_loss else "train"
            if name:
                _plot_training(ax, train, name, label, smoothed=name != "lr")
            if name == "grad_norm":
                _log_axis(ax, _column(train, name))
            elif evaluated:
                _plot_evaluations(ax, rows, evaluated)
                for epoch in [row["epoch"] for row in rows if row["step"] == best_step and "epoch" in row][:1]:
                    ax.axvline(epoch, color=GREY, ls=":", lw=1.2, label=f"best weights: epoch {epoch:.4g}")
                ax.legend(frameon=True, facecolor="white", edgecolor="none", framealpha=0.85)
            if not ax.get_lines():
                ax.text(0.5, 0.5, "no values", transform=ax.transAxes, ha="center", color=GREY)
        for ax in axes[len(panels) :]:  # a task without metrics has three panels
            ax.set_visible(False)


def training_metric(train: list[dict[str, Any]], selection_metric: str) -> str:
    """The metric of training to plot."""
    names = [name for row in train for name in row if name not in RESERVED_METRICS and not name.endswith("_per_second")]
    if not names and selection_metric != "loss":
        return selection_metric
    return selection_metric if selection_metric in names else names[0] if names else ""


def _plot_training(ax: Axes, rows: list[dict[str, Any]], name: str, label: str, smoothed: bool) -> None:
    """Plot the values of the training rows; if `smoothed`, faintly, with their moving mean over them."""
    x, y = _column(rows, "epoch"), _column(rows, name)
    if not np.isfinite(y).any():
        return
    marker = "." if len(y) <= 40 else ""
    if not smoothed:
        ax.plot(x, y, color=BLUE, marker=marker)
        return
    ax.plot(x, y, color=BLUE, alpha=0.25, lw=1)
    ax.plot(x, smooth(y, len(y) // 25), color=BLUE, marker=marker, label=label)


def _plot_evaluations(ax: Axes, rows: list[dict[str, Any]], name: str) -> None:
    """Plot a line for each split, of the raw and of the averaged weights."""
    for split, color in {"train": SKY, "validation": ORANGE, "test": GREEN}.items():
        for weights, line in {"raw": "-", "ema": "--"}.items():
            selected = [
                r
                for r in rows
                if r.get("kind") == "eval" and r.get("split") == split and r.get("weights", "raw") == weights
            ]
            x, y = _column(selected, "epoch"), _column(selected, name)
            if np.isfinite(y).any():
                label = ("train, evaluated" if split == "train" else split) + (" (EMA)" if weights == "ema" else "")
                look = (
                    {"ls": "", "marker": "o", "ms": 8}
                    if len(y) == 1
                    else {"ls": line, "marker": "o" if len(y) <= 40 else "", "ms": 4}
                )
                ax.plot(x, y, color=color, mfc="white" if weights == "ema" else color, label=label, **look)


def _log_axis(ax: Axes, values: np.ndarray) -> None:
    """Make the y axis logarithmic, labelled with plain numbers, if any value is positive."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return
    ax.set_yscale("log", nonpositive="mask")
    few = values.max() < 30 * values.min()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """The value `name` of every row, float64 [rows]; NaN where it is absent or None."""
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving mean; NaNs are left out, and the window is cut off at the ends. Shapes: values [n] -> [n]."""
    each_side = min(window, len(values) - 1) // 2  # no longer than the values
    known = np.isfinite(values)
    padded = np.pad([np.where(known, values, 0), known], ((0, 0), (each_side, each_side)))
    total, count = (_window_sums(x, 2 * each_side + 1) for x in padded)
    return np.where(count > 0.5, total / np.maximum(count, 1), np.nan)


def _window_sums(x: np.ndarray, window: int) -> np.ndarray:
    """The sums of each `window` values that follow each other: [n] -> [n - window + 1].

    They are put together from sums of 1, 2, 4, ... values, so n log2(window) additions do. Differences of cumulative
    sums would be fewer, but a large value would leave its rounding errors in all sums after it.
    """
    n, start, size, sums = len(x) - window + 1, 0, 1, x
    out = np.zeros(n)
    while size <= window:  # sums[i] is that of x[i : i + size]
        if window & size:
            out += sums[start : start + n]
            start += size
        sums, size = sums[:-size] + sums[size:], 2 * size
    return out


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
