"""A part of a resized image, as Pillow computes the whole: for images of which the whole would not fit into memory.

An image of 20,000 x 10 pixels whose short side becomes 256 is 512,000 wide, of which a network sees 224. The weights of
a kernel are sums of products in float64, rounded to 22 bits, as in Pillow's Resample.c; both axes are rounded to uint8.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

BITS = 22  # of a weight
ADDED = 1 << 26  # columns up to which positions of "nearest" are summed up, as Pillow does, beyond any it can make


def _bilinear(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    return np.where(x < 1, 1 - x, 0)


def _bicubic(x: np.ndarray) -> np.ndarray:
    a, x = -0.5, np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


KERNELS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {  # (weights by distance, its greatest)
    "bilinear": (_bilinear, 1.0),
    "bicubic": (_bicubic, 2.0),
}


def resized_part(
    image: Image.Image, size: tuple[int, int], part: tuple[int, int, int, int], kernel: str
) -> Image.Image:
    """What image.resize(size, kernel).crop(part) gives, in memory for the part alone."""
    from PIL import Image

    left, upper, right, lower = part
    across, down = _Axis(image.width, size[0], left, right, kernel), _Axis(image.height, size[1], upper, lower, kernel)
    needed = image.crop((across.first, down.first, across.last, down.last))
    pixels = np.asarray(needed).reshape(needed.height, needed.width, -1)  # [rows, columns, C]
    shorter, narrower = image.height - size[1], image.width - size[0]
    if shorter > max(0, 2 * narrower):  # as Pillow 13 chooses which axis comes first
        pixels = across.resized(down.resized(pixels).swapaxes(0, 1)).swapaxes(0, 1)
    else:
        pixels = down.resized(across.resized(pixels.swapaxes(0, 1)).swapaxes(0, 1))
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if image.mode == "L" else pixels))


class _Axis:
    """The pixels `first` to `last` of an axis, of which those from `start` to `stop` of a resized one are made."""

    def __init__(self, length: int, resized: int, start: int, stop: int, kernel: str):
        if resized == length:  # Pillow leaves such an axis as it is
            found = [(i, np.array([1 << BITS])) for i in range(start, stop)]
        elif kernel == "nearest":
            found = [(at, np.array([1 << BITS])) for at in _nearest(length / resized, start, stop)]
        else:
            found = [*_weights(length, resized, start, stop, kernel)]
        self.first = min(at for at, _ in found)
        self.last = max(at + len(weights) for at, weights in found)
        self._made = [(at - self.first, weights) for at, weights in found]

    def resized(self, pixels: np.ndarray) -> np.ndarray:
        """Along the first axis of uint8 [last - first, ...]."""
        out = np.empty((len(self._made), *pixels.shape[1:]), np.uint8)
        for row, (at, weights) in zip(out, self._made, strict=True):
            total = np.tensordot(weights, pixels[at : at + len(weights)].astype(np.int64), 1)
            row[...] = np.clip((total + (1 << BITS >> 1)) >> BITS, 0, 255)
        return out


def _weights(length: int, resized: int, start: int, stop: int, kernel: str) -> Iterator[tuple[int, np.ndarray]]:
    """(the first pixel, the weights of it and the next ones) of which each pixel of a resized axis is made."""
    weigh, reach = KERNELS[kernel]
    scale = length / resized
    stretch = max(scale, 1.0)
    for i in range(start, stop):
        centre = (i + 0.5) * scale
        first = max(int(centre - reach * stretch + 0.5), 0)
        last = min(int(centre + reach * stretch + 0.5), length)
        weights = weigh((np.arange(first, last) - centre + 0.5) * (1.0 / stretch))
        weights = weights / (np.add.accumulate(weights)[-1] or 1.0)  # summed up one by one
        yield first, np.trunc(weights * (1 << BITS) + np.copysign(0.5, weights)).astype(np.int64)


def _nearest(scale: float, start: int, stop: int) -> Iterator[int]:
    """The pixel that each pixel of a resized axis is."""
    if stop > ADDED:
        return (math.floor((i + 0.5) * scale) for i in range(start, stop))
    positions = itertools.accumulate(itertools.repeat(scale, stop - 1), initial=scale * 0.5)
    return (math.floor(position) for position in itertools.islice(positions, start, None))
