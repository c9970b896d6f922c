"""Open a set of images for training: decoded, checked, and split into train, validation and test.

If all pixels fit in `data.memory`, every image is decoded once, before training, and stays in memory. If not, each
batch decodes its images; that all can be read, and what they are, is found out at the first start on them and kept in
an index (sources/index.py).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ...config.fields import Size, pair
from ...config.outputs import Outputs
from ...errors import Field, UserError
from ...files.digests import array_digest, text_digest
from ...kinds.table import kind_of
from ..base import GivenData, Other, choose_split
from .blocks import blocks_in, blocks_of
from .config import FOLDER, ImageData
from .pixels import Images, Loaded, are_unchanged, check_ranges
from .preprocess import Preprocess, has_colours, left_out, refuse_unreadable, stood_in
from .sources.arrays import Arrays
from .sources.base import Source
from .sources.folders import open_test_folder
from .sources.layout import WHOLE
from .sources.open import check_target, folder_of, open_image_source, table_of
from .splits import Dataset, Split, hold_out_splits, unlabelled_remarks
from .statistics import statistics
from .tables.open import declared_in, open_test_table

ENLARGED = 3  # times larger than they are, from which on it is said that images are made so
LOOKED_AT = 8  # images that are looked at for colours


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
    given: GivenData | None = None,
    fetch: bool = True,
) -> Dataset:
    """Open, check and split a set of images."""
    _check_fields(data, pair(image))
    source = open_image_source(data, given, fetch)
    preprocess = Preprocess.of(data, image, channels)
    _check_source(data, source, preprocess, classes)

    blocks = blocks_in(data, source.splits["train"], repeats=repeats, sampling=data.sampling)
    images, loaded = _decode(data, source, preprocess)
    rows, remarks = _readable(data, images, loaded, source.outputs)
    remarks += check_ranges(data, images, loaded)
    splits = _splits_of(data, source, images, rows, seed, blocks)
    outputs = splits["train"].outputs

    if normalize != "given":
        mean, std = statistics(normalize, data.source, preprocess, splits["train"])
    remarks += kind_of(outputs).remarks({name: split.labels for name, split in splits.items()})
    remarks += _image_remarks(images["train"], rows["train"], loaded, pair(image))
    return Dataset(
        outputs,
        replace(preprocess, mean=mean, std=std),
        *(repeats, data.sampling, source.stands_in, blocks_of(data, blocks, splits["train"].rows)),
        splits=splits,
        identity=_identity(source, splits, images, rows, loaded),
        remarks=source.remarks + unlabelled_remarks(data, source) + remarks,
        listings={name: each.listing for name, each in loaded.items()},
    )


def _decode(data: ImageData, source: Source, preprocess: Preprocess) -> tuple[dict[str, Images], dict[str, Loaded]]:
    """({split: its images}, {split: what decoding them has shown}).

    Test images in a container with checksums are decoded at the end of the run only, when they are used.
    """
    total = sum(len(examples.labels) for examples in source.splits.values())
    in_memory = total * math.prod(preprocess.image) * preprocess.channels <= data.memory * 1e9
    images = {name: Images(examples, preprocess, in_memory, data) for name, examples in source.splits.items()}
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
    field, labels, names = f"data.source {data.source}", kind_of(source.outputs), source.outputs.names
    if "train" not in source.splits:
        raise UserError(field, f"has no train split, only {', '.join(source.splits)}", "give one to train on")
    for name, examples in source.splits.items():
        if not len(examples.labels):
            raise UserError(field, f"its {name} split is empty", "add examples or choose another set")
        if preprocess.channels not in (1, 3) and not are_unchanged(examples, preprocess):
            raise UserError(
                Field("model.channels"), f"is {preprocess.channels}", "give 1 for grey or 3 for colour images"
            )
    labels.check(field, source.labels, source.counted)
    if wanted not in (0, len(names)):
        raise UserError(
            Field("model.classes"),
            f"is {wanted} but {field} has {labels.contents}",
            f"give `model.classes {len(names)}`, or 0 for the number that the data has",
        )


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
        labels, kind = split_images.examples.labels, kind_of(outputs)
        unreadable = loaded[split].unreadable if split in loaded else {}
        rows[split] = np.delete(np.arange(len(labels)), list(unreadable))
        names += [split_images.examples.name(row) for row in unreadable]
        lost = np.setdiff1d(kind.present(labels), kind.present(labels[rows[split]]))
        if len(lost) and data.skip_unreadable:
            gone = (row for row in unreadable if np.isin(kind.present(labels[row : row + 1]), lost).any())
            example = split_images.examples.name(next(gone))
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


def _image_remarks(
    train: Images, rows: np.ndarray, loaded: dict[str, Loaded], image: tuple[int, int]
) -> tuple[str, ...]:
    """Remarks on how images are fitted to the network, of whose training set these rows can be read."""
    remarks = []
    lost = 1 - float(np.concatenate([each.kept for each in loaded.values()]).mean())
    if lost > 0.5:
        remarks.append(
            f"the centre crop leaves out {lost:.0%} of the images' area; to show whole images, give `data.fit pad`"
        )
    times = max((min(image) / each.side for each in loaded.values() if each.side), default=1)
    if times >= ENLARGED:
        remarks.append(
            f"images are enlarged {times:.2g} times, from {min(image) / times:.0f} to {min(image)} pixels a side, and "
            "each step costs as much as of such: a smaller `model.image` is faster"
        )
    seen = rows[:LOOKED_AT].tolist() if train.preprocess.channels == 1 else []
    if any(has_colours(train.open(row, train.examples.read(row))) for row in seen):
        remarks.append(
            "the images have colours, but the network takes one channel, so they are made grey; to keep the colours, "
            "give `model.channels 3`"
        )
    return (*remarks, *({each.remark for each in loaded.values()} - {""}))


def _splits_of(
    data: ImageData,
    source: Source,
    images: dict[str, Images],
    rows: dict[str, np.ndarray],
    seed: int,
    blocks: np.ndarray | None,
) -> dict[str, Split]:
    """train, validation and test; those that the source lacks are held out from train, blocks of it whole."""
    outputs, kind = source.outputs, kind_of(source.outputs)
    whole = source if blocks is None else replace(source, groups={"train": blocks})
    splits = hold_out_splits(data, {name: Split(images[name], rows[name], outputs) for name in rows}, whole, seed)
    fitted = kind.fitted(f"data.source {data.source}", splits["train"].labels)
    for name, split in splits.items():
        split.outputs = fitted
        split.groups = source.groups[name][rows[name]] if name in source.groups else None
        present = kind.present(split.labels)
        if name != "train" and len(present) < len(outputs.names):
            split.classes = present
    return splits


def open_other_images(
    data: ImageData, wanted: str, preprocess: Preprocess, outputs: Outputs, given: GivenData | None = None
) -> Other:
    """Open a split of images for evaluation, decoded when they are taken; their labels are the network's."""
    field = f"data.source {data.source}" if given is None else "data"
    range_ = data.range or preprocess.range
    data = replace(data, range=range_, target=outputs.kind)
    preprocess = replace(preprocess, range=data.range)
    source = _open(data, outputs, given)
    check_target(data, source)
    if given is not None and given.whole:
        source = replace(source, splits={WHOLE: source.splits["train"]})
    name = _choose_split(field, source, wanted)
    unlabelled = [f"{why} and is left out" for why in source.unlabelled.values()]
    examples = source.splits[name]
    _check_examples(field, name, source, preprocess)
    kind, theirs = kind_of(outputs), kind_of(source.outputs)
    of = "" if name == WHOLE else f" of its {name} split"
    if source.counted:
        theirs.check_counted(field, source.labels, len(outputs.names))
    labels, remark = theirs.matched(field, of, examples.labels, outputs.names)
    images, rows = Images(examples, preprocess, False, data), np.arange(len(examples.labels))
    unreadable = [*images.load().unreadable] if data.skip_unreadable else []
    if len(unreadable) == len(rows):
        raise UserError(
            field, f"none of its {len(rows):,} images can be read, such as {examples.name(0)}", "give others"
        )
    examples.labels = labels
    split = Split(images, np.delete(rows, unreadable), outputs)
    split.groups = source.groups[name][split.rows] if name in source.groups else None
    split.classes = kind.present(split.labels)
    remarks = [remark, *unlabelled, *source.remarks]
    if unreadable:
        remarks.append(left_out([examples.name(row) for row in unreadable]))
    if len(split.classes) < len(outputs.names):
        remarks.append(
            f"its images are of {len(split.classes)} of the network's {kind.contents}; macro averages are over these"
        )
    total = sum(len(each.labels) for each in source.splits.values())
    return Other(name, split, total, tuple(filter(None, remarks)))


