"""A contact sheet: images, and beside each the views of it that augmentation makes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...figures.figure import GREY, AnyPath, aspect, put, sheet
from ...files.output import shorten

CELL, GAP, NAME, TOP = 0.95, 0.06, 1.05, 0.75  # inches: a picture's width, between pictures, for names, for the title


def draw_views(
    path: AnyPath,
    originals: np.ndarray,
    views: np.ndarray,
    names: Sequence[str],
    under: Sequence[Sequence[str]] | None,
    title: str,
    caption: str,
) -> None:
    """Draw images one below the other, and right of each its views: originals uint8 [n, h, w, C], views uint8 [n, V, h,
    w, C].
    """
    height = CELL * aspect(originals)
    down = height + (0.22 if under else GAP)
    first = NAME + CELL + 0.2  # where the views begin
    width = first + views.shape[1] * (CELL + GAP) + 0.1
    with sheet(path, width, TOP + 0.25 + len(originals) * down + 0.1) as ax:
        ax.text(0.15, 0.3, title, size=13, weight="bold")
        ax.text(0.15, 0.55, shorten(caption, round(width * 13)), size=9, color=GREY)
        ax.text(NAME + CELL / 2, TOP + 0.12, "image", ha="center", size=9, color=GREY)
        ax.text(first, TOP + 0.12, "views", size=9, color=GREY)
        for i, (image, name) in enumerate(zip(originals, names, strict=True)):
            y = TOP + 0.25 + i * down
            ax.text(NAME - 0.1, y + height / 2, shorten(name, 13), ha="right", va="center", size=9)
            put(ax, image, NAME, y, CELL, height, vmin=0, vmax=255)
            for k, view in enumerate(views[i]):
                x = first + k * (CELL + GAP)
                put(ax, view, x, y, CELL, height, vmin=0, vmax=255)
                if under:
                    line = shorten(under[i][k], 24)
                    ax.text(x + CELL / 2, y + height + 0.11, line, ha="center", va="center", size=5.2, color=GREY)
