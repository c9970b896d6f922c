"""A split of images with captions: pixels and ids in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base import Rows
from ..images.blocks import read_ahead, read_in_order
from ..images.pixels import Images
from ..items import Reading


class Captions:
    """The n captions of one split as ids, each with the row of its image: rows int [n], target int32 [n, T], boxes
    float [n, O, 4], words int [n, O].
    """

    def __init__(
        self,
        images: Images,
        rows: np.ndarray,
        target: np.ndarray,
        boxes: np.ndarray | None = None,
        words: np.ndarray | None = None,
        grid: tuple[int, int] = (1, 1),
        references: Sequence[Sequence[str]] = (),
        said: Callable[[int], tuple[Sequence[str], np.ndarray]] | None = None,
    ):
        self.images, self.rows, self.target = images, rows, target
        self._boxes, self._words, self._grid, self.references = boxes, words, grid, [*references]
        self._said = said

    def __len__(self) -> int:
        return len(self.target)

    def subset(self, indices: np.ndarray) -> Captions:
        """A split of only these captions."""
        boxes, words = (None if x is None else x[indices] for x in (self._boxes, self._words))
        several = [self.references[i] for i in indices] if self.references else ()
        rows, target = self.rows[indices], self.target[indices]
        return Captions(self.images, rows, target, boxes, words, self._grid, several, self._said)

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"image": uint8 [B, h, w, C], "target": int32 [B, T]}."""
        images = self.take(indices)  # before the captions: what cannot be read may have those of another
        return {"image": images, "target": self.target[indices]}

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Examples for evaluation: indices int [k]. What `batch` gives; where boxes are known also "touched", bool [k,
        T, N]: at a word that names an object it is True for the patches that the object's box touches, else all False.
        """
        out = self.batch(indices)
        if self._boxes is not None and self._words is not None:
            out["touched"] = touched_patches(
                self._boxes[indices], self._words[indices], self.target.shape[1], self._grid
            )
        return out

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images of these captions, int [k]: uint8 [k, h, w, C]; the caption of one that is replaced follows it."""
        images = self.images.take(self.rows[indices])
        for i in indices.tolist() if self.images.stand_ins else ():
            other = self.images.stand_ins.get(int(self.rows[i]))
            if other is not None and self._said is not None:
                captions, self.target[i] = self._said(other)
                if self.references:
                    self.references[i] = captions
        return images

    def ahead(self, order: Any, start: int, stop: int, rows: Rows) -> Reading | None:
        """As `blocks.read_ahead`."""
        return read_ahead(self.images, self.rows, order, start, stop, rows)

    def ahead_in_order(self, parts: Sequence[np.ndarray], rows: Rows) -> Reading | None:
        """As `blocks.read_in_order`."""
        return read_in_order(self.images, self.rows, parts, rows)

    def name(self, i: int) -> str:
        """The name of the image of caption i in messages."""
        return self.images.examples.name(int(self.rows[i]))

    @property
    def chance(self) -> float:
        """The exact match of always giving the most frequent caption, the best answer that ignores the image."""
        return max(Counter(row.tobytes() for row in self.target).values()) / len(self)


def touched_patches(boxes: np.ndarray, words: np.ndarray, length: int, grid: tuple[int, int]) -> np.ndarray:
    """Which patches the boxes [k, O, 4] touch, at the words [k, O] that name their objects: bool [k, length, N]."""
    (rows, columns), (k, objects) = grid, words.shape
    left, top, right, bottom = np.moveaxis(boxes, -1, 0)[..., None]  # [k, O, 1] each
    x, y = np.arange(columns), np.arange(rows)
    across = (left * columns < x + 1) & (right * columns > x)  # [k, O, columns]
    down = (top * rows < y + 1) & (bottom * rows > y)
    inside = (down[..., :, None] & across[..., None, :]).reshape(k, objects, -1)
    out = np.zeros((k, length, rows * columns), bool)
    out[np.arange(k)[:, None], words] = inside
    return out
