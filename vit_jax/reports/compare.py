"""Compare runs: `vit-jax compare [RUN...]`, or `vit_jax.compare(...)`.

A table of the fields in which runs differ and of their results, and their curves in one picture. A group, which
`train --seeds` makes, is one line: mean and standard deviation.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.fields import option
from ..config.flags import parse
from ..config.hints import nearest
from ..config.run import RunConfig
from ..errors import DONE, UserError
from ..files.destination import check_output
from ..files.output import Compared, print_table
from ..files.places import is_kept
from ..files.reading import show_path
from ..files.terminal import print_wrapped, printable, run_command
from ..plugins import REDRAWN
from .comparison import (
    SHOWN,
    Comparison,
    Line,
    Named,
    curves,
    gather,
    highlighted_lines,
    listed,
    mean_and_spread,
    panels_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "comparison.png"
MANY = 50  # more lines than these are in one table, whose columns may not all fit


def compare(*names: Named, dir: str | os.PathLike[str] = "runs", out: str | os.PathLike[str] = "") -> Compared:
    """Compare runs and groups of runs.

    Args:
        names: paths, or names inside `dir`, or lists of them; none: all that are in `dir`.
        dir: the folder of all runs.
        out: a PNG file for the curves; empty: none.

    Returns:
        {"lines": [{"name", "runs" (their number), "status", "fields" {field in which lines differ: value}, "results"
            {result: {"mean", "std" (with n-1), "values"}}}], "notes": sentences}, a dict that a notebook shows as a
            table, and whose `rows` are what pandas.DataFrame takes.

    Raises:
        UserError: where there is nothing to compare.
    """
    found = gather(listed(names), os.fspath(dir))
    fields, results = found.fields, found.results
    if out:
        draw(found, out)
    return Compared(
        lines=[
            {
                "name": line.name,
                "runs": len(line.members),
                "status": ", ".join(sorted({member.ended for member in line.members})),
                "fields": {name: row[i] for name, row in fields.items()},
                "results": {name: mean_and_spread(row[i]) for name, row in results.items() if row[i]},
            }
            for i, line in enumerate(found.lines)
        ],
        notes=found.notes,
    )


def draw(found: Comparison, path: str | os.PathLike[str] | None) -> None:
    """Draw the curves of a comparison."""
    from ..figures.curves import draw_comparison

    panels = {title: curves(found, *where) for title, where in panels_of(found).items()}
    fields = found.fields
    texts = []
    for i, line in enumerate(found.lines):
        details = [f"{len(line.members)} {line.kind}s"] if line.group else []
        if len(fields) <= 2:
            details += [f"{k.rpartition('.')[2]} {text_of(row[i])}" for k, row in fields.items()]
        details += ["averaged weights"] if line.members[0].kind == "ema" else []
        texts.append(line.name + (f" ({', '.join(details)})" if details else ""))
    count, groups = sum(len(line.members) for line in found.lines), [line for line in found.lines if line.group]
    best = highlighted_lines(found)
    texts = [text if i in best else "" for i, text in enumerate(texts)]
    title = f"{count} runs"
    if len(groups) == len(found.lines):
        title += f" in {len(groups)} groups"
    draw_comparison(panels, texts, path, title if len(found.lines) > 1 else found.lines[0].name)


def _ended(line: Line) -> str:
    """How the runs of a line ended, in a word each: "finished", or of a group "2 finished, 1 diverged"."""
    counts = Counter(member.ended.partition(":")[0] for member in line.members)
    return ", ".join(f"{count} {word}" if len(counts) > 1 else word for word, count in counts.most_common())


def columns(found: Comparison) -> tuple[list[list[str]], list[list[str]]]:
    """(columns of the fields in which lines differ, columns of the results), each a title and a text for each line."""
    fields = [[name.replace(".", ". "), *map(text_of, row)] for name, row in found.fields.items()]
    results: list[list[str]] = []
    if any(line.group for line in found.lines):
        results.append(["runs", *(str(len(line.members)) for line in found.lines)])
    for name, row in found.results.items():
        digits = 4 if name.startswith(("validation ", "test ")) else 0
        results.append([name, *(_mean_text(values, digits) for values in row)])
    results.append(["ended", *map(_ended, found.lines)])
    return fields, results


def _mean_text(values: list[float], digits: int) -> str:
    """A number, or the mean and standard deviation of several unless they are all the same."""
    if not values:
        return "-"
    text = f"{statistics.fmean(values):,.{digits}f}"
    same = len({*values}) == 1
    return text if same else f"{text} +-{statistics.stdev(values):,.{digits}f}"


def text_of(value: Any) -> str:
    """The value of a field, as short as it is clear."""
    if value is None or value in ("", ()):
        return "-"
    if isinstance(value, tuple):
        return ",".join(map(text_of, value)) or "none"
    return printable(f"{value:g}" if isinstance(value, float) else str(value))


@dataclass(frozen=True)
class Options:
    """Compare runs: where they differ, their results and their curves."""

    runs: tuple[str, ...] = field(
        metadata={"help": "runs, groups of runs and folders of them, as paths or names inside dir; none: all of dir"},
    )
    out: str = option("", f"PNG file of the curves; empty: {PICTURE} beside the runs, replaced each time")
    force: bool = option(False, "overwrite the file of --out if it exists")
    dir: str = option("runs", "folder of all runs")


def command(arguments: list[str]) -> int:
    """Print the table and draw the curves that arguments ask for."""
    o = parse(Options, arguments, prog="vit-jax compare")
    check_output("out", o.out, o.force)
    found = gather(o.runs, o.dir)
    fields, results = columns(found)
    names = ["run", *(printable(line.name) for line in found.lines)]
    width, many = shutil.get_terminal_size((120, 24)).columns, len(found.lines) > MANY
    groups = [results[:1], fields, results[1:]] if many else [fields, results]
    if left_out := print_table(names, groups, width, once=many):
        listed = ", ".join(title.replace(". ", ".") for title in left_out)
        print_wrapped(f"note: {width} columns have no room for {listed}; widen the terminal, or set COLUMNS")
    for note in _condensed(found.notes):
        print_wrapped(f"note: {printable(note)}")
    print(_picture(found, o.out))
    return DONE


def _condensed(notes: Sequence[str]) -> list[str]:
    """The notes, of which those that say the same of many runs are one; the name of a run begins such a note."""
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault(note.partition(" ")[2], []).append(note)
    return [
        note
        for each in alike.values()
        for note in (each if len(each) <= SHOWN else [f"{each[0]}; the same holds for {len(each) - 1:,} others"])
    ]


def _picture(found: Comparison, out: str) -> str:
    """Draw the curves; returns a line on where they are."""
    file = Path(out) if out else found.folder / PICTURE
    there = file.exists()
    if not out and is_kept(show_path(file)):
        return "no picture: nothing is changed where these runs are kept; choose a file with `out`"
    if not out:
        try:
            check_output("out", str(file), force=True)
        except UserError:
            return f"no picture: {file.parent} cannot be written; choose a file with `out`"
    draw(found, file)
    replaced = " (replaced)" if there and not out else ""
    return f"curves are in {printable(show_path(file))}{replaced}"


def main() -> int:
    """The command `vit-jax compare`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))


