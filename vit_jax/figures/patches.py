"""The patches of an image, and the similarity of their position embeddings."""

from __future__ import annotations

import math

import numpy as np

from ..config.fields import Size, pair
from .figure import AnyPath, aspect, page, put, sheet, to_rgb

TINT = (190, 215, 235)  # between patches; black and white patches both stand out against it


def draw_patches(image: np.ndarray, patch: Size, path: AnyPath) -> None:
    """Draw an image, uint8 [h, w, C], next to its patches; they are numbered like the tokens if the numbers fit."""
    ph, pw = pair(patch)
    patches = image_patches(to_rgb(image), ph, pw)  # [gh, gw, ph, pw, 3]
    gh, gw = patches.shape[:2]
    zoom = math.ceil(32 / min(ph, pw))
    w, h = 5.2, 5.2 * aspect(image)
    with sheet(path, 2 * w + 0.45, h + 0.6) as ax:
        ax.text(0.15 + w / 2, 0.35, f"image, {image.shape[0]} x {image.shape[1]}", ha="center", size=11)
        ax.text(
            0.3 + 1.5 * w,
            0.35,
            f"{gh} x {gw} patches of {ph} x {pw} are {gh * gw} tokens, row by row",
            ha="center",
            size=11,
        )
        put(ax, image, 0.15, 0.45, w, h)
        gap = math.ceil(0.1 * zoom * min(ph, pw))
        canvas = tile(patches.repeat(zoom, axis=2).repeat(zoom, axis=3), gap, TINT)
        put(ax, canvas, 0.3 + w, 0.45, w, h, interpolation="nearest")
        # Inches from patch to patch.
        down, right = h * (zoom * ph + gap) / canvas.shape[0], w * (zoom * pw + gap) / canvas.shape[1]
        size = min(10, 28 * down, 70 * right / len(str(gh * gw - 1)))  # points
        if size < 5:
            return
        from matplotlib.patheffects import withStroke

        outline = [withStroke(linewidth=1.5, foreground="black")]
        for token in range(gh * gw):
            x, y = 0.3 + w + (token % gw + 0.06) * right, 0.45 + (token // gw + 0.06) * down
            ax.text(x, y, str(token), size=size, color="white", va="top", path_effects=outline)


def image_patches(image: np.ndarray, ph: int, pw: int) -> np.ndarray:
    """The patches of an image: [gh * ph, gw * pw, C] -> [gh, gw, ph, pw, C]."""
    h, w, channels = image.shape
    return image.reshape(h // ph, ph, w // pw, pw, channels).swapaxes(1, 2)


def tile(pictures: np.ndarray, gap: int, fill: float | tuple[int, int, int]) -> np.ndarray:
    """One picture of a grid of pictures with gaps between: [R, C, h, w, ...] -> [R*(h+gap)-gap, C*(w+gap)-gap, ...]."""
    rows, columns, h, w, *rest = pictures.shape
    out = np.full((rows, h + gap, columns, w + gap, *rest), fill, pictures.dtype)
    out[:, :h, :, :w] = pictures.swapaxes(1, 2)
    height, width = rows * (h + gap), columns * (w + gap)
    return out.reshape(height, width, *rest)[: height - gap, : width - gap]


def draw_positions(position: np.ndarray, prefix: int, grid: Size, path: AnyPath, caption: str = "") -> None:
    """Draw the cosine similarity of each patch's position embedding to all others (Dosovitskiy et al. 2021, figure 7).
    Shapes: position [prefix + gh * gw, D].
    """
    gh, gw = pair(grid)
    cosine = similarity(np.asarray(position)[prefix:]).reshape(gh, gw, gh, gw)
    rows, columns = (np.unique(np.linspace(0, n - 1, min(n, 14)).round().astype(int)) for n in (gh, gw))
    zoom = math.ceil(48 / max(gh, gw))
    maps = cosine[np.ix_(rows, columns)].repeat(zoom, axis=2).repeat(zoom, axis=3)
    gap = math.ceil(0.12 * zoom * min(gh, gw))
    with page(path, 8.5, 7.5 * min(max(gh / gw, 0.3), 3) + 0.6) as figure:
        ax = figure.subplots()
        ax.grid(False)
        for side in ax.spines.values():
            side.set_visible(False)
        picture = ax.imshow(
            tile(maps, gap, np.nan), cmap="viridis", vmin=min(cosine.min(), 0), vmax=1, interpolation="nearest"
        )
        figure.colorbar(picture, ax=ax, label="cosine similarity", shrink=0.7)
        title = "Position embeddings: each small map compares one patch with all patches"
        ax.set_title("\n".join(filter(None, [title, caption])))
        ax.set(xlabel="column of the patch", ylabel="row of the patch")
        ax.set_xticks(np.arange(len(columns)) * (zoom * gw + gap) + zoom * gw / 2, columns)
        ax.set_yticks(np.arange(len(rows)) * (zoom * gh + gap) + zoom * gh / 2, rows)
        ax.tick_params(length=0)


def similarity(vectors: np.ndarray) -> np.ndarray:
    """The cosine similarity of every pair of rows: [N, D] -> float64 [N, N]; 0 if a row is zero."""
    vectors = vectors.astype(np.float64)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
    return unit @ unit.T
