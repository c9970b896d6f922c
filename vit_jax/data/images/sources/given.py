"""Arrays of images and labels that were given in Python, as a source."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np

from ....errors import UserError
from ...base import Given
from ..config import GIVEN
from ..wide import Range
from .arrays import Arrays, arrays_source, arrays_split
from .base import Source, first_line

_SPLITS = ("train", "validation", "test")


def open_given(given: Given, stated: Range = (), target: str = "") -> Source:
    """The source of (images, labels), or of {split: (images, labels)}, brought to 8 bits by a `stated` range.

    `target` is what the labels are, where that is stated. Raises UserError.
    """
    names = given.class_names
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise UserError("class_names", "give a list of texts, one for each class, in the order of their numbers")
    splits: dict[str, Arrays] = {}
    for name, value in given.splits(_SPLITS).items():
        first = next(iter(splits.values()), None)
        splits[name] = _given_split(name, value, stated, first.kind if first else target)
    return arrays_source(GIVEN, tuple(names), splits)


def _given_split(name: str, value: Any, stated: Range, target: str) -> Arrays:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        what = f"{type(value).__name__} of {len(value)}" if isinstance(value, Sized) else type(value).__name__
        raise UserError("data", f"{name} is a {what}", "give a pair of arrays, (images, labels)")
    try:
        images, labels = map(np.asarray, value)
    except ValueError as error:  # a list of arrays of several sizes
        raise UserError("data", f"{name} has images of several sizes", "give one array [n, h, w, C]") from error
    except (TypeError, RuntimeError) as error:  # a tensor on another device, or with a gradient
        raise UserError("data", f"{name} cannot be read ({first_line(error)})", "give numpy arrays") from error
    return arrays_split("data", f"images of {name}", images, labels, f"labels of {name}", stated, target)