def figure(*names: Named, name: str = "", dir: str | os.PathLike[str] = "runs") -> Figure:
    """A figure of a run, or the curves of several, as matplotlib's Figure, which a notebook shows.

    Of a figure that a run has left as a picture alone it is one with the picture on it.

    Args:
        names: runs and groups of runs, as of `compare`.
        name: of one run, which figure, as its folder plots/ calls it: curves, confusion, attention, ...; empty: curves.
        dir: the folder of all runs.
    """
    from ..figures.figure import drawn

    found = gather(listed(names), os.fspath(dir))
    if len(found.lines) > 1 or found.lines[0].group:
        if name:
            raise UserError(
                "name", f"is {name!r}, but {len(found.lines)} lines are compared", "give one run, or no name"
            )
        return drawn(draw, found, None)
    member = found.lines[0].members[0]
    plots = member.folder.plots
    there = sorted({"curves", *(path.stem for path in plots.glob("*.png"))})
    if (name or "curves") not in there:
        raise UserError(
            "name",
            f"is {name!r}, and {plots} has no such figure",
            nearest(name, there).lstrip("; ") or ", ".join(there),
        )
    if (name or "curves") == "curves":
        return drawn(draw_curves_of, member.run, member.rows, None, member.metric, member.best.get("step"))
    if name in REDRAWN and (redraw := REDRAWN[name].load()(plots)):
        return drawn(redraw)
    return drawn(_draw_picture, plots / f"{name}.png")


def draw_curves_of(
    run: RunConfig, rows: list[dict[str, Any]], path: Path | None, metric: str, best: int | None
) -> None:
    """Draw the training curves of a run."""
    from ..figures.curves import draw_curves

    more = ["binary cross entropy"] if run.loss.name == "binary" else []
    smoothed = run.loss.label_smoothing and run.loss.name != "squared"
    more += [f"labels smoothed by {run.loss.label_smoothing:g}"] if smoothed else []
    more += ["with class weights"] if run.loss.class_weights != "none" else []
    more += ["with a prior"] if run.loss.prior else []
    more += [f"focal {run.loss.focal:g}"] if run.loss.focal else []
    more += ["with a teacher"] if run.teacher else []
    draw_curves(rows, path, ", ".join(more), metric, best)


def _draw_picture(file: Path) -> None:
    from PIL import Image

    from ..figures.figure import DPI, put, sheet

    with Image.open(file) as image:
        pixels = np.asarray(image.convert("RGB"))
    height, width = (side / DPI for side in pixels.shape[:2])
    with sheet(None, width, height) as ax:
        put(ax, pixels, 0, 0, width, height)
