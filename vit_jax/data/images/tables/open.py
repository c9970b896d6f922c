"""A table of labels as a source of images: its splits, its groups, and what was understood of it, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....config.outputs import Outputs
from ....errors import UserError
from ....files.lines import quote
from ....files.output import shorten
from ....kinds.labels import Labels
from ....kinds.table import class_of, kind_of, read_labels
from ...base import SPLITS
from ..config import ImageData
from ..sources.base import Examples, Source
from ..sources.folders import Files
from ..sources.layout import WHOLE
from .columns import Columns, Declared, choose_columns, file_column, split_of
from .files import Place, find_files, splits_by_folder
from .rows import Rows

_LISTED, _LETTERS = 12, 40


@dataclass(frozen=True)
class Table:
    """What a table says of each of its n images."""

    rows: Rows
    columns: Columns
    labels: Labels
    paths: list[str]
    splits: list[str]  # of each row; WHOLE where the table has none
    groups: np.ndarray | None  # int32 [n], equal where the group is
    remarks: tuple[str, ...]

    def take(self, kept: Sequence[int]) -> Table:
        """Only these rows."""
        rows = replace(
            self.rows,
            cells=[self.rows.cells[i] for i in kept],
            lines=[self.rows.lines[i] for i in kept],
            starts=tuple(np.searchsorted(kept, self.rows.starts).tolist()),
        )
        return replace(
            self,
            rows=rows,
            labels=replace(self.labels, values=self.labels.values[kept]),
            paths=[self.paths[i] for i in kept],
            splits=[self.splits[i] for i in kept],
            groups=None if self.groups is None else self.groups[kept],
        )


def declared_in(data: ImageData) -> Declared:
    """What a run states of its table."""
    return Declared(data.labels, data.file_column, data.split_column, data.group, data.separator, data.target)


def open_table(place: Place, stated: Declared) -> Source:
    """The source of a table to learn from."""
    table = read_table(place, stated)
    if {*table.splits} == {WHOLE}:
        table = replace(table, splits=["train"] * len(table.splits))
    _check_groups(table)
    _check_learnable(table)
    return _source(place, table)


def open_test_table(place: Place, stated: Declared, known: Outputs) -> Source:
    """The source of a table that a network is only evaluated on."""
    by_name = {*stated.labels} == {*known.names}  # a table may lack some of them
    stated = replace(stated, group="", target=stated.target or known.kind, labels=() if by_name else stated.labels)
    return _source(place, read_table(place, stated, known.names))


def table_files(place: Place, stated: Declared) -> list[str]:
    """The image files of all rows of a table, which needs no labels."""
    rows = place.read()
    return [*dict.fromkeys(find_files(rows, file_column(rows, stated), place.folder, place.bases)[0])]


def read_table(place: Place, stated: Declared, known: Sequence[str] = ()) -> Table:
    """What a table says of each image."""
    rows = place.read()
    columns = choose_columns(rows, stated, known)
    if known and len(columns.labels) > 1:  # found by their names, not as the cells of the run's own table
        stated = replace(stated, separator="")
    labels = read_labels(rows, columns.labels, stated.separator, stated.target)
    splits, remarks = _splits(rows, columns, place)
    paths, left = find_files(rows, columns.file, place.folder, place.bases)
    groups = None if columns.group is None else _groups(rows, columns.group)
    return _without_twins(
        Table(rows, columns, labels, paths, splits, groups, (*rows.remarks, *labels.remarks, *remarks, *left))
    )


def _splits(rows: Rows, columns: Columns, place: Place) -> tuple[list[str], list[str]]:
    """(the split of each row, remarks). Raises UserError on a name that is that of no split."""
    if columns.split is None:
        by_folder = splits_by_folder(rows, columns.file, place.bases)
        if by_folder is None:
            return [WHOLE] * len(rows), []
        return by_folder, ["splits are those that folders of the images are called"]
    found = []
    for row, name in enumerate(rows.texts(columns.split)):
        split = split_of(name)
        if split is None:
            what = f"is {quote(name)}, which is no split" if name else "is empty"
            raise UserError(rows.where(row, columns.split), what, "write train, val or test, or rename the column")
        found.append(split)
    return found, []


def _groups(rows: Rows, column: int) -> np.ndarray:
    """The number of the group of each row, int32 [n], in the order in which they appear."""
    place: dict[str, int] = {}
    found = np.empty(len(rows), np.int32)
    for row, name in enumerate(rows.texts(column)):
        if not name:
            raise UserError(rows.where(row, column), "is empty", "write the group, one of its own if it has none")
        found[row] = place.setdefault(name, len(place))
    return found


def _without_twins(table: Table) -> Table:
    """The table with each image once. Raises UserError where two rows of one image differ."""
    first: dict[str, int] = {}
    kept = []
    for row, path in enumerate(table.paths):
        known = first.setdefault(path, row)
        if known == row:
            kept.append(row)
            continue
        same = np.array_equal(table.labels.values[row], table.labels.values[known])
        same = same and table.splits[row] == table.splits[known]
        if not same or (table.groups is not None and table.groups[row] != table.groups[known]):
            what = f"is the image of line {table.rows.lines[known]} again, with another label, split or group"
            joined = ", several labels in one cell need `data.separator`"
            remedy = "keep one row of it" + ("" if table.labels.values.ndim > 1 else joined)
            raise UserError(table.rows.where(row, table.columns.file), what, remedy)
    if len(kept) == len(table.paths):
        return table
    remark = f"rows that repeat another and are left out: {len(table.paths) - len(kept):,}"
    return replace(table.take(kept), remarks=(*table.remarks, remark))


def _check_groups(table: Table) -> None:
    """Raise UserError where a group is in two splits."""
    if table.groups is None or table.columns.group is None:
        return
    first: dict[int, int] = {}
    for row, group in enumerate(table.groups.tolist()):
        known = first.setdefault(group, row)
        if table.splits[known] != table.splits[row]:
            name = quote(str(table.rows.cells[row][table.columns.group]).strip())
            what = (
                f"{name} is in {table.splits[row]} here, and in {table.splits[known]} in line {table.rows.lines[known]}"
            )
            raise UserError(
                table.rows.where(row, table.columns.group),
                what,
                "keep each group in one split, or leave `data.group` out",
            )


def _check_learnable(table: Table) -> None:
    """Raise UserError where a class or a label has no example in train."""
    splits, labels, title = np.array(table.splits), table.labels, table.rows.title
    train = splits == "train"
    if not train.any():
        raise UserError(title, "has no row in train", "write train into the split of some")
    kind = kind_of(labels.outputs)
    if kind.amounts:
        return
    rows, names = kind.positives(labels.values)
    for k in np.flatnonzero(np.bincount(names[train[rows]], minlength=len(labels.outputs.names)) == 0):
        name, elsewhere = quote(labels.outputs.names[k]), rows[names == k]
        if not len(elsewhere):
            raise UserError(title, f"no row has {name}", "leave its column out of `data.labels`")
        what = f"{name} is in {splits[elsewhere[0]]} but not in train"
        raise UserError(table.rows.where(int(elsewhere[0])), what, "move rows of it to train, or remove it")


def _source(place: Place, table: Table) -> Source:
    """The source of a table, with what was understood of it."""
    splits = np.array(table.splits)
    order = [name for name in (*SPLITS, WHOLE) if (splits == name).any()]
    examples: dict[str, Examples] = {}
    groups: dict[str, np.ndarray] = {}
    for name in order:
        kept = np.flatnonzero(splits == name)
        paths = [table.paths[i] for i in kept]
        examples[name] = Files(paths, table.labels.values[kept], part=f"{table.rows.title} {name}")
        if table.groups is not None:
            groups[name] = table.groups[kept]
    remarks = (*describe(table), *table.remarks)
    return Source(place.name, table.labels.outputs, examples, remarks, groups=groups)


def describe(table: Table) -> tuple[str, ...]:
    """What was understood of a table, in sentences."""
    rows, columns, labels = table.rows, table.columns, table.labels
    parts = [f"{rows.title}: {len(rows):,} images by column {rows.shown(columns.file)}"]
    parts.append(f"{class_of(labels.outputs.kind).of_image} by {labels.how}")
    if columns.group is not None and table.groups is not None:
        parts.append(f"{len(np.unique(table.groups)):,} groups by column {rows.shown(columns.group)}")
    parts.append(f"splits by column {rows.shown(columns.split)}" if columns.split is not None else "")
    return "; ".join(filter(None, parts)), _counts(labels)


def _counts(labels: Labels) -> str:
    """How often each class or label is there, or the range of each number."""
    names = [shorten(name, _LETTERS) for name in labels.outputs.names[:_LISTED]]
    more = f" and {len(labels.outputs.names) - _LISTED} more" if len(labels.outputs.names) > _LISTED else ""
    return kind_of(labels.outputs).counts(labels.values, names, more)
