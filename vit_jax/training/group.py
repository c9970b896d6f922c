"""What the runs of a group, which differ in their seeds or folds, have come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import runs
from ..config.dotted import value_at
from ..config.trees import flatten
from ..files.places import publish_several
from ..reports.compare import draw
from ..reports.comparison import gather, mean_and_spread, splits
from ..runs.several import VARIED, kind_of
from ..tasks.table import task_spec
from .hooks import Hooks


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
    Hooks(inside[0].config()).each("end", group, False)
    publish_several(group.path)
    return summary


def spread_of(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{metric: {"mean", "std" (with n-1), "values"}} of the numbers that all summaries have."""
    rows = [_numbers({**splits({**s}), "seconds": s["seconds"]}) for s in summaries]
    return {name: mean_and_spread([row[name] for row in rows]) for name in rows[0] if all(name in row for row in rows)}


def _numbers(value: dict[str, Any]) -> dict[str, float]:
    """The numbers in a nested dict, as {dotted name: number}."""
    entries = flatten(value, strict=False)
    return {name: float(x) for name, x in entries.items() if isinstance(x, (int, float)) and not isinstance(x, bool)}
