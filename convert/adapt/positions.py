"""Computed positions of a ViT, for layouts that store them: the networks' formulas, in numpy."""

from __future__ import annotations

import numpy as np

from vit_jax.config import ViTConfig


def computed(c: ViTConfig) -> np.ndarray:
    """[rows, D] float64: prefix tokens that have a position, then the patches, row by row."""
    if c.position == "sincos1d":  # sine and cosine in turn, each pair of columns at one frequency (Vaswani et al. 2017, 3.5)
        angles = np.arange(c.positions)[:, None] * 10000.0 ** (-2 * (np.arange(c.width) // 2) / c.width)
        return np.where(np.arange(c.width) % 2, np.cos(angles), np.sin(angles))
    quarter = c.width // 4  # sine and cosine of x, then of y (Beyer et al. 2022, arXiv 2205.01580)
    frequencies = 10000.0 ** (-np.arange(quarter) / max(quarter - 1, 1))
    y, x = np.divmod(np.arange(c.patches)[:, None], c.grid[1])
    table = np.concatenate([f(axis * frequencies) for axis in (x, y) for f in (np.sin, np.cos)], axis=1)
    return np.concatenate([np.zeros((c.positions - c.patches, c.width)), table])
