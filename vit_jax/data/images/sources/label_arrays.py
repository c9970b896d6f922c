"""Arrays of labels: what they are, a class, a set of labels or numbers, and what is refused or asked."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ....config.outputs import KINDS
from ....errors import UserError
from ..labels import UNKNOWN

_MOST_CLASSES = 1 << 20  # an array with greater labels does not hold class numbers


def typed_labels(field: str, title: str, labels: np.ndarray, n: int, target: str) -> tuple[str, np.ndarray]:
    """What an array of labels is, and its labels as `Examples` has them.

    Whole numbers, one an image, are classes; several 0 and 1 an image are a set of labels, in which -1 is unknown; and
    floating-point numbers are numbers.
    """
    one, rows = labels.size == n, labels.ndim == 2 and len(labels) == n and labels.size
    if labels.dtype.kind not in "iubf" or not (one or rows):
        raise UserError(
            field,
            f"{title} is {labels.dtype} of shape {list(labels.shape)}",
            f"give one integer for each of the {n} images, or a row of 0 and 1, or of numbers",
        )
    columns = labels.reshape(n, 1) if one else labels
    finite = np.isfinite(columns) | (np.isnan(columns) if target == "set" else False)
    if not finite.all():
        raise UserError(field, f"{title} has {_first(columns, ~finite)}", "leave these images out")
    kind = target or _kind_of(field, title, columns)
    return kind, {"class": _classes, "set": _sets, "number": _numbers}[kind](field, title, columns)


def _kind_of(field: str, title: str, columns: np.ndarray) -> str:
    """The only kind that labels [n, K] can be. Raises UserError where there are several, or none."""
    one, fractions = columns.shape[1] == 1, columns.dtype.kind == "f"
    binary = bool(np.isin(columns, (0, 1, UNKNOWN)).all())
    if columns.dtype.kind in "iu" and one:
        return "class"
    one_hot = binary and bool((columns.sum(1) == 1).all())
    if binary and not one and (fractions or one_hot):
        what = f"is {columns.dtype} of 0 and 1" + (", one 1 in each row" if one_hot else "")
        kinds = (*(["class"] if one_hot else []), "set", *(["number"] if fractions else []))
        raise _ambiguous(field, f"{title} {what}", kinds)
    if binary and not fractions:
        if one:
            raise _ambiguous(field, f"{title} is {columns.dtype}", ("class", "set"))
        return "set"
    if fractions and one and (columns == np.round(columns)).all():
        raise _ambiguous(field, f"{title} is {columns.dtype}, and all are whole numbers", ("class", "number"))
    if fractions:
        return "number"
    raise _ambiguous(field, f"{title} has {columns.shape[1]} whole numbers in a row", ("number",))


def _ambiguous(field: str, what: str, kinds: Collection[str]) -> UserError:
    ways = " or ".join(f"`data.target {kind}` ({KINDS[kind]})" for kind in kinds)
    return UserError(field, what, f"say what they are: {ways}")


def _classes(field: str, title: str, columns: np.ndarray) -> np.ndarray:
    """int32 [n], of one class an image or of one 1 a row."""
    if columns.shape[1] > 1:
        if not (np.isin(columns, (0, 1)).all() and (columns.sum(1) == 1).all()):
            raise UserError(
                field, f"{title} has shape {list(columns.shape)}", "give one class an image, or one 1 in each row"
            )
        return columns.argmax(1).astype(np.int32)
    if (columns != np.round(columns)).any():
        raise UserError(
            field, f"{title} has {_first(columns, columns != np.round(columns))}", "number the classes from 0"
        )
    if columns.size and not 0 <= columns.min() <= columns.max() < _MOST_CLASSES:
        raise UserError(field, f"{title} go from {columns.min()} to {columns.max()}", "number the classes from 0")
    return columns[:, 0].astype(np.int32)


def _sets(field: str, title: str, columns: np.ndarray) -> np.ndarray:
    """int8 [n, K] of 1, 0 and -1 or NaN where nobody knows."""
    known = np.where(np.isnan(columns), UNKNOWN, columns)
    if (wrong := ~np.isin(known, (0, 1, UNKNOWN))).any():
        raise UserError(
            field, f"{title} has {_first(columns, wrong)}", "give 1 where a label is there, 0 where not, -1 if unknown"
        )
    if (known == UNKNOWN).any() and not (known == 0).any():
        raise UserError(
            field, f"{title} is of -1 and 1 without any 0", "give 0 where a label is not there; -1 means unknown"
        )
    return known.astype(np.int8)


def _numbers(field: str, title: str, columns: np.ndarray) -> np.ndarray:
    """float64 [n, K]."""
    return columns.astype(np.float64)


def _first(columns: np.ndarray, wrong: np.ndarray) -> str:
    """The first of some wrong labels, with its place."""
    row, column = np.argwhere(wrong)[0].tolist()
    return f"{columns[row, column]} in row {row}" + (f", column {column}" if columns.shape[1] > 1 else "")
