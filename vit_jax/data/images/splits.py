"""Examples of a split, a set of images as its splits, and those that a source lacks, held out from train.

What is held out, shares or a fold, is alike in all labels, and keeps groups whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...config.outputs import Outputs
from ...errors import Field, UserError
from ...kinds.table import kind_of
from ..base import SPLITS, Data
from ..order import FOLDS, Order, SampledOrder, Sampling, assign_folds, count_taken, hold_out, hold_out_groups, lacking
from .blocks import BlockOrder, Blocks, Pictured
from .config import ImageData
from .high_bit_depth import remark_on
from .pixels import Images
from .preprocess import Preprocess
from .sources.base import Source


class Split(Pictured):
    """The images and labels of one split: the given rows of a source's split."""

    def __init__(self, images: Images, rows: np.ndarray, outputs: Outputs):
        super().__init__(images, rows)
        self.outputs = outputs  # what the labels are; of numbers with the mean and std that batches are normalised by
        self.labels: np.ndarray = images.examples.labels[rows]  # [n] or [n, K], see kinds/
        self.classes: np.ndarray | None = None  # int, those that macro averages are over; None: all of the network
        self.groups: np.ndarray | None = None  # int [n], of examples that belong together; None: each is by itself

    def subset(self, indices: np.ndarray) -> Split:
        """A split of only these examples."""
        few = Split(self.images, self.rows[indices], self.outputs)
        few.classes, few.groups = self.classes, None if self.groups is None else self.groups[indices]
        return few

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"image": uint8 [k, h, w, C], "label": [k] or [k, K]}; the label as its kind says."""
        images = self.take(indices)  # before the labels: what cannot be read may have those of another
        labels = self.source_labels[self.images.rows_of_labels(self.rows[indices])]
        return {"image": images, "label": kind_of(self.outputs).in_batch(labels)}

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The same, with "row", int32 [k]: the places of the examples in the source's split."""
        return {**self.examples(indices), "row": self.rows[indices].astype(np.int32)}

    @property
    def source_labels(self) -> np.ndarray:
        """The labels of all examples of the source's split; this split has some of them."""
        return self.images.examples.labels

    def take(self, indices: np.ndarray) -> np.ndarray:
        """The images at these indices, int [k]: uint8 [k, h, w, C]; the label of one that is replaced follows it."""
        rows = self.rows[indices]
        images = self.images.take(rows)
        if self.images.stand_ins:
            self.labels[indices] = self.source_labels[self.images.rows_of_labels(rows)]
        return images

    def wide_remarks(self) -> tuple[str, ...]:
        """Remarks on pixels of more than 8 bits in the images that were taken."""
        wide = [*self.images.wide.values()]
        return remark_on(np.array(wide).reshape(-1, 4), self.images.preprocess.range)


@dataclass(frozen=True)
class Dataset(Data):
    """A set of labelled images."""

    outputs: Outputs
    preprocess: Preprocess
    repeats: int = 1
    sampling: Sampling = "natural"
    stands_in: bool = False  # see sources/base.py
    blocks: Blocks | None = None
    # What the loss needs of the labels of train, as entries of the metadata: {name: a number for each output}.
    of_loss: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class, label or number."""
        return self.outputs.names

    @property
    def contents(self) -> str:
        """The number of classes, labels or numbers, as printed."""
        return kind_of(self.outputs).contents

    def metadata(self) -> dict[str, Any]:
        """The preprocessing and what the labels are, for config.json."""
        return {"preprocess": self.preprocess.to_dict(), **self.outputs.to_metadata(), **self.of_loss}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of outputs, as a field of the network's config."""
        return {"classes": len(self.outputs.names)}

    def order(self, batch: int, seed: int, batches: int = 0) -> Order | SampledOrder | BlockOrder:
        """The order of training."""
        n = count_taken(len(self.splits["train"]), batch, batches)
        if self.blocks is not None and not batches:
            return BlockOrder(self.blocks, batch, seed)
        if self.sampling != "natural" and not batches:
            return SampledOrder(self.splits["train"].labels, batch, seed, self.sampling)
        return Order(n, batch, seed, repeats=1 if batches else self.repeats)


def hold_out_splits(data: ImageData, splits: Mapping[str, Any], source: Source, seed: int) -> dict[str, Any]:
    """train, validation and test of a source."""
    splits, kind, groups = {**splits}, kind_of(source.outputs), source.groups.get("train")
    if data.folds:
        _hold_out_fold(data, splits, source)
    for name, share, salt in lacking(data, [*splits], seed):
        train = splits["train"]
        group = None if groups is None else groups[train.rows]
        if group is None and train.labels.ndim == 1:  # each has one class
            stay, held = hold_out(train.labels, share, *salt)
        else:
            stay, held = hold_out_groups(len(train), kind.positives(train.labels), group, share, *salt)
        if not len(held):
            what, remedy = f"{share} of {len(train)} examples leaves {name} empty", "give a larger share, or 0 for no "
            if group is not None and (group == group[0]).all():
                one, other = f"group ({data.group})", "leave data.group out"
                if not data.group:
                    one, other = "block, which blocks hold out whole", "give `data.order global`"
                what, remedy = f"{what}: they are one {one}", f"{other}, or give 0 for no "
            raise UserError(Field(f"data.{name}"), what, f"{remedy}such split")
        splits["train"], splits[name] = train.subset(stay), train.subset(held)
    return {name: splits[name] for name in SPLITS if name in splits}


def _hold_out_fold(data: ImageData, splits: dict[str, Any], source: Source) -> None:
    """Hold out a fold of train, as test or else as validation. Raises UserError."""
    name = next((each for each in ("test", "validation") if each not in splits), "")
    if not name:
        raise UserError(
            Field("data.folds"),
            f"is {data.folds}, but the data has validation and test",
            "leave it out, or give train alone",
        )
    train, kind, names, groups = splits["train"], kind_of(source.outputs), source.outputs.names, source.groups
    group = groups["train"][train.rows] if groups else None
    parts = len(train) if group is None else len(np.unique(group))
    if parts < data.folds:
        counted = "examples" if group is None else f"groups ({data.group})"
        held = f"are {parts} {counted}" if parts > 1 else f"is 1 of the {counted}"
        what = f"is {data.folds}, and there {held}"
        raise UserError(Field("data.folds"), what, f"give {parts} at most" if parts > 1 else "leave it out")
    fold = assign_folds(len(train), kind.positives(train.labels), group, data.folds, FOLDS)
    splits["train"], splits[name] = (train.subset(np.flatnonzero(on)) for on in (fold != data.fold, fold == data.fold))
    few = "give fewer folds, or more examples"
    for k in range(data.folds):  # all of them, so that none fails after others have been trained
        there, learned = (kind.present(train.labels[on]) for on in (fold == k, fold != k))
        if len(alone := np.setdiff1d(there, learned)):
            raise UserError(Field("data.folds"), f"is {data.folds}, and only fold {k} has {names[alone[0]]}", few)
        if len(there) < min(kind.least, len(names)):
            has = ", ".join(names[k] for k in there) or "unknown labels"
            raise UserError(Field("data.folds"), f"is {data.folds}, and fold {k} has only {has}", few)


def unlabelled_remarks(data: ImageData, source: Source) -> tuple[str, ...]:
    """Which splits have no labels."""
    remarks = []
    for name, why in source.unlabelled.items():
        share = data.test if name == "test" else data.validation
        instead = f"; {share:.0%} of train is held out as {name} in its place (data.{name})" if share else ""
        remarks.append(f"{why} and is left out{instead}")
    return tuple(remarks)
