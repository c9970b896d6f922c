"""The cells of an image, which is what explanations of images are of: mostly the patches of the network."""

from __future__ import annotations

import numpy as np


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
