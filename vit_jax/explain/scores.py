"""How far an explanation can be trusted: insertion and deletion (Petsiuk et al. 2018, arXiv 1806.07421).

Deletion hides the cells of an image one group after the other, the most relevant first; insertion shows them in the
same order, beginning with none. Where an explanation is right, the value falls early and rises early: the area under
the curve of insertion minus that of deletion is near 1, and near 0 for a random order.
"""

from __future__ import annotations

import numpy as np

from .occlusion import Told, in_parts

STAGES = 32  # most groups in which cells are hidden


def orders(cells: int) -> np.ndarray:
    """How many cells each stage has hidden, int [stages + 1], from 0 to all; there are no more stages than cells."""
    stages = min(STAGES, cells)
    return np.arange(stages + 1) * cells // stages


def insertion_deletion(told: Told, image: np.ndarray, relevance: np.ndarray, batch: int) -> tuple[float, float]:
    """The areas under both curves: image [h, w, C], relevance [gh, gw] -> (of insertion, of deletion), in the units of
    the values.
    """
    grid, flat = relevance.shape, relevance.reshape(-1)
    rank = np.empty(flat.size, int)
    rank[np.argsort(-flat, kind="stable")] = np.arange(flat.size)
    first = rank < orders(flat.size)[:, None]  # [stages + 1, cells]
    values = in_parts(told, image, np.concatenate([~first, first]), (grid[0], grid[1]), batch)
    areas = [float(np.trapezoid(curve) / (len(curve) - 1)) for curve in np.split(values, 2)]
    return areas[0], areas[1]


def random_relevance(shape: tuple[int, ...]) -> np.ndarray:
    """A relevance that says nothing, to compare others with: float64, always the same."""
    return np.random.default_rng(0).random(shape)
