"""Which classes and which labels the splits of a source have, and what is said where some have none."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from .config import ImageData
from .sources.base import Source


def check_counted(field: str, source: Source, classes: int = 0) -> None:
    """Check labels without names, which are the numbers of classes.

    Args:
        field: begins what errors say.
        source: of the labels.
        classes: those of a trained network that is only evaluated, and whose data may lack some; 0: there is none.

    Raises:
        UserError: they seem not to begin at 0, or nothing is learned of one.
    """
    labels = {name: np.unique(each.labels) for name, each in source.splits.items() if len(each.labels)}
    first, last = min(each[0] for each in labels.values()), max(each[-1] for each in labels.values())
    if first > 0 and (not classes or last >= classes):
        raise UserError(
            field,
            f"labels go from {first} to {last}, and none is 0" + (f" of {classes} classes" if classes else ""),
            f"subtract {first} if they begin at {first}; if not, name all classes from 0 on as class_names",
        )
    for name, each in labels.items() if not classes else ():
        if len(extra := np.setdiff1d(each, labels["train"])):
            raise UserError(
                field, f"label {extra[0]} is in {name} but not in train", "add examples of it to train, or leave it out"
            )


def unlabelled_remarks(data: ImageData, source: Source) -> tuple[str, ...]:
    """Which splits have no labels."""
    remarks = []
    for name, why in source.unlabelled.items():
        share = data.test if name == "test" else data.validation
        instead = f"; {share:.0%} of train is held out as {name} in its place (data.{name})" if share else ""
        remarks.append(f"{why} and is left out{instead}")
    return tuple(remarks)
