"""Sets of captions: what all have in common, whatever they describe, and the splits of those of images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...config.run import DataConfig
from ...errors import Field, UserError
from ...files.digests import text_digest
from ...kinds.labels import Positives
from ...text.record import record_one
from ...text.tokenizer import Tokenizer
from ..base import Data
from ..images.blocks import BlockOrder, Pictured
from ..images.pixels import Images
from ..order import Order, count_taken, hold_out, hold_out_groups, lacking


@dataclass(frozen=True)
class CaptionSet(Data):
    """A set of captions."""

    vocabulary: Tokenizer

    @property
    def contents(self) -> str:
        """The size of the vocabulary, as printed."""
        return f"{len(self.vocabulary):,} ids"

    def metadata(self) -> dict[str, Any]:
        """The words, for config.json."""
        return record_one("words", self.vocabulary)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary, as fields of the network's config."""
        return {"text.target_vocabulary": len(self.vocabulary), "text.outputs": len(self.vocabulary)}

    def order(self, batch: int, seed: int, batches: int = 0) -> Order | BlockOrder:
        """The order of training."""
        return Order(count_taken(len(self.splits["train"]), batch, batches), batch, seed)


def check_words(whose: str, words: int, vocabulary: Tokenizer) -> None:
    """Raise UserError where a network has another number of words, or ids; 0: as many as there are."""
    if words not in (0, len(vocabulary)):
        raise UserError(
            Field("model.text.outputs"),
            f"is {words} but {whose} has {len(vocabulary)} ids",
            "give `model.text.outputs 0` and `model.text.target_vocabulary 0`",
        )


def hold_out_images(
    train: np.ndarray,
    data: DataConfig,
    there: Container[str],
    seed: int,
    what: str = "images",
    blocks: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Hold out test and validation from train, image by image, where the source lacks them: train int [n], blocks int
    [all images] -> (the images that stay, {split: those that it gets}).
    """
    found: dict[str, np.ndarray] = {}
    alike = Positives(np.zeros(0, np.int64), np.zeros(0, np.int64))  # no image has what others have not
    for name, share, salt in lacking(data, there, seed):
        if blocks is None:
            stay, held = hold_out(np.zeros(len(train), np.int64), share, *salt)
        else:
            stay, held = hold_out_groups(len(train), alike, blocks[train], share, *salt)
        if not len(held):
            one = "" if blocks is None else ": they are one block, which blocks hold out whole"
            raise UserError(
                Field(f"data.{name}"),
                f"{share} of {len(train)} {what} leaves {name} empty{one}",
                f"give {'--data.order global' if one else 'a larger share'}, or 0 for no such split",
            )
        train, found[name] = train[stay], train[held]
    return train, found


def identity_of(name: str, vocabulary: Tokenizer, splits: Mapping[str, Any], content: Sequence[Any]) -> dict[str, Any]:
    """What `CaptionSet.identity` is."""
    return {
        "name": name,
        "sizes": {each: len(split) for each, split in splits.items()},
        "vocabulary": text_digest(vocabulary.kept),
        "content": text_digest(list(content)),
    }


class Captions(Pictured):
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
        super().__init__(images, rows)
        self.target = target
        self._boxes, self._words, self._grid, self.references = boxes, words, grid, [*references]
        self._said = said

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
