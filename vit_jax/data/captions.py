"""Images with captions: opened from a source, split, and put into batches of images and ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..config import CaptionData, Size, pair
from ..config.captions import SHAPES
from ..errors import UserError
from ..runs import array_digest, text_digest
from ..text import Vocabulary, closed
from . import shapes
from .images import Preprocess
from .order import SHUFFLE, Order, permutation
from .pixels import Images
from .sources import Arrays
from .splits import statistics

# {split of the drawn scenes: how many it has}; how many there are to train on, the config says.
SPLITS = {"validation": 500, "test": 500, "unseen": 300}
GREY = 128  # of a blank picture


class Captions:
    """The n captions of one split as ids, each with the row of its image.

    Args:
        images: the images that rows refer to.
        rows: int [n].
        target: int32 [n, T], captions without begin and end, filled with padding.
        boxes: float [n, O, 4] and `words` int [n, O]: where known, the boxes of objects (left, top, right, bottom, as
            shares of the image) and the place in the caption of the word that names each.
        grid: rows and columns of the patches that the network cuts an image into.
    """

    def __init__(
        self,
        images: Images,
        rows: np.ndarray,
        target: np.ndarray,
        boxes: np.ndarray | None = None,
        words: np.ndarray | None = None,
        grid: tuple[int, int] = (1, 1),
    ):
        self._images, self._rows, self.target = images, rows, target
        self._boxes, self._words, self._grid = boxes, words, grid

    def __len__(self) -> int:
        return len(self.target)

    def subset(self, indices: np.ndarray) -> Captions:
        """A split of only these captions."""
        boxes, words = (None if x is None else x[indices] for x in (self._boxes, self._words))
        return Captions(self._images, self._rows[indices], self.target[indices], boxes, words, self._grid)

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"image": uint8 [B, h, w, C], "target": int32 [B, T]}."""
        return {"image": self.take(indices), "target": self.target[indices]}

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The same; where boxes are known also "touched", bool [k, T, N].

        At a word that names an object it is True for the patches that the object's box touches; else all False.
        """
        out = self.batch(indices)
        if self._boxes is not None and self._words is not None:
            out["touched"] = touched(self._boxes[indices], self._words[indices], self.target.shape[1], self._grid)
        return out

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images of these captions, int [k]: uint8 [k, h, w, C]."""
        return self._images.take(self._rows[indices])

    def name(self, i: int) -> str:
        """The name of the image of caption i in messages."""
        return self._images.examples.name(int(self._rows[i]))

    @property
    def chance(self) -> float:
        """The exact match of always giving the most frequent caption, the best answer that ignores the image."""
        return max(Counter(row.tobytes() for row in self.target).values()) / len(self)


def touched(boxes: np.ndarray, words: np.ndarray, length: int, grid: tuple[int, int]) -> np.ndarray:
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


@dataclass(frozen=True)
class CaptionedImages:
    """A set of images with captions, as the `Data` of a run (see contract.py)."""

    name: str
    vocabulary: Vocabulary
    splits: dict[str, Captions]  # train, then validation, test and others where there are any
    preprocess: Preprocess
    identity: dict[str, Any]
    remarks: tuple[str, ...]

    @property
    def contents(self) -> str:
        """The size of the vocabulary, as printed."""
        return f"{len(self.vocabulary):,} ids"

    def same_as(self, recorded: dict[str, Any] | None) -> bool:
        """Whether a run that recorded this identity began with this data; None: not known, of a converted run."""
        return recorded in (None, self.identity)

    def metadata(self) -> dict[str, Any]:
        """The preprocessing and the words, for config.json."""
        return {"preprocess": self.preprocess.to_dict(), "words": list(self.vocabulary.entries)}

    @property
    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary, as fields of the network's config."""
        return {"text.target_vocabulary": len(self.vocabulary), "text.outputs": len(self.vocabulary)}

    def step_sizes(self, batch: int) -> dict[str, int]:
        """{the setting: examples of a training batch}, for the message if that cannot be divided."""
        return {f"batch {batch}": batch}

    def order(self, batch: int, seed: int, batches: int = 0) -> Order:
        """The order of training, over the captions that fill the first `batches` batches (0: over all).

        Raises UserError if there are fewer captions than one batch needs.
        """
        n = min(len(self.splits["train"]), batches * batch or len(self.splits["train"]))
        if n < batch:
            raise UserError(f"batch {batch} is larger than the training set of {n}: lower --batch")
        return Order(n, batch, seed)


