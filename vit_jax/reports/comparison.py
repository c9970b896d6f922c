"""What the folders of runs say, side by side: a line for each run, or for each group, which `train --seeds` makes."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .. import runs
from ..config.dotted import value_at
from ..config.run import RunConfig
from ..errors import UserError
from ..runs import of_summary, several
from ..runs.folder import CONVERTED, FINISHED, ending
from ..runs.values import flat
from ..tasks.table import task_spec

if TYPE_CHECKING:
    from ..figures.curves import Series

T = TypeVar("T")
# Runs by name, or by the summary that `train` returns.
Named = str | os.PathLike[str] | Mapping[str, object] | Sequence[str | os.PathLike[str] | Mapping[str, object]]
BUDGETS = ("max_steps", "max_minutes")  # execution fields, which yet decide how far a run has come
SHOWN = 5
COLOURED = 28  # that colours can tell apart


@dataclass(frozen=True)
class Member:
    """What a run's folder says of it."""

    folder: runs.Run
    run: RunConfig
    data: Any
    summary: dict[str, Any] | None  # None: the run has not ended
    best: dict[str, Any]  # of the validation: step, the selection metric, loss, weights; empty if there was none
    rows: list[dict[str, Any]]
    ended: str

    @property
    def metric(self) -> str:
        """The metric by which the best checkpoint was selected."""
        names = [name for name in task_spec(self.run.task).main_metrics if name != "loss"]
        return next((name for name in names if name in self.best), names[0])

    @property
    def kind(self) -> str:
        """The weights, "raw" or "ema", that the best checkpoint was chosen for."""
        return self.best.get("weights") or ("ema" if self.run.ema else "raw")


@dataclass(frozen=True)
class Line:
    """A line of the comparison: a run, or the runs of a group, which differ in their seeds or folds."""

    name: str
    members: list[Member]
    group: bool

    @property
    def kind(self) -> str:
        """The kind of the group, by which its runs differ: seed or fold."""
        return several.kind_of(self.members[0].folder.path) or "seed"


@dataclass(frozen=True)
class Comparison:
    """All that is shown of several runs; `notes` are sentences."""

    lines: list[Line]
    notes: list[str]
    folder: Path  # in which all of them are

    @functools.cached_property
    def fields(self) -> dict[str, list[Any]]:
        """{field: its value in each line} of the fields that all lines have and in which they differ."""
        values = [{k: v for k, (v, execution) in flat(line.members[0].run).items() if not execution or k in BUDGETS}
                  for line in self.lines]  # fmt: skip
        for line, each in zip(self.lines, values, strict=True):
            if line.group:
                field = several.VARIED[line.kind]
                each[field] = tuple(value_at(member.run, field) for member in line.members)
        names = [name for name in values[0] if all(name in each for each in values)]
        table = {name: [each[name] for each in values] for name in names}
        # The seeds of groups differ from those of single runs by their number only.
        single = {value for value in table.get("seed", []) if not isinstance(value, tuple)}
        return {k: row for k, row in table.items() if (len(single) > 1 if k == "seed" else len({*map(repr, row)}) > 1)}

    @functools.cached_property
    def results(self) -> dict[str, list[list[float]]]:
        """{result: its values in each line, one for each run that has it} of the results that any line has."""
        metrics = [*dict.fromkeys(member.metric for line in self.lines for member in line.members)]
        each = [[_results(member, metrics) for member in line.members] for line in self.lines]
        names = dict.fromkeys(name for line in each for result in line for name in result)
        order = sorted(names, key=lambda name: (_place(name), name))
        return {name: [[r[name] for r in line if name in r] for line in each] for name in order}


def listed(names: Iterable[Named]) -> list[str]:
    """The names of runs as texts, in one list."""
    found = []
    for name in map(of_summary, names):
        if isinstance(name, (str, os.PathLike)):
            found.append(os.fspath(name))
        elif isinstance(name, (list, tuple)):
            found += listed(name)
        else:
            raise UserError(f"a {type(name).__name__} is no run", remedy="give the folders of runs, or their names")
    return found


