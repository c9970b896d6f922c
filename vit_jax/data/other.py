"""Images that a trained network is only evaluated on: any source, its classes matched with those of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..config.nearest import nearest
from ..errors import UserError
from .base import Given
from .images.classes import check_counted
from .images.config import ImageData, composed, numbered_classes
from .images.pixels import Images, sizes
from .images.preprocess import Preprocess
from .images.sources.arrays import Arrays
from .images.sources.base import Source
from .images.sources.folders import open_test_folder
from .images.sources.layout import WHOLE
from .images.sources.open import open_image_source
from .images.splits import Split
from .unreadable import left_out


@dataclass(frozen=True)
class Other:
    """One split of other data than that which a network was trained on."""

    name: str  # of the split; WHOLE where the data has no splits
    split: Any  # a Split, or Sentences
    total: int  # examples of all splits
    remarks: tuple[str, ...]  # sentences for the user


def open_other_images(
    data: ImageData, wanted: str, preprocess: Preprocess, class_names: Sequence[str], given: Given | None = None
) -> Other:
    """Open a split of images for evaluation, decoded when they are taken; their labels are the network's.

    Args:
        data: where the images are; of its fields only source, dir, threads, skip_unreadable and range count.
        wanted: the split; empty: test, else validation, else the only one. A folder without splits is taken as a whole.
        preprocess: how the network takes images.
        class_names: the classes of the network; only numbers if they have no names.
        given: images from Python, in place of `data.source`.

    Raises:
        UserError: where there is no such data, and for classes that the network does not have.
    """
    field = f"data.source {data.source}" if given is None else "data"
    data = replace(data, range=data.range or preprocess.range)
    preprocess = replace(preprocess, range=data.range)
    folder = data.source.startswith("folder:")
    source = open_test_folder(data.source.removeprefix("folder:")) if folder else open_image_source(data, given)
    if given is not None and given.whole:
        source = replace(source, splits={WHOLE: source.splits["train"]})
    name = _choose_split(field, source, wanted)
    unlabelled = [f"{why} and is left out" for why in source.unlabelled.values()]
    examples = source.splits[name]
    _check_examples(field, name, source, preprocess, len(class_names))
    places, remark = _match_classes(field, source.class_names, np.unique(examples.labels), class_names)
    images, rows = Images(examples, preprocess, False, data.threads), np.arange(len(examples.labels))
    unreadable = [*images.load().unreadable] if data.skip_unreadable else []
    if len(unreadable) == len(rows):
        raise UserError(
            field, f"none of its {len(rows):,} images can be read, such as {examples.name(0)}", "give others"
        )
    examples.labels = places[examples.labels]
    split = Split(images, np.delete(rows, unreadable))
    split.classes = np.unique(split.labels)
    remarks = [remark, *unlabelled, *source.remarks]
    if unreadable:
        remarks.append(left_out([examples.name(row) for row in unreadable]))
    if len(split.classes) < len(class_names):
        remarks.append(
            f"its images are of {len(split.classes)} of the network's {len(class_names)} classes; "
            "macro averages are over these"
        )
    total = sum(len(each.labels) for each in source.splits.values())
    return Other(name, split, total, tuple(filter(None, remarks)))


def _check_examples(field: str, name: str, source: Source, preprocess: Preprocess, classes: int) -> None:
    """Raise UserError about the examples of a split that a network of so many classes cannot be measured on."""
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
    if source.counted:
        check_counted(field, source, classes)
    present = np.unique(examples.labels)
    if present[0] < 0 or present[-1] >= len(source.class_names):
        of = "" if name == WHOLE else f" of its {name} split"
        raise UserError(
            field,
            f"labels{of} go from {present[0]} to {present[-1]} but there are {len(source.class_names)} classes",
            "number them from 0",
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
            f"there is no split {wanted!r}", remedy=f"{field} has no splits; leave --split out to take all its images"
        )
    raise UserError(
        f"there is no split {wanted!r}", remedy=f"{field} has {', '.join(source.splits)}; choose one of them"
    )


def _match_classes(
    field: str, names: Sequence[str], present: np.ndarray, network: Sequence[str]
) -> tuple[np.ndarray, str]:
    """(the network's class of each class of the data, int32; a remark where they are not matched by name).

    Only the classes that are `present` have to be the network's: the others' places are -1.
    """
    known = [composed(name) for name in network]
    place = {name: k for k, name in enumerate(known)}
    used = [names[k] for k in present]
    twice = sorted({name for name in used if known.count(composed(name)) > 1}) if len(place) < len(network) else []
    if twice:
        raise UserError(field, f"several classes of the network are called {twice[0]!r}", "rename one of them")
    unknown = [name for name in used if composed(name) not in place]
    if not unknown:
        return np.array([place.get(composed(name), -1) for name in names], np.int32), ""
    if list(names) == numbered_classes(len(names)) and present[-1] < len(network):
        return np.arange(
            len(names), dtype=np.int32
        ), "its classes have no names: their numbers are taken as the network's"
    numbered = list(network) == numbered_classes(len(network))
    if numbered and len(names) == len(network):
        return np.arange(
            len(names), dtype=np.int32
        ), "the network's classes are only numbers: the data's are matched by order"
    listed = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
    ours = ", ".join(map(repr, network[:3])) + (f", ... {network[-1]!r}" if len(network) > 3 else "")
    hint = nearest(unknown[0], list(network)) if len(unknown) == 1 and not numbered else ""
    raise UserError(
        field,
        f"the network has no class {listed}{hint}",
        f"its {len(network)} are {ours}: rename these classes of the data, or leave them out",
    )
