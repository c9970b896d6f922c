"""From a source to what training takes: decoded, checked, cut into train, validation and test.

Every image is decoded once before training. Where the set fits in `data.memory` the pixels are kept;
where it does not, decoding only shows that they can be read, and each batch decodes its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import backend
from ..config import ImageData, Size, pair
from ..errors import UserError
from ..runs import array_digest, text_digest
from .images import Preprocess, decode_image
from .order import TEST, VALIDATION, Order, hold_out
from .sources import Arrays, Examples, Source, open_source

_CHUNK = 64  # images that a thread decodes at a time

# Mean and std over the whole training sets at their own size, population std, computed in float64.
_KNOWN: dict[str, tuple[tuple[int, int, int], tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((28, 28, 1), (0.130660,), (0.308108,)),
    "cifar10": ((32, 32, 3), (0.491400, 0.482158, 0.446531), (0.247032, 0.243485, 0.261588)),
    "cifar100": ((32, 32, 3), (0.507075, 0.486549, 0.440918), (0.267334, 0.256438, 0.276150)),
}
_IMAGENET: tuple[tuple[float, ...], tuple[float, ...]] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Images:
    """The images of one split of a source at the network's size: kept in memory, or decoded when taken."""

    def __init__(self, examples: Examples, preprocess: Preprocess, keep: bool, threads: int):
        self.examples, self.preprocess, self.keep = examples, preprocess, keep
        self.threads = threads or backend.cores()
        self._kept: np.ndarray | None = None  # uint8 [n, h, w, C]
        if isinstance(examples, Arrays) and preprocess.keeps(*_shape(examples)):
            self._kept = examples.pixels.reshape(-1, *preprocess.image, preprocess.channels)

    def __len__(self) -> int:
        return len(self.examples.labels)

    def decode(self, row: int, raw: bytes | np.ndarray) -> np.ndarray:
        """uint8 [h, w, C] of what `examples.read(row)` gave. Raises UserError naming the example."""
        from PIL import Image

        if isinstance(raw, bytes):
            return self.preprocess.apply(decode_image(raw, self.examples.name(row)))
        grey = raw.ndim == 3 and raw.shape[-1] == 1
        return self.preprocess.apply(Image.fromarray(raw[..., 0] if grey else raw))

    def load(self) -> tuple[str, dict[int, UserError]]:
        """Decode everything once, keeping the pixels if so set.

        Returns a digest of the images as they lie in the source, and what is wrong with which rows.
        """
        digests = np.zeros((len(self), 16), np.uint8)
        unreadable: dict[int, UserError] = {}
        kept = (
            np.empty((len(self), *self.preprocess.image, self.preprocess.channels), np.uint8)
            if self.keep and self._kept is None
            else None
        )

        def load_chunk(start: int) -> None:
            for row in range(start, min(start + _CHUNK, len(self))):
                try:
                    raw = self.examples.read(row)
                    digests[row] = np.frombuffer(hashlib.blake2b(raw, digest_size=16).digest(), np.uint8)
                    if self._kept is None:
                        pixels = self.decode(row, raw)
                        if kept is not None:
                            kept[row] = pixels
                except UserError as error:
                    unreadable[row] = error

        self._each(load_chunk, range(0, len(self), _CHUNK))
        self._kept = kept if self._kept is None else self._kept
        return array_digest(digests), dict(sorted(unreadable.items()))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """uint8 [k, h, w, C]. Raises UserError naming the first image that cannot be read."""
        if self.keep and self._kept is None:
            for error in self.load()[1].values():
                raise error
        if self._kept is not None:
            return self._kept[rows]
        out = np.empty((len(rows), *self.preprocess.image, self.preprocess.channels), np.uint8)

        def decode_into(place: int) -> None:
            row = int(rows[place])
            out[place] = self.decode(row, self.examples.read(row))

        self._each(decode_into, range(len(rows)))
        return out

    def _each(self, work: Callable[[int], None], items: Iterable[int]) -> None:
        with ThreadPoolExecutor(self.threads, thread_name_prefix="vit-jax-decode") as pool:
            for _ in pool.map(work, items):
                pass


