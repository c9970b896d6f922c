"""Sets of images for training: decoded, checked, and split into train, validation and test.

If all pixels fit in `data.memory`, every image is decoded once, before training, and stays in memory. If not, each
batch decodes its images; that all can be read, and what they are, is found out at the first start on them and kept in
an index (sources/index.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...config.fields import Size, pair
from ...config.outputs import Outputs
from ...errors import Field, UserError
from ...files.digests import array_digest, text_digest
from ..base import Given, Rows, same_content
from ..lanes import LaneOrder, Lanes
from ..listing import Listing
from ..order import Order, SampledOrder, Sampling
from ..shards.ahead import Ahead, Batch
from ..unreadable import left_out, refuse_unreadable, stood_in
from .classes import unlabelled_remarks
from .config import ImageData
from .held_out import hold_out_splits
from .labels import labels_of
from .pixels import Images, Loaded, check_ranges, sizes
from .preprocess import Preprocess, has_colours
from .sources.arrays import Arrays
from .sources.base import Source
from .sources.index import compute_once
from .sources.open import open_image_source
from .sources.sharded import Sharded
from .wide import remark_on

MANY = 20_000_000  # examples beyond which shards are read in blocks, if nothing else is stated
ENLARGED = 3  # times larger than they are, from which on it is said that images are made so
LOOKED_AT = 8  # images that are looked at for colours
_CHUNK = 64  # images at a time of which statistics are counted

# {source: (shape of an image, mean, population std per channel)} of training sets in their original size, for pixels in
# 0..1, computed in float64.
_KNOWN: dict[str, tuple[tuple[int, int, int], tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((28, 28, 1), (0.130660,), (0.308108,)),
    "cifar10": ((32, 32, 3), (0.491400, 0.482158, 0.446531), (0.247032, 0.243485, 0.261588)),
    "cifar100": ((32, 32, 3), (0.507075, 0.486549, 0.440918), (0.267334, 0.256438, 0.276150)),
}
_IMAGENET: tuple[tuple[float, ...], tuple[float, ...]] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Split:
    """The images and labels of one split: the given rows of a source's split."""

    def __init__(self, images: Images, rows: np.ndarray, outputs: Outputs):
        self.images, self.rows = images, rows  # int [n]: the places of the examples in the source's split
        self.outputs = outputs  # what the labels are; of numbers with the mean and std that batches are normalised by
        self.labels: np.ndarray = images.examples.labels[rows]  # [n] or [n, K], see labels.py
        self.classes: np.ndarray | None = (
            None  # the classes that macro averages are over, int; None: all of the network
        )
        self.groups: np.ndarray | None = None  # int [n], of examples that belong together; None: each is by itself

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, indices: np.ndarray) -> Split:
        """A split of only these examples."""
        few = Split(self.images, self.rows[indices], self.outputs)
        few.classes, few.groups = self.classes, None if self.groups is None else self.groups[indices]
        return few

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"image": uint8 [k, h, w, C], "label": [k] or [k, K]}; the label as labels.py says, of numbers float32."""
        images = self.take(indices)  # before the labels: what cannot be read may have those of another
        labels = self.source_labels[self.images.rows_of_labels(self.rows[indices])]
        return {"image": images, "label": labels_of(self.outputs).in_batch(labels, self.outputs)}

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The same, with "row", int32 [k]: the places of the examples in the source's split."""
        return {**self.examples(indices), "row": self.rows[indices].astype(np.int32)}

    @property
    def source_labels(self) -> np.ndarray:
        """The labels of all examples of the source's split; this split has some of them."""
        return self.images.examples.labels

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images at these indices, int [k]: uint8 [k, h, w, C]."""
        return self.images.take(self.rows[indices])

    def ahead(self, order: Any, start: int, stop: int, rows: Rows) -> Ahead | None:
        """What reads the images of training batches in blocks before they are needed; None where none are.

        Args:
            order: of training.
            start: the first step.
            stop: the one after the last.
            rows: which of a batch this host takes; None: all.
        """
        examples = self.images.examples
        if not isinstance(order, LaneOrder) or not isinstance(examples, Sharded) or self.images.in_memory:
            return None

        def batch(step: int) -> Batch:
            found = order.read(step)
            own = found if rows is None else found[rows(len(found))]
            runs = np.stack([self.rows[own[:, 1]], self.rows[own[:, 2] - 1] + 1], 1)
            return Batch(step // order.steps_per_epoch, found[:, 0], runs)

        return examples.read_ahead(batch, start, stop, self.images.room)

    def ahead_in_order(self, parts: Sequence[np.ndarray], rows: Rows) -> Ahead | None:
        """The same of examples that come in their own order.

        Args:
            parts: the examples of each batch.
            rows: which of a batch this host takes; None: all.
        """
        examples = self.images.examples
        if not isinstance(examples, Sharded) or self.images.in_memory:
            return None
        own = [self.rows[part if rows is None else part[rows(len(part))]] for part in parts]
        return examples.read_together(own, self.images.room)

    def wide_remarks(self) -> tuple[str, ...]:
        """Remarks on pixels of more than 8 bits in the images that were taken."""
        wide = [*self.images.wide.values()]
        return remark_on(np.array(wide).reshape(-1, 4), self.images.preprocess.range)

    def name(self, i: int) -> str:
        """The name of example i in messages: its file, or its index in the source, such as test[17]."""
        return self.images.examples.name(int(self.rows[i]))


@dataclass(frozen=True)
class Dataset:
    """A set of labelled images, as the `Data` of a run (see data/base.py)."""

    name: str
    outputs: Outputs  # what its labels are
    splits: dict[str, Split]  # train, then validation and test where there are any
    preprocess: Preprocess
    identity: dict[str, Any]
    remarks: tuple[str, ...]
    repeats: int = 1  # copies of an image in a training batch
    sampling: Sampling = "natural"
    stands_in: bool = False  # black images with labels of no meaning, in place of a set that is not here
    listings: Mapping[str, Listing] = field(default_factory=dict)
    lanes: Lanes | None = None  # of training in blocks
    # What the loss needs of the labels of train, as entries of the metadata: {name: a number for each output}.
    of_loss: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, label or number."""
        return self.outputs.names

    @property
    def contents(self) -> str:
        """The number of classes, labels or numbers, as printed."""
        return labels_of(self.outputs).contents(self.outputs)

    def same_as(self, recorded: dict[str, Any] | None) -> bool:
        """Whether a run that recorded this identity began with this data; None: not known, of a converted run."""
        return same_content(recorded, self.identity)

    def metadata(self) -> dict[str, Any]:
        """The preprocessing and what the labels are, for config.json."""
        return {"preprocess": self.preprocess.to_dict(), **self.outputs.to_metadata(), **self.of_loss}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of outputs, as a field of the network's config."""
        return {"classes": len(self.outputs.names)}

    def step_sizes(self, batch: int) -> dict[str, int]:
        """{the setting: examples of a training batch}, for the message if that cannot be divided."""
        return {f"batch {batch}": batch}

    def order(self, batch: int, seed: int, batches: int = 0) -> Order | SampledOrder | LaneOrder:
        """The order of training.

        Args:
            batch: images in a step.
            seed: determines the order.
            batches: only the images that fill so many batches are taken; 0: all.

        Raises:
            UserError: there are fewer images than a batch needs.
        """
        n = min(len(self.splits["train"]), batches * batch or len(self.splits["train"]))
        if n < batch:
            raise UserError(Field("batch"), f"{batch} is larger than the training set of {n}", "lower --batch")
        if self.lanes is not None and not batches:
            return LaneOrder(self.lanes, batch, seed)
        if self.sampling != "natural" and not batches:
            return SampledOrder(self.splits["train"].labels, batch, seed, self.sampling)
        return Order(n, batch, seed, repeats=1 if batches else self.repeats)


