"""Images that a trained network is only evaluated on: any source, its classes matched with those of the network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..config.outputs import Outputs
from ..errors import UserError
from .base import Given
from .images.config import FOLDER, ImageData
from .images.labels import labels_of
from .images.pixels import Images, sizes
from .images.preprocess import Preprocess
from .images.sources.arrays import Arrays
from .images.sources.base import Source
from .images.sources.folders import open_test_folder
from .images.sources.layout import WHOLE
from .images.sources.open import check_target, folder_of, open_image_source, table_of
from .images.splits import Split
from .images.tables.open import declared_in, open_test_table
from .unreadable import left_out


@dataclass(frozen=True)
class Other:
    """One split of other data than that which a network was trained on."""

    name: str  # of the split; WHOLE where the data has no splits
    split: Any  # a Split, or Sentences
    total: int
    remarks: tuple[str, ...]


def open_other_images(
    data: ImageData, wanted: str, preprocess: Preprocess, outputs: Outputs, given: Given | None = None
) -> Other:
    """Open a split of images for evaluation, decoded when they are taken; their labels are the network's."""
    field = f"data.source {data.source}" if given is None else "data"
    range_ = data.range or preprocess.range
    data = replace(data, range=range_, target=outputs.kind)  # type: ignore[arg-type]  # what is measured is a Target
    preprocess = replace(preprocess, range=data.range)
    source = _open(data, outputs, given)
    check_target(data, source)
    if given is not None and given.whole:
        source = replace(source, splits={WHOLE: source.splits["train"]})
    name = _choose_split(field, source, wanted)
    unlabelled = [f"{why} and is left out" for why in source.unlabelled.values()]
    examples = source.splits[name]
    _check_examples(field, name, source, preprocess)
    kind = labels_of(outputs)
    labels, remark = kind.matched(field, name, source, outputs.names)
    images, rows = Images(examples, preprocess, False, data.threads), np.arange(len(examples.labels))
    images.replaces = data.skip_unreadable and examples.known is not None
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
            f"its images are of {len(split.classes)} of the network's {kind.contents(outputs)}; "
            "macro averages are over these"
        )
    total = sum(len(each.labels) for each in source.splits.values())
    return Other(name, split, total, tuple(filter(None, remarks)))


def _open(data: ImageData, outputs: Outputs, given: Given | None) -> Source:
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
    if preprocess.channels not in (1, 3) and not (
        isinstance(examples, Arrays) and preprocess.leaves_unchanged(*sizes(examples.pixels.shape[1:]))
    ):
        raise UserError(
            field,
            f"the network takes {preprocess.channels} channels, which image files do not have",
            f"give an .npz with images {[*preprocess.image, preprocess.channels]}",
        )
    if isinstance(examples, Arrays) and (fault := examples.extent.fault(preprocess.range)):
        raise UserError(field, f"{examples.title} {fault}", "give pixels of more, as in training")


def _choose_split(field: str, source: Source, wanted: str) -> str:
    """The split to take."""
    if wanted in source.splits:
        return wanted
    if not wanted:
        return next((name for name in ("test", "validation") if name in source.splits), next(iter(source.splits)))
    if wanted in source.unlabelled:
        raise UserError(field, source.unlabelled[wanted], "sort its images into one folder per class, or give predict")
    if list(source.splits) == [WHOLE]:
        raise UserError(
            f"there is no split {wanted!r}", remedy=f"{field} has no splits; leave `split` out to take all its images"
        )
    raise UserError(
        f"there is no split {wanted!r}", remedy=f"{field} has {', '.join(source.splits)}; choose one of them"
    )
