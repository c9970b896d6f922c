"""Images with some of their cells hidden behind a baseline, and how a value falls when each is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .cells import cell_of_pixel

Told = Callable[[np.ndarray], np.ndarray]  # images [m, h, w, C] -> their values [m, ...]


def hide(image: np.ndarray, hidden: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The image with cells hidden, in several ways: their pixels are 0, the mean that images are normalised by. Shapes:
    image [h, w, C], hidden bool [m, cells] -> [m, h, w, C].
    """
    pixels = hidden[:, cell_of_pixel(image.shape[:2], grid)]  # [m, h, w]
    return np.where(pixels[..., None], np.zeros((), image.dtype), image)


def occlusion(told: Told, image: np.ndarray, grid: tuple[int, int], batch: int) -> np.ndarray:
    """How much a value falls when a cell is hidden (Zeiler and Fergus 2014, arXiv 1311.2901): image [h, w, C] ->
    float64 [gh, gw], or [..., gh, gw] of several values.
    """
    cells = grid[0] * grid[1]
    hidden = np.concatenate([np.zeros((1, cells), bool), np.eye(cells, dtype=bool)])
    values = in_parts(told, image, hidden, grid, batch)
    return np.moveaxis(values[0] - values[1:], 0, -1).reshape(*values.shape[1:], *grid)


def in_parts(told: Told, image: np.ndarray, hidden: np.ndarray, grid: tuple[int, int], batch: int) -> np.ndarray:
    """The values of an image with cells hidden in m ways, float64 [m, ...]; each batch is of the same size."""
    values = []
    for first in range(0, len(hidden), batch):
        some = hidden[first : first + batch]
        full = np.concatenate([some, np.zeros((batch - len(some), hidden.shape[1]), bool)])
        values.append(np.asarray(told(hide(image, full, grid)), np.float64)[: len(some)])
    return np.concatenate(values)