def open_images(
    data: ImageData,
    image: Size,
    channels: int,
    *,
    normalize: str = "set",
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    classes: int = 0,
    seed: int = 0,
    repeats: int = 1,
    given: Given | None = None,
    fetch: bool = True,
) -> Dataset:
    """Open, check and split a set of images.

    Args:
        data: the config of the data.
        image: height and width of the network's images.
        channels: of the network's images.
        normalize: `augment.normalize`.
        mean: of each channel, where that is given.
        std: likewise.
        classes: the number of outputs of the network; 0: that of the data.
        seed: determines the validation split.
        repeats: copies of an image in a training batch.
        given: examples from Python, in place of `data.source`.
        fetch: whether a set that is not here may be downloaded; if not, black images stand for it.

    Raises:
        UserError: where there is no such data, or it does not suit the network.
    """
    _check_fields(data, pair(image))
    source = open_image_source(data, given, fetch)
    how = (data.fit, data.size, data.interpolation, data.background)
    preprocess = Preprocess(pair(image), channels, *how, (), (), data.range, pair(data.trim))
    _check_source(data, source, preprocess, classes)

    blocks = _blocks(data, source, repeats)
    images, loaded = _decode(data, source, preprocess)
    rows, remarks = _readable(data, images, loaded, source.outputs)
    remarks += check_ranges(data, images, loaded)
    splits = _splits_of(data, source, images, rows, seed, blocks)
    outputs = labels_of(source.outputs).fitted(f"data.source {data.source}", source.outputs, splits["train"].labels)
    for split in splits.values():
        split.outputs = outputs

    if normalize != "given":
        mean, std = statistics(normalize, data.source, preprocess, splits["train"])
    identity = _identity(source, splits, images, rows, loaded)
    return Dataset(
        source.name,
        outputs,
        splits,
        replace(preprocess, mean=mean, std=std),
        identity,
        source.remarks
        + unlabelled_remarks(data, source)
        + remarks
        + labels_of(outputs).remarks(outputs, {name: split.labels for name, split in splits.items()})
        + _crop_remark(loaded)
        + _enlarged_remark(loaded, pair(image))
        + _colour_remark(images["train"], rows["train"])
        + _index_remarks(loaded),
        repeats,
        data.sampling,
        source.stands_in,
        {name: loaded[name].listing for name in loaded},
        None if blocks is None else _lanes(data, blocks[splits["train"].rows]),
    )


