"""Images side by side with words: mistakes of a classifier, labels that may be wrong, captions that a network said."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np

from ..files.output import shorten
from .figure import GREY, ORANGE, AnyPath, aspect, message_page, put, sheet

MOST = 36
COLUMNS = 2  # of captions
LETTERS, LINES = 36, 4


def draw_gallery(
    images: np.ndarray, lines: Sequence[str], path: AnyPath, title: str, caption: str = "", empty: str = ""
) -> None:
    """Draw the first MOST images, in the given order, with two lines above each: images uint8 [m, h, w, C]."""
    m = min(len(images), MOST)
    if not m:
        message_page(path, empty)
        return
    columns = min(m, 6)
    w, h = 1.6, 1.6 * aspect(images)
    width = max(0.15 + columns * (w + 0.15), 5.6)
    # A letter of size 12 is 0.09 inches wide, and one of size 9 is 0.07.
    heading, below = textwrap.wrap(title, int(width / 0.09)), textwrap.wrap(caption, int(width / 0.07))
    under = 0.125 + 0.2 * len(heading)
    top = under + 0.175 * max(len(below), 1)
    with sheet(path, width, top + 0.25 + math.ceil(m / columns) * (h + 0.6)) as ax:
        ax.text(width / 2, 0.125, "\n".join(heading), ha="center", va="top", size=12)
        ax.text(width / 2, under, "\n".join(below), ha="center", va="top", size=9, color=GREY)
        for i in range(m):
            x, y = 0.15 + i % columns * (w + 0.15), top + 0.7 + i // columns * (h + 0.6)
            put(ax, images[i], x, y, w, h)
            ax.text(x + w / 2, y - 0.06, lines[i], ha="center", va="bottom", size=8.5)


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
