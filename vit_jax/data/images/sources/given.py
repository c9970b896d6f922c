"""Images and labels that were given in Python, as a source: arrays, lists, or a sequence of examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....config.hints import nearest
from ....errors import UserError
from ...base import Given
from ..config import GIVEN
from ..high_bit_depth import Range
from .arrays import Arrays, arrays_source, arrays_split
from .base import Source, first_line
from .label_arrays import typed_labels
from .sequences import Sequenced, as_image, class_names_of, halves

Split = tuple[Any, np.ndarray]
_SPLITS = ("train", "validation", "test")


def open_given(given: Given, stated: Range = (), target: str = "") -> Source:
    """The source of splits that Python gave."""
    if isinstance(given.class_names, str) or not all(isinstance(name, str) for name in given.class_names):
        raise UserError("class_names", "give a list of texts, one for each class, in the order of their numbers")
    values = given.splits(_SPLITS)
    pairs = {name: _pair(name, value) for name, value in values.items()}
    names = tuple(given.class_names) or next(filter(None, (class_names_of(value) for value in values.values())), ())
    if any(labels.dtype.kind in "US" for _, labels in pairs.values()):
        names, pairs = _numbered(pairs, names)
    splits: dict[str, Arrays | Sequenced] = {}
    for name, (images, labels) in pairs.items():
        kind = next(iter(splits.values())).kind if splits else target
        if isinstance(images, np.ndarray):
            splits[name] = arrays_split("data", f"images of {name}", images, labels, f"labels of {name}", stated, kind)
            continue
        if len(labels):
            as_image(images(0), f"{name}[0]")  # refused as what it is, and not as unreadable
            kind, labels = typed_labels("data", f"labels of {name}", labels, len(labels), kind)
        splits[name] = Sequenced(images, labels, name, kind or "class")
    return arrays_source(GIVEN, names, splits)


def _pair(name: str, value: Any) -> Split:
    """The images of a split, as `halves` gives them, and its labels as an array."""
    images, labels = halves(name, value)
    return images, _labels(name, labels)


def _labels(name: str, labels: Any) -> np.ndarray:
    """Labels as an array. Raises UserError where they are none."""
    try:
        if isinstance(labels, (list, tuple)):
            labels = [np.asarray(each) if hasattr(each, "__array__") else each for each in labels]
        array = np.asarray(labels)
    except ValueError as error:
        what, remedy = f"labels of {name} are of several lengths", "give one class an image, or a row of 0 and 1"
        raise UserError("data", what, remedy) from error
    except (TypeError, RuntimeError) as error:
        raise UserError("data", f"labels of {name} cannot be read ({first_line(error)})", "give an array") from error
    if array.dtype == object and array.size and all(isinstance(each, str) for each in array.ravel()):
        return array.astype(str)
    return array


def _numbered(pairs: Mapping[str, Split], names: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Split]]:
    """(the names of classes, the splits with their numbers) of labels that are names.

    Without `names`, those of train are taken, in alphabetical order. Raises UserError on another name, and where only
    some splits have names.
    """
    first = next(iter(pairs))
    known = list(names) or sorted({str(label) for label in np.unique(pairs[first][1])})
    place, out = {name: k for k, name in enumerate(known)}, {}
    for split, (images, labels) in pairs.items():
        texts = [str(label) for label in labels.ravel()]
        if labels.dtype.kind not in "US" or labels.size != len(labels):
            what = f"labels of {split} are {labels.dtype} of shape {list(labels.shape)}, and those of {first} names"
            raise UserError("data", what, "give one name for each image in all splits")
        if unknown := sorted({*texts} - place.keys()):
            of = "class_names" if names else first
            raise UserError(
                "data", f"labels of {split} have {unknown[0]!r}, which is not in {of}{nearest(unknown[0], known)}"
            )
        out[split] = (images, np.array([place[text] for text in texts], np.int32))
    return tuple(known), out