def gather(names: Sequence[str], runs_dir: str = "runs", damaged: bool = False) -> Comparison:
    """Read runs, groups and folders of runs."""
    notes: list[str] = []
    wanted: dict[Path, None] = {}
    for name in names or [runs_dir]:
        found = several.find_runs(name, runs_dir, bool(names))
        wanted |= {Path(os.path.realpath(folder)): None for folder in found}
    titles = several.titles(list(wanted))
    lines = [line for path, title in titles.items() if (line := _line(path, title, notes, damaged)) is not None]
    if not lines:
        raise UserError("; ".join(notes) or "there are no runs to compare; train one first")
    return Comparison(lines, _warnings(lines) + notes, Path(os.path.commonpath([path.parent for path in wanted])))


def _line(path: Path, title: str, notes: list[str], damaged: bool) -> Line | None:
    """The line of a run or a group; None, with a note, if nothing of it can be read."""
    group = not several.is_run(path)
    members = []
    if group:
        notes.extend(f"{title}/{name} is left out: it holds no run" for name in several.without_runs(path))
    for folder in several.members(path) if group else [path]:
        name = f"{title}/{folder.name}" if group else title
        try:
            member = _member(runs.Run(folder), notes if damaged else None)
        except (UserError, OSError) as error:
            notes.append(f"{name} is left out: {error}")
            continue
        members.append(member)
        if member.ended not in (FINISHED, CONVERTED):
            notes.append(f"{name} is not finished ({member.ended}): its results are those so far")
        with contextlib.suppress(UserError):
            notes.extend(filter(None, (member.folder.remark(), member.folder.log_remark())))
        if other := _differing(member.run, members[0].run):
            notes.append(f"{name} differs from the other runs of its group in {', '.join(other[:SHOWN])}")
    return Line(title, members, group) if members else None


def _differing(run: RunConfig, first: RunConfig) -> list[str]:
    """The fields of the identity, but the seed or the fold, in which a run of a group differs from the first one."""
    if run is first:
        return []
    known = flat(first)
    return [
        name
        for name, (value, execution) in flat(run).items()
        if name not in several.VARIED.values() and not execution and known.get(name, (None,))[0] != value
    ]


def _member(folder: runs.Run, notes: list[str] | None = None) -> Member:
    """Read a run's folder. Raises UserError; with `notes` not on its summary and its log, but adds what is wrong."""

    def read(part: Callable[[], T], missing: T) -> T:
        try:
            return part()
        except UserError as error:
            if notes is None:
                raise
            notes.append(f"{error}; the report goes without")
            return missing

    record = folder.record()
    run = folder.config()
    summary = read(folder.summary, None)
    best = summary.get("best") if summary else None
    if summary is None and (steps := folder.complete_steps()):
        with contextlib.suppress(UserError):
            best = folder.saved(steps[0])["notes"].get("best")
    best = best if isinstance(best, dict) else {}
    rows: list[dict[str, Any]] = read(folder.metrics, [])
    return Member(folder, run, record["data"], summary, best, rows, ending(folder, summary, rows))


def _warnings(lines: list[Line]) -> list[str]:
    """Sentences on what makes results incomparable."""
    members = [member for line in lines for member in line.members]
    tasks = sorted({member.run.task for member in members})
    sources = sorted({member.run.data.source for member in members})
    notes = []
    if len(tasks) > 1:
        notes.append(f"the runs are of {len(tasks)} tasks ({', '.join(tasks)}): their metrics cannot be compared")
    contents = [member.data.get("content") if isinstance(member.data, dict) else None for member in members]
    if len(sources) > 1 and len({*contents}) > 1:  # the same images may lie in two places
        listed = ", ".join(sources[:SHOWN]) + (", ..." if len(sources) > SHOWN else "")
        notes.append(f"the runs are of {len(sources)} data sets ({listed}): their metrics cannot be compared")
    for source in sources:
        known = [m.data for m in members if m.run.data.source == source and isinstance(m.data, dict)]
        if len({repr(data.get("content")) for data in known}) > 1:
            notes.append(f"the data of {source} was not the same for all runs")
    return notes


