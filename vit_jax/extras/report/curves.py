"""The curves of a report: which are shown, and what describes them to those who cannot see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...figures.curves import training_metric
from ...files.metrics import as_title, spelled_out
from ...reports.comparison import Comparison, curves, highlighted_lines, panels_of
from . import charts
from .tables import GIB, Table, rates

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
    points = charts.POINTS if len(found.lines) <= FEW else charts.POINTS // 4
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


def _curves(found: Comparison, panel: Panel, single: bool) -> list[charts.Curve]:
    shown = []
    scale = 1 / GIB if panel.name == "memory" else 1.0
    for split in panel.splits:
        for line, series in zip(found.lines, curves(found, split, panel.name), strict=True):
            if series is not None and len(series.values):
                label = {"train": "train, evaluated"}.get(split, split) if single else line.name
                spread = None if series.spread is None else series.spread * scale
                noisy = split == "training" and panel.name not in ("lr", "memory")
                shown.append(charts.Curve(label, series.epochs, series.values * scale, spread, noisy))
    return shown


def _chart(place: str, panel: Panel, shown: Sequence[charts.Curve], points: int) -> Chart:
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
    drawn = charts.as_json(charts.line_chart(shown, panel.unit, points, log=panel.name == "grad_norm"), place)
    return Chart(place, panel.title, drawn, f"{panel.title} over epochs. {'; '.join(sentences)}.", table)