def _decode(data: ImageData, source: Source, preprocess: Preprocess) -> tuple[dict[str, Images], dict[str, Loaded]]:
    """({split: its images}, {split: what decoding them has shown}).

    Test images in a container with checksums are decoded at the end of the run only, when they are used.
    """
    total = sum(len(examples.labels) for examples in source.splits.values())
    in_memory = total * math.prod(preprocess.image) * preprocess.channels <= data.memory * 1e9
    images = {name: Images(examples, preprocess, in_memory, data.threads) for name, examples in source.splits.items()}
    for each in images.values():
        each.replaces = data.skip_unreadable and each.examples.known is not None
        each.room = data.read_ahead * 1e9
    sealed = {name for name, examples in source.splits.items() if name == "test" and examples.sealed}
    return images, {name: images[name].load(data.verify) for name in images if name not in sealed}


def _identity(
    source: Source,
    splits: dict[str, Split],
    images: dict[str, Images],
    rows: dict[str, np.ndarray],
    loaded: dict[str, Loaded],
) -> dict[str, Any]:
    """`Dataset.identity`: of each split a digest of its labels, and of its images if they were loaded."""
    digests = []
    for name in images:
        digests += [loaded[name].digest] if name in loaded else []
        digests.append(array_digest(images[name].examples.labels[rows[name]]))
        digests += [array_digest(source.groups[name][rows[name]])] if name in source.groups else []
    return {
        "name": source.name,
        "sizes": {name: len(split) for name, split in splits.items()},
        "classes": text_digest(list(source.outputs.names)),
        "version": 2,
        "content": text_digest(digests),
    }


def _check_fields(data: ImageData, image: tuple[int, int]) -> None:
    if any(cut >= side for cut, side in zip(pair(data.trim), image, strict=True)):
        sizes = ("x".join(map(str, pair(size))) for size in (data.trim, image))
        raise UserError(Field("data.trim"), "is {}, and model.image is {}".format(*sizes), "give less, or 0 for none")
    if data.size and data.fit != "crop":
        raise UserError(
            Field("data.size"), f"is {data.size} but data.fit is {data.fit}", "only crop uses data.size, set it to 0"
        )
    if 0 < data.size < min(image):
        raise UserError(
            Field("data.size"),
            f"{data.size} is smaller than model.image {image[0]}x{image[1]}",
            "give at least that, or 0 for just enough to cover the image",
        )


