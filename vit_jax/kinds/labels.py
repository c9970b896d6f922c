"""Labels as sources give them: names that are matched, and cells of a table that are names or numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..config.hints import nearest
from ..config.outputs import Outputs, composed, numbered_classes
from ..errors import UserError
from ..files.lines import quote

UNKNOWN = -1  # in a set: nobody knows whether the label is there


class Positives(NamedTuple):
    """What examples have that each part gets its share of: entry i says that example `rows[i]` has `columns[i]`."""

    rows: np.ndarray  # int [p]
    columns: np.ndarray  # int [p]


@dataclass(frozen=True)
class Labels:
    """The labels of all rows of a table, or of all items, as a source has them."""

    outputs: Outputs
    values: np.ndarray
    how: str = ""  # how the table has them, in words
    remarks: tuple[str, ...] = ()
    counted: bool = False  # no names of classes are stated: they are as many as the labels say


def match_names(
    field: str, names: Sequence[str], present: np.ndarray, network: Sequence[str], each: tuple[str, str]
) -> tuple[np.ndarray, str]:
    """The places of names of the data among those of a network: present int [k]."""
    known = [composed(name) for name in network]
    place = {name: k for k, name in enumerate(known)}
    used = [names[k] for k in present]
    twice = sorted({name for name in used if known.count(composed(name)) > 1}) if len(place) < len(network) else []
    if twice:
        raise UserError(field, f"several {each[1]} of the network are called {twice[0]!r}", "rename one of them")
    unknown = [name for name in used if composed(name) not in place]
    if not unknown:
        return np.array([place.get(composed(name), -1) for name in names], np.int32), ""
    in_order = np.arange(len(names), dtype=np.int32)
    if list(names) == numbered_classes(len(names)) and present[-1] < len(network):
        return in_order, f"its {each[1]} have no names: their numbers are taken as the network's"
    numbered = list(network) == numbered_classes(len(network))
    if numbered and len(names) == len(network):
        return in_order, f"the network's {each[1]} are only numbers: the data's are matched by order"
    listed = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
    ours = ", ".join(map(repr, network[:3])) + (f", ... {network[-1]!r}" if len(network) > 3 else "")
    hint = nearest(unknown[0], list(network)) if len(unknown) == 1 and not numbered else ""
    raise UserError(
        field,
        f"the network has no {each[0]} {listed}{hint}",
        f"its {len(network)} are {ours}: rename these {each[1]} of the data, or leave them out",
    )


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_ZERO_OR_ONE = re.compile(r"([01])(\.0*)?|(true|false)", re.IGNORECASE | re.ASCII)


def as_number(text: str) -> float | None:
    """The value of a text that is a finite decimal number; None of any other, such as 1,5 or nan or 1_000."""
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def with_comma(text: str) -> str:
    """A text such as 1,5 with a point in place of the comma; empty where it is no such number."""
    return text.replace(",", ".") if len(text) <= 400 and _COMMA.fullmatch(text) else ""


def zero_or_one(text: str) -> int | None:
    """0 or 1 (also 0.0, 1.0, False, True), -1 of an empty text, which is unknown, and None of any other."""
    match = _ZERO_OR_ONE.fullmatch(text)
    if match is None:
        return None if text else -1
    return int(match[1]) if match[1] else int(text.casefold() == "true")


def first_row(cells: Sequence[str], wrong: Callable[[str], bool]) -> int | None:
    """The first row whose cell is wrong."""
    bad = {cell for cell in {*cells} if wrong(cell)}
    return next((row for row, cell in enumerate(cells) if cell in bad), None) if bad else None


def no_number(rows: Any, row: int, column: int, text: str, why: str) -> UserError:
    """The error of a cell that is no number, or not 0 or 1."""
    remedy = "mend it, or remove the row"
    if pointed := with_comma(text):
        thousands = len(pointed.partition(".")[2]) == 3
        remedy = f"write {pointed.replace('.', '')}, or {pointed} if that is meant" if thousands else f"write {pointed}"
    return UserError(rows.where(row, column), f"is {quote(text)}, and {why}", remedy)


def refuse_empty(rows: Any, column: int, texts: Sequence[str], each: str) -> None:
    """Raise UserError where a cell is empty that needs a class or a number."""
    row = first_row(texts, lambda text: not text)
    if row is not None:
        raise UserError(rows.where(row, column), "is empty", f"write a {each}, or remove the row")


def joint_names(names: Sequence[str], what: str = "class") -> tuple[str, ...]:
    """A remark where the name of a class or label is made of those of others, as where a cell has several labels."""
    known = {*names}
    for separator in (" ", ",", ";", "|", "/", "+"):
        for name in names:
            parts = [*filter(None, map(str.strip, name.split(separator)))]
            if len(parts) > 1 and known.issuperset(parts):
                several = f"the {what} {quote(name)} is made of the names of others"
                return (f"{several}: if a cell has several labels, give `data.separator {quote(separator)}`",)
    return ()


def zeros_and_ones(
    rows: Any, columns: Sequence[int], texts: Sequence[Sequence[str]], why: str
) -> tuple[tuple[str, ...], np.ndarray, str]:
    """(the names of columns of 0 and 1, int8 [n, k] with -1 of an empty cell, that in words)."""
    values = np.empty((len(rows), len(columns)), np.int8)
    for k, (column, cells) in enumerate(zip(columns, texts, strict=True)):
        row = first_row(cells, lambda text: zero_or_one(text) is None)
        if row is not None:
            raise no_number(rows, row, column, cells[row], why)
        known = {cell: value for cell in {*cells} if (value := zero_or_one(cell)) is not None}
        values[:, k] = [known[cell] for cell in cells]
    names = tuple(rows.names[column] for column in columns)
    return names, values, f"{len(columns)} column{'s' if len(columns) > 1 else ''} of 0 and 1"


def first_of(columns: np.ndarray, wrong: np.ndarray) -> str:
    """The first of some wrong labels, with its place."""
    row, column = np.argwhere(wrong)[0].tolist()
    return f"{columns[row, column]} in row {row}" + (f", column {column}" if columns.shape[1] > 1 else "")
