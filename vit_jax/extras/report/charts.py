"""The charts of a report, which Bokeh draws: curves, with sentences and tables that describe them, and matrices.

Imported when a report is written, and not before: Bokeh takes a while.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool
from bokeh.palettes import Blues256
from bokeh.plotting import figure
from bokeh.transform import linear_cmap

from ...figures.curves import COLORS, LINES, smooth, training_metric
from ...files.metrics import as_title, spelled_out
from ...files.output import shorten
from ...machine.targets import GIB
from ...reports.comparison import Comparison, curves, highlighted_lines, panels_of
from .tables import Table, rates

POINTS = 600  # a screen has not many more columns
LABELS = 24
DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dotdash"}
INK, FAINT = "#3d3d3d", "#dddddd"
TALL = 280  # pixels


@dataclass(frozen=True)
class Curve:
    """A named curve of values float [n] over epochs float [n], maybe with a band of `spread` around it."""

    name: str
    epochs: np.ndarray
    values: np.ndarray
    spread: np.ndarray | None = None
    smoothed: bool = False  # drawn faintly, with its moving mean over it


def thin_out(values: np.ndarray, most: int = POINTS) -> np.ndarray:
    """Places of a curve that lose no peak: both ends, and of each stretch its extremes. Shapes: values [n] -> int [k],
    ascending.
    """
    n = len(values)
    if n <= most:
        return np.arange(n)
    edges = np.linspace(0, n, (most - 2) // 2 + 1).round().astype(int)
    kept = {0, n - 1}
    for begin, end in itertools.pairwise(edges.tolist()):
        part = values[begin:end]
        kept |= {begin + int(part.argmin()), begin + int(part.argmax())}
    return np.array(sorted(kept))


def moving_mean(epochs: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Moving means of a curve over n / 25 of its n values: epochs [n], values [n] -> (epochs [k], means [k])."""
    places = np.unique(np.linspace(0, len(values) - 1, min(len(values), most)).round().astype(int))
    return epochs[places], smooth(values, len(values) // 25)[places]


def line_chart(curves: Sequence[Curve], unit: str, points: int = POINTS, log: bool = False) -> Any:
    """A chart of curves over epochs; hovering shows values, and clicking on a name in the legend hides its curve."""
    log = log and any((curve.values > 0).any() for curve in curves)
    chart = _figure(TALL, x_axis_label="epoch", y_axis_label=unit, y_axis_type="log" if log else "linear")
    if not log:
        chart.yaxis.formatter.power_limit_low = -5  # 0.004 rather than 4.000e-3
    hovered = []
    for i, curve in enumerate(curves):
        color, dash = COLORS[i % len(COLORS)], DASHES[LINES[i // len(COLORS) % len(LINES)]]
        places = thin_out(curve.values, points)
        x, y = curve.epochs[places], curve.values[places]
        line = {"color": color, "line_dash": dash, "legend_label": curve.name, "name": curve.name}
        if curve.spread is not None:
            spread = curve.spread[places]
            chart.varea(x, y - spread, y + spread, color=color, alpha=0.18, legend_label=curve.name)
        if curve.smoothed and len(curve.values) > 40:
            hovered.append(chart.line(x, y, **line | {"alpha": 0.35}))
            chart.line(*moving_mean(curve.epochs, curve.values, points), line_width=2, **line)
        else:
            hovered.append(chart.line(x, y, line_width=2, **line))
            if len(x) <= 40:
                look = {"color": color, "legend_label": curve.name, "name": curve.name}
                dots = chart.scatter(x, y, size=6 if len(x) > 1 else 10, **look)
                hovered[-1] = hovered[-1] if len(x) > 1 else dots
    digits = "0.0000e+0" if unit == "learning rate" else "0,0.[00000]"
    shown = [("curve", "$name"), ("epoch", "@x{0.[00]}"), (unit, f"@y{{{digits}}}")]
    mode: Literal["vline", "mouse"] = "vline" if len(curves) <= 4 else "mouse"  # of all at once, while there is room
    chart.add_tools(HoverTool(tooltips=shown, renderers=hovered, mode=mode, line_policy="nearest"))
    legend = chart.legend[0]
    legend.update(
        spacing=12, click_policy="hide", label_text_color=INK, border_line_color=None, background_fill_color=None
    )
    columns = 3 if max(len(curve.name) for curve in curves) < 16 else 1
    legend.update(visible=len(curves) > 1, ncols=min(len(curves), columns))
    chart.height += 20 * (math.ceil(len(curves) / columns) - 1)
    chart.add_layout(legend, "above")
    return chart


def confusion_chart(names: Sequence[str]) -> Any:
    """An empty confusion matrix of these classes; the page's script puts in the cells that pass its filter."""
    k = len(names)
    cells: dict[str, list[Any]] = {key: [] for key in ("x", "y", "count", "shade", "true", "predicted")}
    source = ColumnDataSource(cells, name="cells")
    chart = _figure(
        min(max(26 * k + 120, 300), 620),
        x_axis_label="predicted",
        y_axis_label="true",
        x_range=(-0.5, k - 0.5),
        y_range=(k - 0.5, -0.5),
    )
    color = linear_cmap("shade", list(reversed(Blues256)), 0, 1)
    drawn = chart.rect("x", "y", 1, 1, source=source, fill_color=color, line_color=None)
    shown = [("true", "@true"), ("predicted", "@predicted"), ("examples", "@count")]
    chart.add_tools(HoverTool(tooltips=shown, renderers=[drawn]))
    chart.grid.visible = False
    ticks = list(range(0, k, math.ceil(k / LABELS)))
    for axis in (*chart.xaxis, *chart.yaxis):
        axis.ticker = FixedTicker(ticks=ticks)
        axis.major_label_overrides = {i: shorten(names[i], 16) for i in ticks}
    chart.xaxis.major_label_orientation = math.pi / 2 if k > 10 or max(map(len, names), default=0) > 4 else 0
    return chart


def _figure(height: int, **options: Any) -> Any:
    """An empty chart of the page's width, whose colours a dark page inverts."""
    chart = figure(height=height, sizing_mode="stretch_width", tools="", toolbar_location=None, **options)
    chart.background_fill_color = chart.border_fill_color = None
    chart.outline_line_color = None
    chart.grid.grid_line_color = FAINT
    for axis in (*chart.xaxis, *chart.yaxis):
        axis.axis_label_text_color = axis.major_label_text_color = INK
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = "#8a8a8a"
        axis.axis_label_text_font_style = "normal"
    return chart


def as_json(chart: Any, place: str) -> Any:
    """A chart as JSON values for BokehJS."""
    return json_item(chart, place)  # type: ignore[arg-type]  # its ID is a NewType of str


FEW = 6  # runs; the curves of more have fewer points, so that the page stays small
LISTED = 25


@dataclass(frozen=True)
class Panel:
    """A chart to draw: the curves of a metric on some splits; "training" is the log of training itself."""

    title: str
    name: str
    splits: tuple[str, ...] = ("training",)

    @property
    def unit(self) -> str:
        """What its axis is called."""
        return {"memory": "GiB"}.get(self.name, spelled_out(self.name))


@dataclass(frozen=True)
class Chart:
    """A chart, and what describes it: a sentence, and a table of values."""

    place: str
    title: str
    drawn: Any  # JSON values for BokehJS
    sentence: str
    table: Table


def charts_of(found: Comparison, single: bool) -> tuple[list[Chart], list[str]]:
    """The charts of runs -> (charts, sentences on what they leave out)."""
    drawn: list[Chart] = []
    notes: list[str] = []
    thinned: dict[str, int] = {}  # {title of a chart: the most values that a curve of it has}
    chosen = highlighted_lines(found)
    if left := len(found.lines) - len(chosen):
        found = replace(found, lines=[found.lines[i] for i in chosen])
        notes.append(f"curves: those of {left} runs are left out; the others have the lowest validation loss")
    points = POINTS if len(found.lines) <= FEW else POINTS // 4
    for panel in _panels(found, single):
        shown = _curves(found, panel, single)
        if not shown:
            continue
        drawn.append(_chart(f"chart-{len(drawn)}", panel, shown, points))
        if (most := max(len(curve.values) for curve in shown)) > points:
            thinned[panel.title] = most
    if thinned:
        notes.append(
            f"{', '.join(thinned)}: a curve has {max(thinned.values()):,} values, too many to draw; of each stretch "
            f"the lowest and the highest are drawn, {points} in all"
        )
    return drawn, notes if drawn else ["there are no curves: metrics.jsonl has no values"]


def _panels(found: Comparison, single: bool) -> list[Panel]:
    first = found.lines[0].members[0]
    train = [row for line in found.lines for row in line.members[0].rows if row["kind"] == "train"]
    if single:
        every = ("training", "validation", "train")  # train: evaluated, with overfit_batches
        metrics = [*dict.fromkeys(["loss", training_metric(train, first.metric), first.metric])]
        panels = [Panel(as_title(spelled_out(name)), name, every) for name in metrics if name]
    else:
        titles = panels_of(found)
        panels = [Panel(as_title(title), name, (split,)) for title, (split, name) in titles.items()]
    more = {name: as_title(spelled_out(name)) for name in ("lr", "grad_norm", *rates(train))} | {"memory": "Memory"}
    return panels + [Panel(title, name) for name, title in more.items()]


def _curves(found: Comparison, panel: Panel, single: bool) -> list[Curve]:
    shown = []
    scale = 1 / GIB if panel.name == "memory" else 1.0
    for split in panel.splits:
        for line, series in zip(found.lines, curves(found, split, panel.name), strict=True):
            if series is not None and len(series.values):
                label = {"train": "train, evaluated"}.get(split, split) if single else line.name
                spread = None if series.spread is None else series.spread * scale
                noisy = split == "training" and panel.name not in ("lr", "memory")
                shown.append(Curve(label, series.epochs, series.values * scale, spread, noisy))
    return shown


def _chart(place: str, panel: Panel, shown: Sequence[Curve], points: int) -> Chart:
    sentences = [
        f"{curve.name}: from {curve.values[0]:.4g} to {curve.values[-1]:.4g}, lowest {curve.values.min():.4g}, "
        f"highest {curve.values.max():.4g}"
        for curve in shown
    ]
    rows = []
    for curve in shown:
        count = len(curve.values)
        places = np.unique(np.linspace(0, count - 1, min(count, LISTED)).round().astype(int))
        rows += [(curve.name, f"{curve.epochs[i]:.4g}", f"{curve.values[i]:.5g}") for i in places]
    table = Table(f"{panel.title}: values", ("curve", "epoch", panel.unit), rows)
    drawn = as_json(line_chart(shown, panel.unit, points, log=panel.name == "grad_norm"), place)
    return Chart(place, panel.title, drawn, f"{panel.title} over epochs. {'; '.join(sentences)}.", table)