def _check_source(data: ImageData, source: Source, preprocess: Preprocess, wanted: int) -> None:
    field, labels, names = f"data.source {data.source}", labels_of(source.outputs), source.outputs.names
    if "train" not in source.splits:
        raise UserError(field, f"has no train split, only {', '.join(source.splits)}", "give one to train on")
    for name, examples in source.splits.items():
        if not len(examples.labels):
            raise UserError(field, f"its {name} split is empty", "add examples or choose another set")
        if preprocess.channels not in (1, 3) and not (
            isinstance(examples, Arrays) and preprocess.leaves_unchanged(*sizes(examples.pixels.shape[1:]))
        ):
            raise UserError(
                Field("model.channels"), f"is {preprocess.channels}", "give 1 for grey or 3 for colour images"
            )
    labels.check(field, source)
    if wanted not in (0, len(names)):
        raise UserError(
            Field("model.classes"),
            f"is {wanted} but {field} has {labels.contents(source.outputs)}",
            f"give --model.classes {len(names)}, or 0 for the number that the data has",
        )


def _blocks(data: ImageData, source: Source, repeats: int) -> np.ndarray | None:
    """The block of each example of train, int64 [n], where training reads in blocks; else None. Raises UserError."""
    train = source.splits["train"]
    if not isinstance(train, Sharded):
        for name in ("order", "lanes"):
            if value := getattr(data, name):
                what = f"is {value}, and data.source {data.source} has no shards"
                raise UserError(Field(f"data.{name}"), what, "leave it out, or give wds:PATTERN or parquet:PATTERN")
        return None
    many = len(train.labels) > MANY or train.samples.grouped
    if data.order == "global" or not (data.order or many):
        return None
    if data.sampling != "natural" or repeats > 1:
        name, value = ("data.sampling", data.sampling) if repeats == 1 else ("augment.repeats", repeats)
        raise UserError(
            Field(name), f"is {value}, and data.order is blocks", "leave it out, or give --data.order global"
        )
    return train.samples.blocks(data.block)


def _lanes(data: ImageData, blocks: np.ndarray) -> Lanes:
    """How the blocks of the training examples are read."""
    starts = np.flatnonzero(np.diff(blocks, prepend=-1, append=-1))
    return Lanes(starts, data.lanes, data.window)