def open_captions(
    data: CaptionData,
    image: Size,
    channels: int,
    grid: tuple[int, int],
    *,
    normalize: str = "set",
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    words: int = 0,
) -> CaptionedImages:
    """Open, check and split images with captions.

    Args:
        data: the config of the data.
        image: height and width of the network's images.
        channels: of the network's images.
        grid: rows and columns of the network's patches.
        normalize: `augment.normalize`; `mean` and `std` are those of "given".
        words: the number of ids of the network; 0: that of the data.
    Raises UserError.
    """
    if data.source != SHAPES:
        raise UserError(f"data.source is {data.source}, which has no captions: give {SHAPES}")
    if data.length <= shapes.LONGEST:
        raise UserError(
            f"data.length is {data.length}, but captions of data.source {data.source} have up to {shapes.LONGEST} "
            f"words and an end: give at least {shapes.LONGEST + 1}"
        )
    preprocess = Preprocess(
        pair(image), channels, data.fit, data.size, data.interpolation, data.background, mean=(), std=()
    )
    vocabulary = closed(shapes.WORDS)
    if words not in (0, len(vocabulary)):
        raise UserError(
            f"model.text.outputs is {words} but data.source {data.source} has {len(vocabulary)} ids: "
            "give --model.text.outputs 0 and --model.text.target-vocabulary 0"
        )
    counts = {"train": data.drawn, **SPLITS}
    scenes = {name: shapes.draw(n, i, unseen=name == "unseen") for i, (name, n) in enumerate(counts.items())}
    splits = {name: _split(name, some, vocabulary, data, preprocess, grid) for name, some in scenes.items()}
    content = [[array_digest(some.pixels), array_digest(splits[name].target)] for name, some in scenes.items()]
    if normalize != "given":
        mean, std = statistics(normalize, data.source, preprocess, splits["train"])
    test = scenes["test"]
    others = test._replace(pixels=test.pixels[permutation(len(test.pixels), SHUFFLE)])
    blank = test._replace(pixels=np.full_like(test.pixels, GREY))
    for name, some in (("shuffled", others), ("blank", blank)):
        splits[name] = _split(name, some._replace(boxes=None), vocabulary, data, preprocess, grid)
    identity = {
        "name": SHAPES,
        "sizes": {name: len(split) for name, split in splits.items()},
        "vocabulary": text_digest(list(vocabulary.entries)),
        "content": text_digest(content),
    }
    held = " and ".join(f"{colour} {form}s" for colour, form in shapes.UNSEEN)
    remarks = (
        f"test: always giving the most frequent caption has an exact match of {splits['test'].chance:.4f}",
        f"unseen: scenes with {held}, which no other split has",
        "shuffled and blank: controls, the captions of test with the pictures of others and with grey ones",
    )
    preprocess = replace(preprocess, mean=mean, std=std)
    return CaptionedImages(SHAPES, vocabulary, splits, preprocess, identity, remarks)


def _split(
    name: str,
    scenes: shapes.Scenes,
    vocabulary: Vocabulary,
    data: CaptionData,
    preprocess: Preprocess,
    grid: tuple[int, int],
) -> Captions:
    """The split of drawn scenes."""
    n, room, pad = len(scenes.captions), data.length - 1, vocabulary.ids.pad
    known = {caption: vocabulary.encode(caption) for caption in dict.fromkeys(scenes.captions)}
    padded = {said: np.pad(ids, (0, room - len(ids)), constant_values=pad) for said, ids in known.items()}
    target = np.stack([padded[said] for said in scenes.captions])
    images = Images(Arrays(scenes.pixels, np.zeros(n, np.int32), name), preprocess, True, data.threads)
    h, w = preprocess.image
    whole = h == w and data.size in (0, h)  # no part of a scene is cropped away
    boxes, words = (scenes.boxes, scenes.words) if whole else (None, None)
    return Captions(images, np.arange(n), target, boxes, words, grid)
