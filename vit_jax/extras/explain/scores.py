"""How far an explanation can be trusted: insertion and deletion (Petsiuk et al. 2018, arXiv 1806.07421).

Deletion hides the cells of an image one group after the other, the most relevant first; insertion shows them in the
same order, beginning with none. Where an explanation is right, the value falls early and rises early: the area under
the curve of insertion minus that of deletion is near 1, and near 0 for a random order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Told = Callable[[np.ndarray], np.ndarray]  # images [m, h, w, C] -> their values [m]
STAGES = 32  # most groups in which cells are hidden


def insertion_deletion(told: Told, image: np.ndarray, relevance: np.ndarray, batch: int) -> tuple[float, float]:
    """The areas under both curves: image [h, w, C], relevance [gh, gw] -> (of insertion, of deletion), in the units of
    the values.
    """
    grid, flat = relevance.shape, relevance.reshape(-1)
    rank = np.empty(flat.size, int)
    rank[np.argsort(-flat, kind="stable")] = np.arange(flat.size)
    stages = min(STAGES, flat.size)
    first = rank < (np.arange(stages + 1) * flat.size // stages)[:, None]  # [stages + 1, cells]
    values = _in_parts(told, image, np.concatenate([~first, first]), (grid[0], grid[1]), batch)
    areas = [float(np.trapezoid(curve) / (len(curve) - 1)) for curve in np.split(values, 2)]
    return areas[0], areas[1]


def _in_parts(told: Told, image: np.ndarray, hidden: np.ndarray, grid: tuple[int, int], batch: int) -> np.ndarray:
    """The values of an image with cells hidden in m ways, float64 [m]: hidden bool [m, cells].

    Hidden pixels are 0, the mean that images are normalised by. Each batch is of the same size.
    """
    values, cells = [], cell_of_pixel(image.shape[:2], grid)
    for first in range(0, len(hidden), batch):
        some = hidden[first : first + batch]
        full = np.concatenate([some, np.zeros((batch - len(some), hidden.shape[1]), bool)])
        shown = np.where(full[:, cells][..., None], np.zeros((), image.dtype), image)  # [batch, h, w, C]
        values.append(np.asarray(told(shown), np.float64)[: len(some)])
    return np.concatenate(values)


def cell_of_pixel(size: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
    """Which cell each pixel is in: int32 [h, w], row by row; cells are of equal size up to a pixel."""
    rows, columns = (np.arange(pixels) * cells // pixels for pixels, cells in zip(size, grid, strict=True))
    return (rows[:, None] * grid[1] + columns).astype(np.int32)


def sum_cells(values: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The sum over the pixels and channels of each cell: [..., h, w, C] -> float64 [..., gh, gw]."""
    total = values.astype(np.float64).sum(-1)
    for axis, cells in zip((-2, -1), grid, strict=True):
        pixels = total.shape[axis]
        total = np.add.reduceat(total, -(-np.arange(cells) * pixels // cells), axis)
    return total
