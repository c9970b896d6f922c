"""The figures of finished runs, as matplotlib's Figures: `vit_jax.figure(RUN, name="confusion")`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.hints import nearest
from ..config.run import RunConfig
from ..errors import UserError
from ..plugins import REDRAWN
from .compare import draw
from .comparison import Named, gather, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
