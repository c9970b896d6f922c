"""What columns of labels mean: a class, a set of labels, or numbers; asked where a table can be read in two ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....config.outputs import Outputs
from ....errors import Field, UserError
from ....files.lines import quote
from ..config import composed
from .columns import Declared, as_number, with_comma, zero_or_one
from .rows import Rows

LARGEST = 1 << 29  # images times labels of a set
_CLASS, _SET, _NUMBER = (f"`data.target {kind}`" for kind in ("class", "set", "number"))
_WANTED = {"class": "write a class, or remove the row", "number": "write a number, or remove the row"}


@dataclass(frozen=True)
class Labels:
    """The labels of all rows of a table, or of all items."""

    outputs: Outputs
    values: np.ndarray  # of classes int32 [n], of sets int8 [n, K], -1 where unknown, of numbers float64 [n, K]
    how: str = ""  # how the table has them, in words
    remarks: tuple[str, ...] = ()
    counted: bool = False  # no names of classes are stated: they are as many as the labels say


def read_labels(rows: Rows, columns: Sequence[int], stated: Declared) -> Labels:
    """The labels in some columns."""
    several = len(columns) > 1
    if stated.separator and several:
        what = f"is {quote(stated.separator)}, and data.labels are {len(columns)} columns"
        raise UserError(Field("data.separator"), what, "leave it out, or give one column")
    if stated.separator and stated.target not in ("", "set"):
        what = f"is {quote(stated.separator)}, and data.target is {stated.target}"
        raise UserError(Field("data.separator"), what, "it is for sets of labels: leave one of them out")
    if not several and rows.has_lists(columns[0]):
        return _of_lists(rows, columns[0], stated)
    if stated.separator:
        cells = [tuple(filter(None, map(str.strip, text.split(stated.separator)))) for text in rows.texts(columns[0])]
        found = _set_of_names(rows, columns[0], cells, f"separated by {quote(stated.separator)}")
        if any(len(cell) > 1 for cell in cells):
            return found
        alone = f"no cell has two labels with {quote(stated.separator)} between them"
        return replace(found, remarks=(alone, *_joint_names(found.outputs.names, "label")))
    texts = [rows.texts(column) for column in columns]
    kind = stated.target or (_kind_of_several if several else _kind_of_one)(rows, columns, texts)
    if kind == "number":
        return _numbers(rows, columns, texts)
    if kind == "class" and not several:
        return _class_of_names(rows, columns[0], texts[0])
    if kind == "set" and not several and any(zero_or_one(text) is None for text in texts[0]):
        what = f"column {rows.shown(columns[0])} holds names, and data.target is set"
        raise UserError(rows.title, what, 'say what separates several in a cell, such as `data.separator " "`')
    return _zeros_and_ones(rows, columns, texts, kind)


def _kind_of_one(rows: Rows, columns: Sequence[int], texts: Sequence[Sequence[str]]) -> str:
    """The kind of one column: class of names. Raises UserError where there are numbers in it."""
    first: dict[bool, int] = {}  # {whether a number: the first row of such}
    for row, text in enumerate(texts[0]):
        if text:
            first.setdefault(as_number(text) is not None or bool(with_comma(text)), row)
    if True not in first:
        return "class"
    column = columns[0]
    if False in first:
        number, name = (f"{quote(texts[0][first[like]])} (line {rows.lines[first[like]]})" for like in (True, False))
        what = f"column {rows.shown(column)} holds numbers such as {number} and texts such as {name}"
    else:
        what = f"column {rows.shown(column)} holds numbers ({', '.join(dict.fromkeys(texts[0][:3]))}, ...)"
    raise UserError(rows.title, f"{what}: are they classes or amounts?", f"give {_CLASS} or {_NUMBER}")


def _kind_of_several(rows: Rows, columns: Sequence[int], texts: Sequence[Sequence[str]]) -> str:
    """set of 0 and 1, else number. Raises UserError where neither, and where one 1 in each row may mean a class."""
    wrong = [_first(column, lambda text: zero_or_one(text) is None) for column in texts]
    if all(row is None for row in wrong):
        ones = np.array([[zero_or_one(text) for text in column] for column in texts])
        if (ones < 0).any() or not ((ones == 1).sum(0) == 1).all():
            return "set"
        shown = ", ".join(rows.shown(column) for column in columns[:3]) + (", ..." if len(columns) > 3 else "")
        what = f"each row has exactly one 1 in columns {shown}: one class an image, or a set of labels?"
        raise UserError(rows.title, what, f"give {_CLASS} or {_SET}")
    for column, cells in zip(columns, texts, strict=True):
        row = _first(cells, lambda text: bool(text) and as_number(text) is None)
        if row is not None:
            raise _no_number(rows, row, column, cells[row], "columns of labels hold 0 and 1, or numbers")
    values = {as_number(text) for cells in texts for text in cells if text}
    if values <= {-1.0, 0.0, 1.0}:
        at = next((column, row) for column, row in zip(columns, wrong, strict=True) if row is not None)
        raise UserError(
            rows.where(at[1], at[0]),
            "is -1, and columns of a set hold 1, 0, or nothing where it is not known",
            f"write 0 for no, and nothing for unknown; or give {_NUMBER} if these are amounts",
        )
    return "number"


def _first(cells: Sequence[str], wrong: Callable[[str], bool]) -> int | None:
    """The first row whose cell is wrong."""
    bad = {cell for cell in {*cells} if wrong(cell)}
    return next((row for row, cell in enumerate(cells) if cell in bad), None) if bad else None


def _no_number(rows: Rows, row: int, column: int, text: str, why: str) -> UserError:
    remedy = "mend it, or remove the row"
    if pointed := with_comma(text):
        thousands = len(pointed.partition(".")[2]) == 3
        remedy = f"write {pointed.replace('.', '')}, or {pointed} if that is meant" if thousands else f"write {pointed}"
    return UserError(rows.where(row, column), f"is {quote(text)}, and {why}", remedy)


def _refuse_empty(rows: Rows, column: int, texts: Sequence[str], kind: str) -> None:
    row = _first(texts, lambda text: not text)
    if row is not None:
        raise UserError(rows.where(row, column), "is empty", _WANTED[kind])


def _class_of_names(rows: Rows, column: int, texts: Sequence[str]) -> Labels:
    """One class an image, by its name. The names are sorted, as those of folders are."""
    _refuse_empty(rows, column, texts, "class")
    texts = [*map(composed, texts)]
    names = sorted({*texts})
    of_number: dict[float, str] = {}
    for name in names:
        value = as_number(name)
        if value is not None and of_number.setdefault(value, name) != name:
            one, other = sorted(texts.index(each) for each in (name, of_number[value]))
            what = f"is {quote(texts[other])}, and line {rows.lines[one]} has {quote(texts[one])}: the same number"
            raise UserError(rows.where(other, column), what, "write a class in one way")
    if len(names) == len(texts) > 2:
        what = f"column {rows.shown(column)} has another text in each of the {len(texts):,} rows, so it is no class"
        raise UserError(rows.title, what, "name another column, as `data.labels COLUMN`")
    place = {name: k for k, name in enumerate(names)}
    values = np.fromiter((place[text] for text in texts), np.int32, len(texts))
    return Labels(Outputs("class", tuple(names)), values, f"column {rows.shown(column)}", _joint_names(names))


def _joint_names(names: Sequence[str], what: str = "class") -> tuple[str, ...]:
    """A remark where the name of a class or label is made of those of others, as where a cell has several labels."""
    known = {*names}
    for separator in (" ", ",", ";", "|", "/", "+"):
        for name in names:
            parts = [*filter(None, map(str.strip, name.split(separator)))]
            if len(parts) > 1 and known.issuperset(parts):
                several = f"the {what} {quote(name)} is made of the names of others"
                return (f"{several}: if a cell has several labels, give `data.separator {quote(separator)}`",)
    return ()


def _set_of_names(rows: Rows, column: int, cells: Sequence[Sequence[str]], how: str) -> Labels:
    """A set of labels an image, by their names. An empty cell has none of them."""
    named = [[*map(composed, cell)] for cell in cells]
    names = sorted({name for cell in named for name in cell})
    if not names:
        raise UserError(rows.title, f"column {rows.shown(column)} has no label in any row", "name another column")
    if len(names) * len(cells) > LARGEST:
        what = f"column {rows.shown(column)} has {len(names):,} different labels in {len(cells):,} rows"
        raise UserError(rows.title, what, "name another column, or another `data.separator`")
    place = {name: k for k, name in enumerate(names)}
    values = np.zeros((len(cells), len(names)), np.int8)
    for row, cell in enumerate(named):
        if len({*cell}) < len(cell):
            twice = next(name for name in cell if cell.count(name) > 1)
            raise UserError(rows.where(row, column), f"has {quote(twice)} twice", "write each label once")
        values[row, [place[name] for name in cell]] = 1
    return Labels(Outputs("set", tuple(names)), values, f"column {rows.shown(column)}, {how}")


def _of_lists(rows: Rows, column: int, stated: Declared) -> Labels:
    """The labels of a column of JSON with lists: a set of names, or several numbers."""
    if stated.target == "class":
        row = next(i for i, cells in enumerate(rows.cells) if isinstance(cells[column], tuple))
        raise UserError(rows.where(row, column), "is a list, and data.target is class", "leave `data.target` out")
    cells = rows.lists(column)
    if not stated.target and all(as_number(text) is not None for cell in cells for text in cell):
        what = f"column {rows.shown(column)} holds lists of numbers: are they labels or amounts?"
        raise UserError(rows.title, what, f"give {_SET} or {_NUMBER}")
    if stated.target != "number":
        return _set_of_names(rows, column, cells, "lists")
    count = len(cells[0])
    for row, cell in enumerate(cells):
        if len(cell) != count or not count:
            what = f"has {len(cell)} numbers, and line {rows.lines[0]} has {count}"
            raise UserError(rows.where(row, column), what, "give each row as many, one at least")
    names = tuple(f"{rows.names[column]}[{i}]" for i in range(count))
    return Labels(
        Outputs("number", names), _values(rows, [column] * count, [*zip(*cells, strict=True)]), "lists of numbers"
    )


def _zeros_and_ones(rows: Rows, columns: Sequence[int], texts: Sequence[Sequence[str]], kind: str) -> Labels:
    """A set of labels, or a class, by columns of 0 and 1 in the order of the table."""
    values = np.empty((len(rows), len(columns)), np.int8)
    for k, (column, cells) in enumerate(zip(columns, texts, strict=True)):
        row = _first(cells, lambda text: zero_or_one(text) is None)
        if row is not None:
            why = f"columns of a {kind} hold 1, 0" + (", or nothing where it is not known" if kind == "set" else "")
            raise _no_number(rows, row, column, cells[row], why)
        known = {cell: value for cell in {*cells} if (value := zero_or_one(cell)) is not None}
        values[:, k] = [known[cell] for cell in cells]
    names = tuple(rows.names[column] for column in columns)
    how = f"{len(columns)} column{'s' if len(columns) > 1 else ''} of 0 and 1"
    if kind == "set":
        return Labels(Outputs("set", names), values, how)
    for k, column in enumerate(columns):
        _refuse_empty(rows, column, texts[k], "class")
    counts = (values == 1).sum(1)
    if (counts != 1).any():
        row = int(np.flatnonzero(counts != 1)[0])
        what = f"has {counts[row]} columns with 1, and data.target is class"
        raise UserError(rows.where(row), what, f"give each row one 1, or {_SET}")
    return Labels(Outputs("class", names), values.argmax(1).astype(np.int32), how)


def _numbers(rows: Rows, columns: Sequence[int], texts: Sequence[Sequence[str]]) -> Labels:
    names = tuple(rows.names[column] for column in columns)
    how = f"column {rows.shown(columns[0])}" if len(columns) == 1 else f"{len(columns)} columns"
    return Labels(Outputs("number", names), _values(rows, columns, texts), how)


def _values(rows: Rows, columns: Sequence[int], texts: Sequence[Sequence[str]]) -> np.ndarray:
    """Cells as numbers, float64 [n, K]. Raises UserError naming the first that is none."""
    values = np.empty((len(rows), len(columns)))
    for k, (column, cells) in enumerate(zip(columns, texts, strict=True)):
        _refuse_empty(rows, column, cells, "number")
        row = _first(cells, lambda text: as_number(text) is None)
        if row is not None:
            raise _no_number(rows, row, column, cells[row], "data.target is number")
        values[:, k] = [float(cell) for cell in cells]
    return values
