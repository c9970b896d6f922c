"""What an explanation is of any task: maps of what counted, as arrays, as a table and as a picture.

In pictures orange spoke for an output, blue against it. The strongest colour is the largest value of a map, of
whichever sign.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...figures.figure import BLUE, GREY, ORANGE, AnyPath, aspect, drawn, page, put, sheet
from ...files.atomic import replacing
from ...files.output import shorten, write_csv
from .capability import SUFFIXES, WORDS
from .relevance import cell_of_pixel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 9
PAIRS_A_ROW, WORDS_A_ROW = 3, 6
STRONGEST = 0.85  # opacity
KEY = "orange speaks for it, blue against it"


@dataclass(frozen=True, repr=False)
class Explanation:
    """What counted in each of n inputs."""

    method: str
    inputs: tuple[str, ...]
    header: ClassVar[tuple[str, ...]]  # the columns of `rows`

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sentence})"

    @property
    def sentence(self) -> str:
        """What it is, in words."""
        raise NotImplementedError

    @property
    def notes(self) -> tuple[str, ...]:
        """How far it can be trusted, in words."""
        return ()

    def rows(self) -> Iterator[tuple[str | int, ...]]:
        """A row of a table for each cell or word of each input."""
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it as arrays."""
        raise NotImplementedError

    def draw(self, path: str | os.PathLike[str] | None = None, caption: str = "") -> Any:
        """Draw it over the inputs."""
        raise NotImplementedError

    def write(self, name: str | os.PathLike[str], caption: str = "") -> tuple[str, ...]:
        """Write the picture, the table and the arrays: NAME.png, NAME.csv and NAME.npz, and return these names."""
        picture, table, arrays = (f"{os.fspath(name)}{suffix}" for suffix in SUFFIXES)
        self.draw(picture, caption)
        write_csv(table, self.header, self.rows())
        with replacing(Path(arrays)) as temporary, open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **self.arrays())  # type: ignore[arg-type]
        return picture, table, arrays


@dataclass(frozen=True, repr=False)
class ImageExplanation(Explanation):
    """What counted in each of n images for one output of a network: values float [n], maps float64 [n, gh, gw], images
    uint8 [n, h, w, C].
    """

    outputs: tuple[str, ...]
    values: np.ndarray
    maps: np.ndarray
    images: np.ndarray
    insertion: np.ndarray = field(default_factory=lambda: np.zeros(0))
    deletion: np.ndarray = field(default_factory=lambda: np.zeros(0))
    random: np.ndarray = field(default_factory=lambda: np.zeros(0))

    header = ("file", "explained", "value", "row", "column", "relevance")

    @property
    def sentence(self) -> str:
        n = len(self.maps)
        return f"{n:,} image{'' if n == 1 else 's'} by {WORDS[self.method]}"

    @property
    def score(self) -> tuple[float, float]:
        """(insertion minus deletion, the same of a random order): means over the images, NaN where not measured."""
        if not len(self.random):
            return np.nan, np.nan
        return float((self.insertion - self.deletion).mean()), float(self.random.mean())

    @property
    def notes(self) -> tuple[str, ...]:
        return (describe_scores(self.insertion, self.deletion, self.random),) if len(self.random) else ()

    def rows(self) -> Iterator[tuple[str | int, ...]]:
        """A row for each cell, which are counted from 1."""
        for name, output, value, cells in zip(self.inputs, self.outputs, self.values, self.maps, strict=True):
            for (row, column), x in np.ndenumerate(cells):
                yield name, output, f"{value:.6g}", row + 1, column + 1, f"{x:.9g}"

    def arrays(self) -> dict[str, np.ndarray]:
        """Those of its fields, `files` and `explained` as texts."""
        named = {"files": np.array(self.inputs), "explained": np.array(self.outputs)}
        numbers = {name: getattr(self, name) for name in ("values", "maps", "images")}
        return named | numbers | {name: getattr(self, name) for name in ("insertion", "deletion", "random")}

    def draw(self, path: str | os.PathLike[str] | None = None, caption: str = "") -> Any:
        names = [f"{shorten(Path(name).name, 28)}\n" for name in self.inputs]
        labels = [
            f"{a}{shorten(b, 24)} {value:.3g}" for a, b, value in zip(names, self.outputs, self.values, strict=True)
        ]
        title = f"What counted, by {WORDS[self.method]}"
        below = "; ".join(filter(None, [caption, *self.notes]))
        images = self.images[:SHOWN, ..., : 3 if self.images.shape[-1] >= 3 else 1]
        return drawn(draw_explained, images, self.maps[:SHOWN], labels, path, title, below)


