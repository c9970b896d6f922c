"""Resampling of position tables and patch kernels as public libraries do it: one matrix [new, old] an axis, float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Size = tuple[int, int]


def linear(x: np.ndarray) -> np.ndarray:
    """The triangle filter over [-1, 1]."""
    return np.maximum(1 - np.abs(x), 0)


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """Keys' cubic convolution over [-2, 2] with slope `a` at 1 (Keys 1981, IEEE Transactions ASSP 29)."""

    def weight(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        inner = ((a + 2) * x - (a + 3)) * x * x + 1
        outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))

    return weight


@dataclass(frozen=True)
class Kernel:
    """How one library resamples an axis. With `corners` the first and last points of both grids are aligned, not the
    outer edges of their pixels.
    """

    weight: Callable[[np.ndarray], np.ndarray]
    antialias: bool = False
    corners: bool = False
    offset: float = 0.0
    square: tuple[str, ...] = ()

    def matrix(self, old: int, new: int) -> np.ndarray:
        """The matrix that resamples an axis -> float64 [new, old]."""
        if self.corners:
            ratio = (old - 1) / (new - 1) if new > 1 else 0.0
            centres = np.arange(new) * ratio
        else:
            ratio = old / (new + self.offset)
            centres = (np.arange(new) + 0.5) * ratio - 0.5
        if self.antialias:
            weights = self.weight((np.arange(old) - centres[:, None]) / max(ratio, 1.0))
            return weights / weights.sum(1, keepdims=True)
        margin = 3  # points beyond either edge: as far as a cubic filter reaches
        points = np.arange(-margin, old + margin)
        out = np.zeros((old, new))
        np.add.at(out, points.clip(0, old - 1), self.weight(points[:, None] - centres))
        return out.T


# For position tables. timm: resample_abs_pos_embed. hf: ViTEmbeddings.interpolate_pos_encoding. dino: the same in the
# repositories of DINO. torchvision: interpolate_embeddings. google: scipy.ndimage.zoom of order 1, in
# vision_transformer and big_vision. flexi: jax.image.resize "linear", in big_vision's FlexiViT.
POSITIONS = {
    "timm": Kernel(_cubic(-0.5), antialias=True),
    "hf": Kernel(_cubic(-0.75), square=("old",)),
    "dino": Kernel(_cubic(-0.75), offset=0.1, square=("old",)),
    "torchvision": Kernel(_cubic(-0.75), corners=True, square=("old", "new")),
    "google": Kernel(linear, corners=True, square=("old", "new")),
    "flexi": Kernel(linear, antialias=True),
}
# For patch kernels, by how images are resized. flexi: tf.image.resize "bilinear", as FlexiViT (Beyer et al. 2023, arXiv
# 2212.08013, 3.4). timm: resample_patch_embed.
PATCHES = {"flexi": Kernel(linear), "timm": Kernel(_cubic(-0.5), antialias=True)}


def resample(table: np.ndarray, old: Size, new: Size, kernel: Kernel) -> np.ndarray:
    """A table of rows over a grid, resampled to another grid: table [rows*columns, D] -> [rows*columns, D] over the
    grid `new`.
    """
    rows, columns = (kernel.matrix(before, after) for before, after in zip(old, new, strict=True))
    return _both(table, old, rows, columns)


def resample_patches(kernels: np.ndarray, old: Size, new: Size, kernel: Kernel) -> np.ndarray:
    """Patch kernels whose outputs for resized patches are those of the old kernels for the old patches: kernels [p*q,
    n] -> [rows * columns of the new, n].

    They are pinv(B^T) w, where the matrix B resizes a patch (Beyer et al. 2023, arXiv 2212.08013, section 3.4): exact
    where patches grow, least squares where they shrink.
    """
    rows, columns = (np.linalg.pinv(kernel.matrix(before, after).T) for before, after in zip(old, new, strict=True))
    return _both(kernels, old, rows, columns)


def _both(table: np.ndarray, size: Size, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    grid = np.einsum("Rr,Cc,rcd->RCd", rows, columns, table.reshape(*size, -1), optimize=True)
    return grid.reshape(-1, table.shape[-1])