def _readable(
    data: ImageData, images: dict[str, Images], loaded: dict[str, Loaded], outputs: Outputs
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """({split: rows that can be read, as far as is known}, remarks on images that were left out)."""
    rows: dict[str, np.ndarray] = {}
    names: list[str] = []
    replaced: list[str] = []
    for split, split_images in images.items():
        if split_images.replaces:  # so that the rows do not depend on whether all images are read before a run
            rows[split] = np.arange(len(split_images))
            replaced += [split_images.examples.name(row) for row in split_images.stand_ins]
            continue
        labels, kind = split_images.examples.labels, labels_of(outputs)
        unreadable = loaded[split].unreadable if split in loaded else {}
        rows[split] = np.delete(np.arange(len(labels)), list(unreadable))
        names += [split_images.examples.name(row) for row in unreadable]
        lost = np.setdiff1d(kind.present(labels), kind.present(labels[rows[split]]))
        if len(lost) and data.skip_unreadable:
            example = next(split_images.examples.name(row) for row in unreadable if kind.has(labels[row], lost))
            raise UserError(
                f"data.source {data.source}",
                f"no {split} image of a {kind.each[0]} can be read, such as {example}",
                f"replace them or remove the {kind.each[0]}",
            )
    if not names:
        return rows, (stood_in(replaced),) if replaced else ()
    if not data.skip_unreadable:
        raise refuse_unreadable(f"data.source {data.source}", names)
    return rows, (left_out(names),)


def _crop_remark(loaded: dict[str, Loaded]) -> tuple[str, ...]:
    """A remark if the centre crop leaves out more than half of the images' area, on average; else nothing."""
    lost = 1 - float(np.concatenate([each.kept for each in loaded.values()]).mean())
    if lost <= 0.5:
        return ()
    return (f"the centre crop leaves out {lost:.0%} of the images' area; to show whole images, give --data.fit pad",)


def _enlarged_remark(loaded: dict[str, Loaded], image: tuple[int, int]) -> tuple[str, ...]:
    """How many times larger the images are made, where that is much."""
    times = max((min(image) / each.side for each in loaded.values() if each.side), default=1)
    if times < ENLARGED:
        return ()
    return (
        f"images are enlarged {times:.2g} times, from {min(image) / times:.0f} to {min(image)} pixels a side, and each "
        "step costs as much as of such: a smaller --model.image is faster",
    )


def _colour_remark(images: Images, rows: np.ndarray) -> tuple[str, ...]:
    """That a network of one channel does not see the colours which some of the first readable images have."""
    if images.preprocess.channels != 1:
        return ()
    if not any(has_colours(images.open(row, images.examples.read(row))) for row in rows[:LOOKED_AT].tolist()):
        return ()
    return (
        "the images have colours, but the network takes one channel, so they are made grey; to keep the colours, "
        "give --model.channels 3",
    )


def _index_remarks(loaded: dict[str, Loaded]) -> tuple[str, ...]:
    """Where an index cannot be kept, and why; once."""
    return tuple({each.remark for each in loaded.values()} - {""})


def _splits_of(
    data: ImageData,
    source: Source,
    images: dict[str, Images],
    rows: dict[str, np.ndarray],
    seed: int,
    blocks: np.ndarray | None,
) -> dict[str, Split]:
    """train, validation and test; those that the source lacks are held out from train, blocks of it whole."""
    outputs, kind = source.outputs, labels_of(source.outputs)
    whole = source if blocks is None else replace(source, groups={"train": blocks})
    splits = hold_out_splits(data, {name: Split(images[name], rows[name], outputs) for name in rows}, whole, seed)
    for name, split in splits.items():
        split.groups = source.groups[name][rows[name]] if name in source.groups else None
        present = kind.present(split.labels)
        if name != "train" and len(present) < len(outputs.names):
            split.classes = present
    return splits


def statistics(
    normalize: str, source: str, preprocess: Preprocess, train: Any
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and standard deviation of pixels. What is measured on images not in memory is kept for later starts.

    Args:
        normalize: `augment.normalize`.
        source: `data.source`.
        preprocess: how images are prepared.
        train: the split.

    Returns:
        (mean, std) of each channel, for pixels in 0..1.

    Raises:
        UserError: where those of ImageNet are asked for and images have neither 1 nor 3 channels.
    """
    channels = preprocess.channels
    if normalize == "none":
        return (0.0,) * channels, (1.0,) * channels
    if normalize == "half":
        return (0.5,) * channels, (0.5,) * channels
    if normalize == "imagenet":
        if channels not in (1, 3):
            raise UserError(
                Field("augment.normalize"),
                f"is imagenet but model.channels is {channels}",
                "ImageNet's statistics are for 3 channels; choose set or half",
            )
        mean, std = _IMAGENET
        return (mean, std) if channels == 3 else ((sum(mean) / 3,), (sum(std) / 3,))
    known = _KNOWN.get(source.partition(":")[0])
    if known and preprocess.leaves_unchanged(*known[0]):
        return known[1:]
    number = min(len(train), 10_000)
    chosen = np.arange(number) * len(train) // number
    if train.images.in_memory:
        return _measure(train, chosen, channels)
    decided_by = [train.images.digest, array_digest(train.rows[chosen]), preprocess.to_dict()]
    mean, std = compute_once(decided_by, lambda: _measure(train, chosen, channels))
    return tuple(mean), tuple(std)


def _measure(train: Any, chosen: np.ndarray, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of each channel over the chosen images, computed from histograms and so exact."""
    counts = np.zeros((channels, 256), np.int64)
    for start in range(0, len(chosen), _CHUNK):
        pixels = train.take(chosen[start : start + _CHUNK])
        for channel in range(channels):
            counts[channel] += np.bincount(pixels[..., channel].reshape(-1), minlength=256)
    share, levels = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ levels
    std = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.maximum(std, 1e-3).tolist())  # a constant channel has no std to divide by
