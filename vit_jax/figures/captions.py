"""Captions that a network said, beside their images."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np

from ..files.output import shorten
from .figure import GREY, ORANGE, AnyPath, aspect, message_page, put, sheet

COLUMNS = 2
LETTERS, LINES = 36, 4


def draw_captions(
    images: np.ndarray, references: Sequence[str], said: Sequence[str], path: AnyPath, title: str, caption: str = ""
) -> None:
    """Draw images in the given order, each beside its caption by the data (black) and that by the network (orange):
    images uint8 [m, h, w, C].
    """
    m = len(images)
    if not m:
        message_page(path, "No wrong captions: each is as in the data.")
        return
    columns = min(m, COLUMNS)
    w, h, text, top = 1.5, max(1.5 * aspect(images), 1.4), 2.9, 0.85
    width = max(columns * (w + text + 0.3), 6.5)
    with sheet(path, width, top + math.ceil(m / columns) * (h + 0.2)) as ax:
        ax.text(width / 2, 0.25, title, ha="center", va="center", size=12)
        below = "; ".join(filter(None, [caption, "black: the data, orange: the network"]))
        ax.text(width / 2, 0.52, below, ha="center", va="center", size=9, color=GREY)
        for i in range(m):
            x, y = 0.15 + i % columns * (w + text + 0.3), top + i // columns * (h + 0.2)
            put(ax, images[i], x, y, w, 1.5 * aspect(images))
            for part, color, down in ((references[i], "black", 0.0), (said[i], ORANGE, 0.5)):
                lines = textwrap.wrap(shorten(part, LETTERS * (LINES - 1)), LETTERS) or ["(nothing)"]
                ax.text(x + w + 0.1, y + down * h, "\n".join(lines), va="top", size=9, color=color)
