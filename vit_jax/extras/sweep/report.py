"""What came of a sweep, as a table with the best trial first."""

from __future__ import annotations

import shlex
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...files.output import print_table
from ...files.places import is_kept
from ...files.reading import show_path
from ...files.terminal import print_wrapped, printable
from ...reports.compare import text_of
from ...reports.comparison import gather
from ..report.tables import command_of


def show(folder: Path, metric: str, points: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of the trials of a sweep, and how to repeat the best one."""
    name = f"validation {metric.replace('_', ' ')}"
    means = [f"{statistics.fmean(point['values']):.4f}" if point["values"] else "-" for point in points]
    fields = [[field, *(text_of(point["fields"][field]) for point in points)] for field in points[0]["fields"]]
    results = [[name, *means], ["ended", *(point["ended"].partition(":")[0] for point in points)]]
    print()
    titles = ["trial", *(point["name"] for point in points)]
    print_table(titles, [fields, results], shutil.get_terminal_size((120, 24)).columns)
    for point in points:
        if ":" in point["ended"] and not point["values"]:
            print_wrapped(printable(f"note: {point['name']}: {point['ended']}"))
    best = points[0]
    if not best["values"]:
        print("best       none: no trial has a result on validation")
        return
    spread = f" +- {statistics.stdev(best['values']):.4f}" if len(best["values"]) > 1 else ""
    print(printable(f"best       {best['name']}: {name} {means[0]}{spread}"))
    print("next:")
    shown = show_path(folder)
    out = " --out report.html" if is_kept(shown) else ""
    line = gather([str((folder / best["name"]).absolute())], damaged=True).lines[0]
    for command in (command_of(line), f"python -m vit_jax report {shlex.quote(shown)}{out}"):
        print(printable(f"  {command}"))