def result_on_test(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics on test of the best weights, else of the last; empty if a summary has none."""
    test = summary.get("test")
    by_weights: dict[str, Any] = test if isinstance(test, dict) else {}
    return next((by_weights[kind] for kind in ("best", "last_ema", "last") if kind in by_weights), {})


def splits(summary: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """The results in a summary, as {split: {weights: metrics}}, with train and validation first."""
    found = {
        name: value
        for name, value in summary.items()
        if isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())
    }
    return {name: found[name] for name in dict.fromkeys(("train", "validation", *found)) if name in found}


def _results(member: Member, metrics: Iterable[str]) -> dict[str, float]:
    """{name: value} of the results of a run, as far as it has them; `metrics` are those that runs were selected by."""
    summary, best = member.summary or {}, member.best
    chosen = {"kind": "eval", "split": "validation", "step": best.get("step"), "weights": member.kind}
    validated = next((row for row in member.rows if chosen.items() <= row.items()), {}) | best
    tested = result_on_test(summary)
    last = member.rows[-1]["step"] if member.rows else 0
    epochs = {row["step"]: row.get("epoch") for row in member.rows}
    values: dict[str, Any] = {
        **{f"validation {name}": validated.get(name) for name in (*metrics, "loss")},
        **{f"test {name}": tested.get(name) for name in metrics},
        "test loss": tested.get("loss"),
        "best epoch": epochs.get(best.get("step", -1)),
        "steps": summary.get("step", last),
        "seconds": summary.get("seconds"),
        "core-seconds": _core_seconds(member.rows),
        "parameters": member.run.model.parameter_count(),
    }
    return {name: float(value) for name, value in values.items() if is_number(value)}


def _core_seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The CPU time of all training steps; None where a row lacks it, as of a run that an older version began.

    Also of a run so short that all of its time was compilation.
    """
    spent: list[Any] = [row.get("cpu_seconds") for row in rows if row.get("kind") == "train"]
    return max(spent) or None if spent and all(map(is_number, spent)) else None


def _place(name: str) -> tuple[int, bool]:
    """Where a result stands: validation, test, then what it took."""
    order = ("validation", "test", "best", "steps", "seconds", "core-seconds", "parameters")
    return order.index(name.partition(" ")[0]), name.endswith(" loss")


def is_number(value: Any) -> bool:
    """Whether a value of a log is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def mean_and_spread(values: list[float]) -> dict[str, Any]:
    """{"mean", "std" (with n-1; 0 of one value), "values"}."""
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": std, "values": values}


def highlighted_lines(found: Comparison) -> list[int]:
    """The numbers of the lines whose curves have a colour: all, or of many those with the lowest validation loss."""
    if len(found.lines) <= COLOURED:
        return list(range(len(found.lines)))
    measured = found.results.get("validation loss", [[] for _ in found.lines])
    loss = [statistics.fmean(values) if values else math.inf for values in measured]
    return sorted(sorted(range(len(loss)), key=loss.__getitem__)[:COLOURED])


def panels_of(found: Comparison) -> dict[str, tuple[str, str]]:
    """{title: (split, metric)} of the curves that a comparison shows: training's own where a line has no validation."""
    metrics = dict.fromkeys(["loss", *(line.members[0].metric for line in found.lines)])
    panels = [("validation", name) for name in metrics]
    panels[:0] = [("training", name) for name in metrics if name == "loss" or None in curves(found, "validation", name)]
    return {" ".join(panel).replace("_", " "): panel for panel in panels}


def curves(found: Comparison, split: str, name: str) -> list[Series | None]:
    """The curve of a metric for each line: in training, or by evaluations of a split. None where there is none."""
    return [_series([_points(member, split, name) for member in line.members]) for line in found.lines]


def _points(member: Member, split: str, name: str) -> dict[int, tuple[float, float]]:
    """{step: (epoch, value)} of a metric in training, or of the weights that validation chose among."""
    if split == "training":
        rows = [row for row in member.rows if row["kind"] == "train"]
    else:
        evaluations = [row for row in member.rows if row["kind"] == "eval" and row.get("split") == split]
        rows = [row for row in evaluations if row.get("weights", "raw") == member.kind]
    known = [row for row in rows if is_number(row.get("epoch")) and is_number(row.get(name))]
    return {row["step"]: (row["epoch"], row[name]) for row in known}


def _series(points: list[dict[int, tuple[float, float]]]) -> Series | None:
    """The mean and spread of runs at the steps that all of them have, or of one run its curve; None without any."""
    import numpy as np

    from ..figures.curves import Series

    known = [each for each in points if each]
    if not known:
        return None
    steps = sorted(set(known[0]).intersection(*known[1:]))
    epochs = np.array([known[0][step][0] for step in steps], np.float64)
    values = np.array([[each[step][1] for step in steps] for each in known], np.float64)  # [runs, points]
    return Series(epochs, values.mean(0), values.std(0, ddof=1) if len(known) > 1 else None)
