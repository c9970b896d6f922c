"""Images side by side, with two lines above each: mistakes of a classifier, and labels that may be wrong."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import numpy as np

from .figure import GREY, AnyPath, aspect, message_page, put, sheet

MOST = 36


def draw_gallery(
    images: np.ndarray, lines: Sequence[str], path: AnyPath, title: str, caption: str = "", empty: str = ""
) -> None:
    """Draw the first MOST images, in the given order: images uint8 [m, h, w, C]."""
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
