"""Several runs as one: the runs of a group, which differ in their seeds or folds, and what they have come to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import runs
from ..config.dotted import replace_fields, value_at
from ..config.run import RunConfig
from ..config.trees import flatten
from ..errors import Field, UserError
from ..reports.command import leave_report
from ..reports.compare import draw
from ..reports.comparison import gather, mean_and_spread
from ..runs.several import VARIED, kind_of, members
from ..runs.values import flat
from ..tasks.table import task_spec
from .finish import splits


def members_of(resume: str | os.PathLike[str] | runs.Run, runs_dir: str = "runs") -> list[runs.Run]:
    """The runs of a group.

    Args:
        resume: its path or name.
        runs_dir: the folder of runs, in which a name is looked for.

    Returns:
        Empty if it is no group.
    """
    if isinstance(resume, runs.Run):
        return []
    return [runs.Run(path) for place in ("", runs_dir) for path in members(Path(place) / os.fspath(resume))]


def of_folds(run: RunConfig, folds: int) -> RunConfig:
    """The run of the first of several folds.

    Args:
        run: the config.
        folds: how many.

    Raises:
        UserError: its data cannot have them, or states others.
    """
    known = flat(run)
    if "data.folds" not in known:
        raise UserError(Field("folds"), f"is {folds}, and the task {run.task} has none", "leave it out")
    if known["data.folds"][0] not in (0, folds) or known["data.fold"][0]:
        raise UserError(Field("folds"), f"is {folds}, and data.folds or data.fold is given", "leave one of them out")
    return replace_fields(run, {"data.folds": folds})


def sum_up(inside: Sequence[runs.Run], summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write, draw and print what the runs of a group have come to; returns the content of its summary.json."""
    group, kind = runs.Run(inside[0].path.parent), kind_of(inside[0].path)
    summary: dict[str, Any] = {
        "status": ", ".join(sorted({each["status"] for each in summaries})),
        f"{kind}s": [value_at(folder.config(), VARIED[kind]) for folder in inside],
        "metrics": spread_of(summaries),
    }
    group.write_summary(summary, {})
    print(f"\n{group}: {len(inside)} {kind}s, mean and standard deviation")
    printed = ("seconds", *task_spec(inside[0].config().task).main_metrics)
    for name, row in summary["metrics"].items():
        if name.endswith(printed):
            print(f"  {name:28} {row['mean']:.4f} +- {row['std']:.4f}")
    draw(gather([str(group.path)]), group.plots / "curves.png")
    print(f"the curves of all {kind}s are in {group}/plots/curves.png")
    leave_report(group)
    return summary


def spread_of(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{metric: {"mean", "std" (with n-1), "values"}} of the numbers that all summaries have."""
    rows = [_numbers({**splits({**s}), "seconds": s["seconds"]}) for s in summaries]
    return {name: mean_and_spread([row[name] for row in rows]) for name in rows[0] if all(name in row for row in rows)}


def _numbers(value: dict[str, Any]) -> dict[str, float]:
    """The numbers in a nested dict, as {dotted name: number}."""
    entries = flatten(value, strict=False)
    return {name: float(x) for name, x in entries.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
