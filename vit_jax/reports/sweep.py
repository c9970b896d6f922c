"""What came of a sweep: its points from the best to the worst by validation, as a table and as a picture."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files.output import print_table
from ..files.reading import show_path
from ..files.terminal import print_wrapped, printable
from ..runs.ending import FINISHED
from ..runs.mirror import is_kept
from ..runs.points import FAILED, Point, value_text
from ..tasks.table import task_spec
from .compare import columns
from .comparison import Comparison, Line, Member, gather, is_number
from .tables import command_of

PICTURE = "sweep.png"
MEASURED = (FINISHED, "stopped: max_steps", "stopped: max_minutes")  # endings of runs that went as far as they were to
CUT = 32  # letters of a name that `print_table` prints
SHOWN = ("runs", "validation", "test", "best epoch", "seconds", "ended")  # how the columns begin that the table has


@dataclass(frozen=True)
class Outcome:
    """What came of a point."""

    point: Point
    found: Comparison | None  # of its runs; None: there are none
    ended: str
    values: list[float]  # the results of its runs on validation, if all went as far as they were to; else empty
    loss: float  # the mean of their losses there

    @property
    def line(self) -> Line | None:
        return self.found.lines[0] if self.found else None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values) if self.values else np.nan

    @property
    def std(self) -> float:
        """The standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Outcomes:
    """What came of points, the best first."""

    folder: Path  # of the sweep
    metric: str  # by which runs choose their best checkpoint; empty: none has a result
    sign: int  # 1 if more of it is better, -1 if less is
    each: list[Outcome]

    @property
    def best(self) -> Outcome | None:
        return next((each for each in self.each[:1] if each.values), None)

    def before(self, others: Outcomes | None) -> Outcomes:
        """These and then others, of fewer epochs."""
        if others is None:
            return self
        return Outcomes(self.folder, self.metric or others.metric, self.sign, self.each + others.each)

    def record(self) -> dict[str, Any]:
        """What sweep.json holds of them."""
        points = [
            {"name": each.point.name, "fields": each.point.fields, "ended": each.ended, "values": each.values}
            for each in self.each
        ]
        return {"metric": self.metric, "points": points, "best": self.best.point.name if self.best else None}


def rank(folder: Path, points: Sequence[Point], seeds: int, failures: Mapping[str, str]) -> Outcomes:
    """What came of the points in the folder of a sweep."""
    gathered: dict[str, Comparison] = {}
    for point in points:
        with contextlib.suppress(UserError):
            gathered[point.name] = gather([str((folder / point.name).absolute())], damaged=True)
    metric, sign = _metric([line for found in gathered.values() for line in found.lines])
    outcomes = []
    for point in points:
        found = _measured_by(metric, gathered[point.name]) if point.name in gathered else None
        members = found.lines[0].members if found else []
        bests = [m.best for m in members if m.ended in MEASURED and metric in m.best]
        bests = bests if len(bests) == max(1, seeds) else []
        why = FAILED + failures[point.name] if point.name in failures else "not trained"
        ended = ", ".join(sorted({member.ended for member in members})) or why
        loss = statistics.fmean(best["loss"] for best in bests) if bests else 0.0
        outcomes.append(Outcome(point, found, ended, [best[metric] for best in bests], loss))

    def order(each: Outcome) -> tuple[bool, float, float]:  # the loss decides between equals, as in a run
        return not each.values, -sign * each.mean if each.values else 0.0, each.loss

    return Outcomes(folder, metric, sign, sorted(outcomes, key=order))


def _metric(lines: Sequence[Line]) -> tuple[str, int]:
    """(the metric by which points are compared, 1 if more of it is better and -1 if less); without lines ("", 1).

    It is that by which their runs choose the best checkpoint. Where these differ, as a sampling of classes makes them,
    it is one that a setting asked for, before that of the task.
    """
    from ..tasks.computed import task_of

    found = {}
    for member in (line.members[0] for line in lines):
        metric, sign = task_of(member.run, member.folder.metadata()).selection_metric
        found[metric] = sign
    usual = next(iter(task_spec(lines[0].members[0].run.task).main_metrics)) if lines else ""
    return next(((metric, sign) for metric, sign in found.items() if metric != usual), (usual, found.get(usual, 1)))


def _measured_by(metric: str, found: Comparison) -> Comparison:
    """A comparison whose runs have the value of this metric where their own choice is best."""

    def of(member: Member) -> Member:
        best = {name: member.best[name] for name in ("step", "loss", "weights", metric) if name in member.best}
        place = {"split": "validation", "step": best.get("step"), "weights": best.get("weights")}
        if metric not in best:
            rows = [row for row in member.rows if place.items() <= row.items() and is_number(row.get(metric))]
            best |= {metric: rows[-1][metric]} if rows else {}
        return replace(member, best=best)

    return replace(found, lines=[replace(line, members=[*map(of, line.members)]) for line in found.lines])


def show(outcomes: Outcomes) -> None:
    """Print the table of the points and how to repeat the best one; draw the picture."""
    print()
    _print_results(outcomes.each)
    notes = [note for each in outcomes.each if each.found for note in each.found.notes]
    notes += [f"{each.point.name}: {each.ended}" for each in outcomes.each if not each.found]
    for note in notes:
        print_wrapped(f"note: {printable(note)}")
    name = f"validation {outcomes.metric.replace('_', ' ')}"
    _draw(outcomes, name)
    print(f"the picture is {printable(show_path(outcomes.folder / PICTURE))}")
    best = outcomes.best
    if not best or not best.line:
        print("best       none: no point has a result on validation")
        return
    spread = f" +- {best.std:.4f}" if len(best.values) > 1 else ""
    print(printable(f"best       {best.point.name}: {name} {best.mean:.4f}{spread}"))
    print("next:")
    print(printable(f"  {command_of(best.line)}"))
    shown = show_path(outcomes.folder)
    out = " --out report.html" if is_kept(shown) else ""
    print(printable(f"  python -m vit_jax report {shlex.quote(shown)}{out}"))


def _print_results(outcomes: Sequence[Outcome]) -> None:
    """Print a table of the points and their results; those without runs come last."""
    with_runs, without = [[each for each in outcomes if bool(each.line) == has] for has in (True, False)]
    found = Comparison([each.line for each in with_runs if each.line], [], Path())
    shown = [column for column in columns(found)[1] if column[0].startswith(SHOWN)]
    for column in shown:
        column += [each.ended.partition(":")[0] if column[0] == "ended" else "-" for each in without]
    print_points([each.point for each in (*with_runs, *without)], shown)


def print_points(points: Sequence[Point], results: list[list[str]]) -> None:
    """Print a table of points, with the values of their fields where their names are too long for it."""
    names = [printable(point.name) for point in points]
    fields = [[name, *(value_text(point.fields[name]) for point in points)] for name in points[0].fields]
    groups = [fields, results] if max(map(len, names)) > CUT else [results]
    print_table(["point", *names], groups, shutil.get_terminal_size((120, 24)).columns)


def _draw(outcomes: Outcomes, metric: str) -> None:
    from ..figures.sweep import draw_sweep

    each = outcomes.each
    seeds = max(len(one.values) for one in each)
    more = f", means of {seeds} seeds" if seeds > 1 else ""
    draw_sweep(
        outcomes.folder / PICTURE,
        {name: [one.point.fields[name] for one in each] for name in each[0].point.fields},
        np.array([one.mean for one in each]),
        np.array([one.std for one in each]),
        metric,
        outcomes.sign,
        f"{show_path(outcomes.folder)}: {len(each)} points{more}",
    )