def _open(data: ImageData, outputs: Outputs, given: GivenData | None) -> Source:
    """The source that a network with these outputs is measured on: of a folder or a table any split may be missing."""
    if given is None and (place := table_of(data)):
        return open_test_table(place, declared_in(data), outputs)
    if given is None and data.source.startswith(FOLDER):
        return open_test_folder(folder_of(data))
    return open_image_source(data, given)


def _check_examples(field: str, name: str, source: Source, preprocess: Preprocess) -> None:
    """Raise UserError about the images of a split that a network cannot be measured on."""
    examples = source.splits[name]
    if not len(examples.labels):
        what = "holds no images; give others" if name == WHOLE else f"its {name} split is empty; choose another split"
        raise UserError(field, what)
    if preprocess.channels not in (1, 3) and not are_unchanged(examples, preprocess):
        raise UserError(
            field,
            f"the network takes {preprocess.channels} channels, which image files do not have",
            f"give an .npz with images {[*preprocess.image, preprocess.channels]}",
        )
    if isinstance(examples, Arrays) and (fault := examples.extent.fault(preprocess.range)):
        raise UserError(field, f"{examples.title} {fault}", "give pixels of more, as in training")


def _choose_split(field: str, source: Source, wanted: str) -> str:
    """The split to take."""
    if wanted in source.unlabelled and wanted not in source.splits:
        raise UserError(field, source.unlabelled[wanted], "sort its images into one folder per class, or give predict")
    if wanted and wanted != WHOLE and [*source.splits] == [WHOLE]:
        raise UserError(
            f"there is no split {wanted!r}", remedy=f"{field} has no splits; leave `split` out to take all its images"
        )
    return choose_split(field, source.splits, wanted)