@dataclass(frozen=True, repr=False)
class TextExplanation(Explanation):
    """What counted in each of n inputs for each token of the text that was said of it: maps float64 [T, S]."""

    tokens: tuple[tuple[str, ...], ...]
    maps: tuple[np.ndarray, ...]

    @property
    def sentence(self) -> str:
        n = len(self.maps)
        return f"{n:,} text{'' if n == 1 else 's'}, token by token, by {WORDS[self.method]}"

    def arrays(self) -> dict[str, np.ndarray]:
        """`inputs`, `tokens` [n, T] and `maps` [n, T, ...], filled up with '' and NaN where texts are shorter."""
        return {"inputs": np.array(self.inputs), "tokens": _filled_names(self.tokens), "maps": _filled(self.maps)}

    @property
    def title(self) -> str:
        return f"What counted for each word, by {WORDS[self.method]}"


@dataclass(frozen=True, repr=False)
class TranslationExplanation(TextExplanation):
    """What each token of a source counted for each token of its translation."""

    sources: tuple[tuple[str, ...], ...]

    header = ("source", "position", "token", "source position", "source token", "relevance")

    def rows(self) -> Iterator[tuple[str | int, ...]]:
        """A row for each token of a translation and of its source; both are counted from 1."""
        for name, tokens, words, values in zip(self.inputs, self.tokens, self.sources, self.maps, strict=True):
            for (t, s), x in np.ndenumerate(values):
                yield name, t + 1, tokens[t], s + 1, words[s], f"{x:.9g}"

    def arrays(self) -> dict[str, np.ndarray]:
        """With `sources` [n, S]."""
        return super().arrays() | {"sources": _filled_names(self.sources)}

    def draw(self, path: str | os.PathLike[str] | None = None, caption: str = "") -> Any:
        return drawn(draw_explained_text, self.maps[0], self.tokens[0], self.sources[0], path, self.title, caption)


@dataclass(frozen=True, repr=False)
class CaptionExplanation(TextExplanation):
    """Which part of an image counted for each token of its caption: images uint8 [n, h, w, C]."""

    images: np.ndarray

    header = ("file", "position", "token", "row", "column", "relevance")

    def rows(self) -> Iterator[tuple[str | int, ...]]:
        """A row for each token of a caption and each cell of its image; all are counted from 1."""
        for name, tokens, values in zip(self.inputs, self.tokens, self.maps, strict=True):
            for (t, row, column), x in np.ndenumerate(values):
                yield name, t + 1, tokens[t], row + 1, column + 1, f"{x:.9g}"

    def arrays(self) -> dict[str, np.ndarray]:
        return super().arrays() | {"images": self.images}

    def draw(self, path: str | os.PathLike[str] | None = None, caption: str = "") -> Any:
        image = self.images[0][..., : 3 if self.images.shape[-1] >= 3 else 1]
        return drawn(draw_explained_words, image, self.maps[0], self.tokens[0], path, self.title, caption)


def describe_scores(insertion: np.ndarray, deletion: np.ndarray, random: np.ndarray) -> str:
    """The means of scores in words, as of `ImageExplanation`."""
    own, blind = (insertion - deletion).mean(), random.mean()
    return f"insertion minus deletion {own:.3f}, in random order {blind:.3f}; the most is 1"


def names_of(inputs: Iterable[Any]) -> tuple[str, ...]:
    """What inputs are called: paths and texts as they are, others by their numbers from 1."""
    return tuple(os.fspath(x) if isinstance(x, (str, os.PathLike)) else f"image {i}" for i, x in enumerate(inputs, 1))


def _filled_names(texts: Sequence[Sequence[str]]) -> np.ndarray:
    longest = max(map(len, texts))
    return np.array([[*text, *[""] * (longest - len(text))] for text in texts])


def _filled(maps: Sequence[np.ndarray]) -> np.ndarray:
    shape = np.max([each.shape for each in maps], axis=0)
    out = np.full((len(maps), *shape), np.nan)
    for row, values in zip(out, maps, strict=True):
        row[tuple(slice(n) for n in values.shape)] = values
    return out


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
    columns, w, h = min(len(images), PAIRS_A_ROW), 1.7, 1.7 * aspect(images)
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
    columns = min(len(words), WORDS_A_ROW)
    width = max(0.15 + (columns + 1) * (w + 0.12), 6.5)
    with sheet(path, width, top + math.ceil(len(words) / WORDS_A_ROW) * (h + 0.28) + 0.1) as ax:
        _head(ax, width, title, caption)
        put(ax, image, 0.15, top, w, h)
        for k, (values, word) in enumerate(zip(maps, words, strict=True)):
            x, y = 0.15 + (1 + k % WORDS_A_ROW) * (w + 0.12), top + k // WORDS_A_ROW * (h + 0.28)
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