class Split:
    """The labelled images of one split."""

    def __init__(self, images: Images, rows: np.ndarray):
        self._images, self._rows = images, rows
        self.labels: np.ndarray = images.examples.labels[rows]  # int32 [n]

    def __len__(self) -> int:
        return len(self._rows)

    def part(self, indices: np.ndarray) -> Split:
        """The split that holds only these examples."""
        return Split(self._images, self._rows[indices])

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{'image': uint8 [k, h, w, C], 'label': int32 [k]}."""
        return {"image": self.take(indices), "label": self.labels[indices]}

    batch = examples  # what a step sees

    def take(self, indices: np.ndarray) -> np.ndarray:
        """uint8 [k, h, w, C]: the images at these indices."""
        return self._images.take(self._rows[indices])

    def name(self, i: int) -> str:
        """Where a person finds example i: a file's path, or a place in the source such as test[17]."""
        return self._images.examples.name(int(self._rows[i]))


@dataclass(frozen=True)
class Dataset:
    """What a run learns from. `identity` is JSON, and equal exactly where the data is."""

    name: str
    class_names: tuple[str, ...]
    splits: dict[str, Split]  # train, then validation and test where there are any
    preprocess: Preprocess
    identity: dict[str, Any]
    notes: tuple[str, ...]  # worth printing once

    @property
    def contents(self) -> str:
        """What there is, in a few words."""
        return f"{len(self.class_names)} classes"

    def record(self) -> dict[str, Any]:
        """What config.json keeps, so that a run can be used without its data."""
        return {"preprocess": self.preprocess.to_dict(), "class_names": list(self.class_names)}

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of a network that these images decide."""
        return {"classes": len(self.class_names)}

    def step_sizes(self, batch: int) -> dict[str, int]:
        """{what a user calls it: examples of a step}."""
        return {f"batch {batch}": batch}

    def order(self, batch: int, seed: int, batches: int = 0) -> Order:
        """The order of training, over the images of the first batches (0: all). Raises UserError where they are fewer than one."""
        n = min(len(self.splits["train"]), batches * batch or len(self.splits["train"]))
        if n < batch:
            raise UserError(f"batch {batch} is larger than the training set of {n}: lower --batch")
        return Order(n, batch, seed)


def open_images(
    data: ImageData, image: Size, channels: int, *, normalize: str = "set", classes: int = 0, seed: int = 0
) -> Dataset:
    """A set of images for a network that takes them in this size, decoded, checked and split.

    `normalize` is ImageAugment's, `seed` chooses the validation split, and `classes` is how many the network has (0: as many
    as there are). Raises UserError.
    """
    _check_fields(data, pair(image))
    source = open_source(data)
    preprocess = Preprocess(
        pair(image), channels, data.fit, data.size, data.interpolation, data.background, mean=(), std=()
    )
    _check_source(data, source, preprocess, classes)

    total = sum(len(examples.labels) for examples in source.splits.values())
    keep = total * math.prod(preprocess.image) * channels <= data.memory * 1e9
    images = {name: Images(examples, preprocess, keep, data.threads) for name, examples in source.splits.items()}
    rows, content, notes = _readable(data, images)
    splits = _cut(data, images, rows, seed)

    mean, std = _statistics(normalize, data.source, preprocess, splits["train"])
    identity = {
        "name": source.name,
        "sizes": {name: len(split) for name, split in splits.items()},
        "classes": text_digest(list(source.class_names)),
        "content": content,
    }
    return Dataset(
        source.name, source.class_names, splits, replace(preprocess, mean=mean, std=std), identity, source.notes + notes
    )


def _check_fields(data: ImageData, image: tuple[int, int]) -> None:
    if not 0 <= data.background <= 255:
        raise UserError(f"data.background is {data.background}: give a grey level of 0 to 255")
    if data.size < 0 or data.threads < 0 or data.memory < 0:
        raise UserError(
            f"data.size, data.threads and data.memory are {data.size}, {data.threads} and {data.memory}: give 0 or more"
        )
    if data.size and data.fit != "crop":
        raise UserError(
            f"data.size is {data.size} but data.fit is {data.fit}: only crop scales to a size first, set data.size to 0"
        )
    if 0 < data.size < min(image):
        raise UserError(
            f"data.size {data.size} is smaller than model.image {image[0]}x{image[1]}: give at least that, or 0 for just enough to cover"
        )


def _check_source(data: ImageData, source: Source, preprocess: Preprocess, wanted: int) -> None:
    field, classes = f"data.source {data.source}", len(source.class_names)
    for name, examples in source.splits.items():
        labels = examples.labels
        if not len(labels):
            raise UserError(f"{field}: its {name} split is empty; add examples or choose another set")
        if labels.min() < 0 or labels.max() >= classes:
            raise UserError(
                f"{field}: labels of its {name} split go from {labels.min()} to {labels.max()} but there are {classes} classes; number them from 0"
            )
        if preprocess.channels not in (1, 3) and not (
            isinstance(examples, Arrays) and preprocess.keeps(*_shape(examples))
        ):
            raise UserError(f"model.channels is {preprocess.channels}: give 1 for grey or 3 for colour images")
    present = np.unique(source.splits["train"].labels)
    if len(present) < 2:
        raise UserError(
            f"{field}: its only class is {source.class_names[present[0]]}; classification needs two or more"
        )
    if wanted not in (0, classes):
        raise UserError(
            f"model.classes is {wanted} but {field} has {classes} classes: give --model.classes {classes}, or 0 for as many"
        )


def _readable(data: ImageData, images: dict[str, Images]) -> tuple[dict[str, np.ndarray], str, tuple[str, ...]]:
    """Rows of each split that can be read, a digest of all content, and a note on what was left out.

    Test images of a container that checks itself are not decoded yet: they are read once, at the end.
    """
    rows: dict[str, np.ndarray] = {}
    content: list[str] = []
    names: list[str] = []
    for split, some in images.items():
        labels = some.examples.labels
        unreadable: dict[int, UserError] = {}
        if not (split == "test" and some.examples.sealed):
            digest, unreadable = some.load()
            content.append(digest)
        rows[split] = np.delete(np.arange(len(labels)), list(unreadable))
        content.append(array_digest(labels[rows[split]]))
        names += [some.examples.name(row) for row in unreadable]
        lost = set(labels) - set(labels[rows[split]])
        if lost and data.skip_unreadable:
            example = next(some.examples.name(row) for row in unreadable if labels[row] in lost)
            raise UserError(
                f"data.source {data.source}: no {split} image of a class can be read, such as {example}; replace them or remove the class"
            )
    if not names:
        return rows, text_digest(content), ()
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    count = f"{len(names)} unreadable image{'s' if len(names) > 1 else ''}"
    if not data.skip_unreadable:
        raise UserError(
            f"data.source {data.source}: {count}: {listed}; replace or remove them, or leave them out with --data.skip-unreadable"
        )
    return rows, text_digest(content), (f"{count} left out: {listed}",)


def _cut(data: ImageData, images: dict[str, Images], rows: dict[str, np.ndarray], seed: int) -> dict[str, Split]:
    """Train, validation and test; those that the source lacks are held out from train, by class."""
    splits = {name: Split(images[name], rows[name]) for name in rows}
    # Test first, without the run's seed, so that it is the same for every seed and validation share.
    for name, share, salt in (("test", data.test, (TEST,)), ("validation", data.validation, (VALIDATION, seed))):
        if name in splits or not share:
            continue
        train = splits["train"]
        stay, held = hold_out(train.labels, share, *salt)
        if not len(held):
            raise UserError(
                f"data.{name} {share} of {len(train)} examples leaves {name} empty: give a larger share, or 0 for no such split"
            )
        splits["train"], splits[name] = train.part(stay), train.part(held)
    return {name: splits[name] for name in ("train", "validation", "test") if name in splits}


def _statistics(
    normalize: str, source: str, preprocess: Preprocess, train: Split
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel, for pixels in 0..1."""
    channels = preprocess.channels
    if normalize == "none":
        return (0.0,) * channels, (1.0,) * channels
    if normalize == "half":
        return (0.5,) * channels, (0.5,) * channels
    if normalize == "imagenet":
        if channels not in (1, 3):
            raise UserError(
                f"augment.normalize is imagenet but model.channels is {channels}: ImageNet's statistics are for 3 channels; choose set or half"
            )
        mean, std = _IMAGENET
        return (mean, std) if channels == 3 else ((sum(mean) / 3,), (sum(std) / 3,))
    known = _KNOWN.get(source.partition(":")[0])
    return known[1:] if known and preprocess.keeps(*known[0]) else _measured(train, channels)


def _measured(train: Split, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Statistics of at most 10,000 evenly spaced images, exact for those: they come from counts of grey levels."""
    number = min(len(train), 10_000)
    chosen = np.arange(number) * len(train) // number
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, number, _CHUNK):
        pixels = train.take(chosen[start : start + _CHUNK])
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[..., channel].reshape(-1), minlength=256)
    share, levels = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ levels
    std = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.maximum(std, 1e-3).tolist())  # a constant channel has no std to divide by


def _shape(examples: Arrays) -> tuple[int, int, int]:
    """Height, width and channels of the images in an array."""
    height, width, *channels = examples.pixels.shape[1:]
    return height, width, *(channels or [1])  # type: ignore[return-value]
