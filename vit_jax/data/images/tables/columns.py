"""Which columns of a table have the file, the labels, the split and the group of each image: by name, or as stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....config.hints import nearest
from ....config.outputs import composed
from ....errors import Field, UserError
from ....kinds.labels import zero_or_one
from ..config import SPLIT_OF
from ..preprocess import EXTENSIONS
from .rows import Rows

FILES = ("file", "file_name", "filename", "path", "image", "image_id", "id")
HUGGING_FACE = "file_name"  # in metadata.csv and metadata.jsonl, whatever else is there
SPLIT, LABEL = "split", "label"
_EXAMPLES = 3
_LISTED = 12


@dataclass(frozen=True)
class Declared:
    """What a user states of a table; empty where the table's own names tell it."""

    labels: tuple[str, ...] = ()
    file_column: str = ""
    split_column: str = ""
    group: str = ""
    separator: str = ""
    target: str = ""  # the kind of the labels


@dataclass(frozen=True)
class Columns:
    """The places of the columns that are read; None of one that is not there."""

    file: int
    labels: tuple[int, ...]
    split: int | None
    group: int | None


def choose_columns(rows: Rows, stated: Declared, known: Sequence[str] = ()) -> Columns:
    """The columns of a table. Raises UserError, which lists them, where the labels cannot be told."""
    file = file_column(rows, stated)
    used = {file}
    group = _column_named(rows, "group", stated.group) if stated.group else None
    split = _column_named(rows, "split_column", stated.split_column) if stated.split_column else None
    if split is None and SPLIT not in stated.labels:
        split = next((i for i, name in enumerate(rows.names) if name.casefold() == SPLIT), None)
    used |= {column for column in (group, split) if column is not None}
    if stated.labels:
        labels = tuple(_column_named(rows, "labels", name) for name in stated.labels)
    else:
        labels = _by_name(rows, known, [i for i in range(len(rows.names)) if i not in used])
    taken = {"data.file_column": file, "data.split_column": split, "data.group": group}
    for field, column in taken.items():
        if column in labels:
            raise UserError(Field("data.labels"), f"is {rows.names[column]}, and so is {field}", "give another column")
    if len({*labels}) < len(labels) or (split is not None and split in (file, group)):
        raise UserError(Field("data.labels"), "names a column twice", "give each column once")
    return Columns(file, labels, split, group)


def file_column(rows: Rows, stated: Declared) -> int:
    """The column with the file of each image."""
    if stated.file_column:
        return _column_named(rows, "file_column", stated.file_column)
    found = [i for i, name in enumerate(rows.names) if name.casefold() in FILES]
    found = [i for i in found if rows.names[i] not in stated.labels] or found
    if rows.of_hugging_face and HUGGING_FACE in rows.names:
        found = [rows.names.index(HUGGING_FACE)]
    if len(found) == 1:
        return found[0]
    what = f"{' and '.join(rows.shown(i) for i in found)} may all name the images" if found else "no column is called "
    what += "" if found else f"{', '.join(FILES[:-1])} or {FILES[-1]} ({listed(rows, range(len(rows.names)))})"
    remedy = f"give the column of the files, such as `data.file_column {rows.shown(found[0] if found else 0)}`"
    if any(Path(name).suffix.lower() in EXTENSIONS for name in rows.names):  # the name of an image, not of a column
        remedy = "write the names of the columns into its first line, such as image,label"
    raise UserError(rows.title, what, remedy)


def _column_named(rows: Rows, field: str, name: str) -> int:
    """The column of a name that a field of data has. Raises UserError."""
    same = [i for i, each in enumerate(rows.names) if composed(each) == composed(name.strip())]
    if not same:
        what = f"is {name}, and {rows.title} has no such column{nearest(name, [*rows.names])}"
        raise UserError(Field(f"data.{field}"), what, "give the name of a column, as its first line has it")
    return same[0]


def _by_name(rows: Rows, known: Sequence[str], left: Sequence[int]) -> tuple[int, ...]:
    """The columns of labels, where none are stated, of those that are left. Raises UserError."""
    place = {composed(rows.names[i]): i for i in left}
    names = [*map(composed, known)]
    there = tuple(place[name] for name in names if name in place)
    if there and len(there) == len(names):
        return there
    if len(left) == 1:
        return (left[0],)
    called = [i for i in left if rows.names[i].casefold() == LABEL]
    if len(called) == 1:
        return (called[0],)
    if len(there) > 1:
        return there
    if not left:
        raise UserError(rows.title, f"has no column of labels beside {', '.join(rows.names[:_LISTED])}", "add one")
    likely = [i for i in left if _zeros_and_ones(rows, i)]
    shown = likely if len(likely) > 1 else [left[-1]]
    raise UserError(
        rows.title,
        f"which columns are the labels? {listed(rows, left)}",
        f"give one or several, such as `data.labels {' '.join(rows.shown(i) for i in shown)}`",
    )


def _zeros_and_ones(rows: Rows, column: int) -> bool:
    cells = {row[column] for row in rows.cells}
    return all(isinstance(cell, str) and zero_or_one(cell.strip()) is not None for cell in cells)


def listed(rows: Rows, columns: Sequence[int]) -> str:
    """Columns of a table, with the first different values of each."""
    shown = []
    for column in columns[:_LISTED]:
        values = list(dict.fromkeys(_value(row[column]) for row in rows.cells[:1000]))
        more = ", ..." if len(values) > _EXAMPLES else ""
        shown.append(f"{rows.shown(column)} ({', '.join(values[:_EXAMPLES])}{more})")
    return ", ".join(shown) + (f" and {len(columns) - _LISTED} more" if len(columns) > _LISTED else "")


def _value(cell: object) -> str:
    text = cell if isinstance(cell, str) else " ".join(cell) if isinstance(cell, tuple) else "{...}"
    return "nothing" if not text.strip() else text if len(text) <= 30 else text[:30] + "..."


def split_of(name: str) -> str | None:
    """train, validation or test, by any of the names that people give them; None for another name."""
    return SPLIT_OF.get(name.strip().casefold())
