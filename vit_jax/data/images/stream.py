"""Training on the batches of an iterator, as they come: a DataLoader of torch, a generator, a pipeline of Grain.

What comes once cannot be counted, measured or begun again in the middle: what would need that is refused by name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from ...config.outputs import Outputs, numbered_classes
from ...errors import Field, UserError
from ...kinds.table import class_of, kind_of, typed_labels
from ..base import GivenData
from ..inputs import prepare_image
from ..order import Order
from .config import GIVEN, ImageData
from .pixels import Images
from .preprocess import Preprocess
from .sources.given import NAMES, as_image, class_names_of, is_sequence, open_given
from .splits import Dataset, Split
from .statistics import statistics

ONCE = "its batches come from an iterator, so a run on them that is stopped cannot go on: it would have to begin anew"


def is_stream(value: Any) -> bool:
    """Whether a value gives batches one after the other, and nothing by its number."""
    return isinstance(value, Iterable) and not is_sequence(value) and not isinstance(value, (str, bytes, Mapping))


def stream_in(given: GivenData | None) -> Any:
    """The iterator of training batches that was given; None where there is none."""
    train = None if given is None else given.data if given.whole else given.data.get("train")
    return train if is_stream(train) else None


def _steps_per_epoch(stream: Any, epochs: int, max_steps: int) -> int:
    """The steps of an epoch: those of the iterator if it has a length, else a part of max_steps."""
    if hasattr(stream, "__len__"):
        return len(stream)
    if not max_steps:
        what = "is an iterator without a length"
        raise UserError("data", what, "say how many steps are to be done with `max_steps N`")
    return max(1, max_steps // epochs)


class Stream:
    """The training split: each batch is the iterator's next one. At the end of one that can begin again, it does."""

    def __init__(self, stream: Any, preprocess: Preprocess, steps: int, target: str):
        self._stream, self._iterator, self._preprocess, self._steps = stream, iter(stream), preprocess, steps
        self.outputs, self.taken = Outputs(target or "class"), 0
        first = self._next()
        self.size = len(first[1])
        self.kind, _ = typed_labels("data", "labels of batch 0", first[1], self.size, target)
        self._waiting = [first]

    def __len__(self) -> int:
        return self.size * self._steps

    @property
    def labels(self) -> NoReturn:
        """Nobody knows them."""
        what = "is an iterator, whose labels are not known beforehand"
        raise UserError("data", what, "leave out what counts them (weights, prior, sampling), or give a sequence")

    source_labels = labels

    def subset(self, indices: np.ndarray) -> NoReturn:
        """There are no examples to choose from."""
        raise UserError("data", "is an iterator, from which no subset can be taken", "leave overfit_batches out")

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The next batch: {"image": uint8 [B, h, w, C], "label": as its kind says, "row": int32 [B]}."""
        images, labels = self._waiting.pop() if self._waiting else self._next()
        title = f"labels of batch {self.taken}"
        self.taken += 1
        if len(labels) != self.size:  # the last of an epoch, which is left out as elsewhere
            if not hasattr(self._stream, "__len__"):
                what = f"its batch {self.taken - 1} has {len(labels)} examples, and others have {self.size}"
                raise UserError("data", what, "let all have as many")
            return self.batch(indices)
        _, typed = typed_labels("data", title, labels, len(labels), self.outputs.kind)
        count = len(self.outputs.names)
        if typed.ndim == 1 and typed.max() >= count:
            what = f"{title} go to {typed.max()}, and there are {count} classes"
            raise UserError("data", what, "name all in class_names")
        pixels = np.stack([self._prepared(image, i) for i, image in enumerate(images)])
        label = kind_of(self.outputs).in_batch(typed)
        return {"image": pixels, "label": label, "row": np.arange(len(typed), dtype=np.int32)}

    def _prepared(self, image: Any, i: int) -> np.ndarray:
        found = as_image(image, f"batch {self.taken - 1}, image {i}")
        if isinstance(found, bytes):
            raise UserError("data", f"batch {self.taken - 1} has files", "give arrays, tensors or Pillow images")
        return prepare_image(found, self._preprocess)

    def _next(self) -> tuple[Any, np.ndarray]:
        """(images, labels) of the next batch. Raises UserError where there is none, or it is no batch."""
        batch = next(self._iterator, None)
        if batch is None and iter(self._stream) is not self._stream:
            self._iterator = iter(self._stream)
            batch = next(self._iterator, None)
        if batch is None:
            what = f"the iterator ended after {self.taken:,} batches, before the run did"
            raise UserError("data", what, "give one with more, or fewer epochs or max_steps")
        if isinstance(batch, Mapping):
            found = [
                next((name for name in (what[:-1], *NAMES[what]) if name in batch), "") for what in ("images", "labels")
            ]
            if not all(found):
                raise UserError("data", f"a batch has {', '.join(map(str, batch))}", "name its entries image and label")
            return batch[found[0]], np.asarray(batch[found[1]])
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise UserError(
                "data", f"a batch is a {type(batch).__name__}", "let each be (images, labels), or a dict of both"
            )
        return batch[0], np.asarray(batch[1])


@dataclass(frozen=True)
class Streamed(Dataset):
    """A set of images whose training batches come from an iterator."""

    def order(self, batch: int, seed: int, batches: int = 0) -> Order:
        """The order in which the batches come."""
        train: Any = self.splits["train"]
        if batch != train.size:
            what = f"is {batch}, and the iterator gives {train.size}"
            raise UserError(Field("batch"), what, f"give `batch {train.size}`")
        if batches:
            train.subset(np.arange(0))
        return Order(len(train), batch, seed, shuffle=False)


def open_stream(
    data: ImageData,
    preprocess: Preprocess,
    normalize: str,
    classes: int,
    given: GivenData,
    epochs: int,
    max_steps: int,
) -> Streamed:
    """Open the training batches of an iterator, and other splits that were given beside it."""
    stream = stream_in(given)
    train: Any = Stream(stream, preprocess, _steps_per_epoch(stream, epochs, max_steps), data.target)
    if class_of(train.kind).amounts:
        what = f"is an iterator of {class_of(train.kind).plural}, which training has to know to normalise them"
        raise UserError("data", what, "give a sequence")
    if normalize == "set":
        what = "is set, which measures all training images, and an iterator shows each once"
        raise UserError(Field("augment.normalize"), what, "give `augment.normalize half`, or imagenet or none")
    rest = {} if given.whole else {name: value for name, value in given.data.items() if name != "train"}
    stated = tuple(given.class_names) or class_names_of(getattr(stream, "dataset", stream))
    source = open_given(replace(given, data=rest, class_names=stated), data.range, data.target) if rest else None
    names = stated or (source.outputs.names if source else ()) or tuple(numbered_classes(classes))
    if not names:
        what = "does not say how many classes there are"
        raise UserError("data", what, "name them in class_names, or count them by `model.classes K`")
    if classes not in (0, len(names)):
        raise UserError(Field("model.classes"), f"is {classes}, and {len(names)} classes are named", "give as many")
    outputs = Outputs(train.kind, names)
    train.outputs = outputs
    splits: dict[str, Any] = {"train": train}
    for name, examples in (source.splits if source else {}).items():
        images = Images(examples, preprocess, True, data)
        images.load()
        splits[name] = Split(images, np.arange(len(examples.labels)), outputs)
    if normalize != "given":
        mean, std = statistics(normalize, GIVEN, preprocess, None)
        preprocess = replace(preprocess, mean=mean, std=std)
    sizes = {name: len(split) for name, split in splits.items()}
    identity = {"name": GIVEN, "sizes": sizes, "version": 2, "once": True, "content": uuid.uuid4().hex}
    return Streamed(outputs, preprocess, splits=splits, identity=identity, remarks=(ONCE,))
