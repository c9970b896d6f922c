"""What counted in images and texts, drawn over them: orange for what spoke for an output, blue for what spoke against.

The strongest colour is the largest value of a map, of whichever sign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...figures.figure import BLUE, GREY, ORANGE, AnyPath, aspect, page, put, sheet
from ...files.output import shorten
from .scores import cell_of_pixel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAIRS, WORDS = 3, 6
STRONGEST = 0.85  # opacity
KEY = "orange speaks for it, blue against it"


def overlaid(image: np.ndarray, values: np.ndarray) -> np.ndarray:
    """An image with the values of its cells over it: image uint8 [h, w, C], values float [gh, gw] -> uint8 [h, w, 3];
    of a small image enlarged, so that cells have edges.
    """
    zoom = math.ceil(64 / max(image.shape[:2]))
    grey = image.astype(np.float64).mean(-1).repeat(zoom, 0).repeat(zoom, 1)
    most = np.abs(values).max()
    share = (values / (most if most > 0 else 1)).reshape(-1)[cell_of_pixel(grey.shape, values.shape)]  # [h, w]
    colour = np.where(share[..., None] > 0, _rgb(ORANGE), _rgb(BLUE))
    opacity = STRONGEST * np.abs(share)[..., None]
    return np.rint((1 - opacity) * (70 + 0.45 * grey[..., None]) + opacity * colour).astype(np.uint8)


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], float)


def draw_explained(
    images: np.ndarray, maps: np.ndarray, labels: Sequence[str], path: AnyPath, title: str, caption: str = ""
) -> None:
    """Draw images, each beside what counted in it: images uint8 [m, h, w, C], maps float [m, gh, gw]."""
    columns, w, h = min(len(images), PAIRS), 1.7, 1.7 * aspect(images)
    wide, tall = 2 * w + 0.35, h + 0.55
    width, top = max(columns * wide + 0.15, 6.5), 0.9
    with sheet(path, width, top + math.ceil(len(images) / columns) * tall) as ax:
        _head(ax, width, title, caption)
        for i, (image, values) in enumerate(zip(images, maps, strict=True)):
            x, y = 0.15 + i % columns * wide, top + i // columns * tall
            put(ax, image, x, y, w, h)
            put(ax, overlaid(image, values), x + w + 0.08, y, w, h)
            ax.text(x + w + 0.04, y + h + 0.06, labels[i], ha="center", va="top", size=8.5)


def draw_explained_words(
    image: np.ndarray, maps: np.ndarray, words: Sequence[str], path: AnyPath, title: str, caption: str = ""
) -> None:
    """Draw an image, and beside it, for each word of its caption, what counted in it: image uint8 [h, w, C], maps float
    [T, gh, gw].
    """
    w, h, top = 1.35, 1.35 * aspect(image), 1.1
    columns = min(len(words), WORDS)
    width = max(0.15 + (columns + 1) * (w + 0.12), 6.5)
    with sheet(path, width, top + math.ceil(len(words) / WORDS) * (h + 0.28) + 0.1) as ax:
        _head(ax, width, title, caption)
        put(ax, image, 0.15, top, w, h)
        for k, (values, word) in enumerate(zip(maps, words, strict=True)):
            x, y = 0.15 + (1 + k % WORDS) * (w + 0.12), top + k // WORDS * (h + 0.28)
            put(ax, overlaid(image, values), x, y, w, h)
            ax.text(x + w / 2, y - 0.05, shorten(word, 14), ha="center", va="bottom", size=9)


def draw_explained_text(
    maps: np.ndarray, words: Sequence[str], source: Sequence[str], path: AnyPath, title: str, caption: str = ""
) -> None:
    """Draw a table of colours: what each word of the source (columns) counted for each word that was said (rows).
    Shapes: maps float [T, S].
    """
    from matplotlib.colors import LinearSegmentedColormap

    width, height = max(1.6 + 0.34 * len(source), 6.5), 1.9 + 0.26 * len(words)
    most = np.abs(maps).max(-1, keepdims=True)
    with page(path, width, height) as figure:
        ax = figure.subplots()
        ax.grid(False)
        colours = LinearSegmentedColormap.from_list("for and against", [BLUE, "white", ORANGE])
        ax.imshow(maps / np.where(most > 0, most, 1), cmap=colours, vmin=-1, vmax=1, aspect="auto")
        ax.set_xticks(range(len(source)), [shorten(word, 14) for word in source], rotation=90)
        ax.set_yticks(range(len(words)), [shorten(word, 14) for word in words])
        ax.set(xlabel="word of the source", ylabel="word that was said")
        figure.suptitle("\n".join(filter(None, [title, caption, f"{KEY}; each row by itself"])), size=10)


def _head(ax: Axes, width: float, title: str, caption: str) -> None:
    """The title of a sheet, and two lines below it."""
    ax.text(width / 2, 0.22, title, ha="center", va="center", size=12)
    ax.text(width / 2, 0.47, caption, ha="center", va="center", size=9, color=GREY)
    ax.text(width / 2, 0.66, KEY, ha="center", va="center", size=9, color=GREY)
