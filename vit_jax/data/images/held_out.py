"""Splits that a source lacks, held out from train: shares or a fold, alike in all labels, groups whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import Field, UserError
from ..folds import assign_folds
from ..order import FOLDS, TEST, VALIDATION
from .config import ImageData
from .labels import labels_of
from .sources.base import Source


def hold_out_splits(data: ImageData, splits: Mapping[str, Any], source: Source, seed: int) -> dict[str, Any]:
    """train, validation and test of a source."""
    splits, kind, groups = {**splits}, labels_of(source.outputs), source.groups.get("train")
    if data.folds:
        _hold_out_fold(data, splits, source)
    # Test first and without the run's seed, so that it does not depend on the seed or on data.validation.
    for name, share, salt in (("test", data.test, (TEST,)), ("validation", data.validation, (VALIDATION, seed))):
        if name in splits or not share:
            continue
        train = splits["train"]
        group = None if groups is None else groups[train.rows]
        stay, held = kind.hold_out(train.labels, group, share, *salt)
        if not len(held):
            what, remedy = f"{share} of {len(train)} examples leaves {name} empty", "give a larger share, or 0 for no "
            if group is not None and (group == group[0]).all():
                one, other = f"group ({data.group})", "leave data.group out"
                if not data.group:
                    one, other = "block, which blocks hold out whole", "give `data.order global`"
                what, remedy = f"{what}: they are one {one}", f"{other}, or give 0 for no "
            raise UserError(Field(f"data.{name}"), what, f"{remedy}such split")
        splits["train"], splits[name] = train.subset(stay), train.subset(held)
    return {name: splits[name] for name in ("train", "validation", "test") if name in splits}


def _hold_out_fold(data: ImageData, splits: dict[str, Any], source: Source) -> None:
    """Hold out a fold of train, as test or else as validation. Raises UserError."""
    name = next((each for each in ("test", "validation") if each not in splits), "")
    if not name:
        raise UserError(
            Field("data.folds"),
            f"is {data.folds}, but the data has validation and test",
            "leave it out, or give train alone",
        )
    train, kind, names, groups = splits["train"], labels_of(source.outputs), source.outputs.names, source.groups
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
