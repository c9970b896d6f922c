"""Labelled images that are items of a source by name, such as shards.

What is learned of them is in .cls, a key of .json, a field of labels, or a table of them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....config.hints import nearest
from ....config.outputs import Outputs, composed, numbered_classes
from ....errors import Field, UserError
from ....files import strict_json
from ....files.lines import quote, read_lines
from ....files.reading import open_regular, show_path
from ....kinds.labels import Labels
from ....kinds.table import read_labels
from ...items import Batch, Items, Reading, Run, SourceRequest, check_images, open_any
from ..config import ImageData
from ..preprocess import EXTENSIONS
from ..tables.columns import Declared, choose_columns
from ..tables.rows import Cell, Rows, as_cell, read_rows
from .base import Examples, Known, Source


@dataclass
class ItemImages(Examples):
    """Examples that are the images of items."""

    items: Items
    labels: np.ndarray
    known: Known | None = None
    reading: Reading | None = None

    def read(self, i: int) -> bytes:
        if self.reading and (image := self.reading.take(i)) is not None:
            return image
        return self.items.image(i)

    def read_ahead(self, batch: Callable[[int], Batch], start: int, stop: int, room: float) -> Reading | None:
        """Have images read before they are asked for, by what the caller closes."""
        self.reading = self.items.ahead(batch, start, stop, room)
        return self.reading

    def read_together(self, parts: Sequence[np.ndarray], room: float) -> Reading | None:
        """The same of images that are asked for in their order."""

        def batch(i: int) -> Batch:
            return Batch(i, parts[i], {int(run[0]): Run(run, i + 1) for run in self.items.runs_of(parts[i])})

        return self.read_ahead(batch, 0, len(parts), room)

    def name(self, i: int) -> str:
        return self.items.name(i)


def examples_of(items: Items, labels: np.ndarray) -> ItemImages:
    """Items as examples: labels [n, ...]."""
    identity = items.identity()
    known = Known(identity, items.sizes.view(np.uint8).reshape(len(items), -1)) if identity else None
    return ItemImages(items, labels, known)


def open_source_named(data: ImageData, source: str, fetch: bool) -> Source:
    """What a source by name gives: labelled images, or the images of items, and what is learned of each."""
    field = f"data.source {data.source}"
    items = open_any(source, SourceRequest(field, data.dir, data.verify, data.download, fetch))
    if isinstance(items, Source):
        return items
    check_images(field, items)
    labels = read_item_labels(field, items, data)
    splits: dict[str, Examples] = {}
    unlabelled = {}
    for split, part in items.splits().items():
        rows = part.rows
        if split != "train" and labels.values.ndim == 1 and (labels.values[rows] == UNPUBLISHED).all():
            unlabelled[split] = f"the {split} split has no labels"
            continue
        splits[split] = examples_of(part.items, labels.values[rows])
    return Source(items.title, labels.outputs, splits, labels.remarks, unlabelled, counted=labels.counted)


CLASS, JSON = "cls", "json"
UNPUBLISHED = -1  # what a class is where it is kept back
KEYS = ("label", "cls", "class", "labels", "target")  # of JSON that labels are looked for under, in this order
_NUMBER = re.compile(r"\d{1,7}")


@dataclass(frozen=True)
class _ItemRows(Rows):
    """Rows that are items, which messages name as they are called."""

    name: Callable[[int], str] = str

    def where(self, row: int, column: int | None = None) -> str:
        return self.name(row) + ("" if column is None else f", {self.shown(column)}")


def read_item_labels(field: str, items: Items, data: ImageData) -> Labels:
    """The labels of items."""
    if data.label_table:
        return _by_table(field, items, data)
    if CLASS in items.fields and not data.labels:
        return _classes(field, items, items.texts(CLASS), data, f".{CLASS}")
    if JSON in items.fields:
        return _by_json(field, items, data)
    columns = [*(name for name in data.labels if name in items.fields)]
    columns = columns or [name for name in KEYS if name in items.fields and not data.labels][:1]
    if len(columns) == 1 and (names := items.classes(columns[0])):
        values = np.array([int(text) for text in items.texts(columns[0])], np.int32)
        for part in items.splits().values():
            if (values[part.rows] == UNPUBLISHED).all():  # how datasets marks a split without labels
                continue
            wrong = part.rows[(values[part.rows] < 0) | (values[part.rows] >= len(names))]
            if len(wrong):
                what = f"its {columns[0]} is {values[wrong[0]]}, and its feature names {len(names)} classes"
                raise UserError(items.name(int(wrong[0])), what, "leave it out, or write its class")
        return Labels(Outputs("class", names), values)
    if not columns:
        has = ", ".join(items.fields) or "no other field"
        what = f"its samples have no labels beside the images ({has})"
        raise UserError(field, what, "write a .cls or .json into each, or give `data.label_table FILE` with their keys")
    return _read(field, items, data, columns, [*zip(*map(items.texts, columns), strict=True)])


def _classes(field: str, items: Items, texts: Sequence[str], data: ImageData, column: str) -> Labels:
    """One class an image: a number, or a name. Names are numbered in their order, and not in that of the shards."""
    if data.target not in ("", "class"):
        what = f"is {data.target}, and {column} of {field} holds one class an image"
        raise UserError(Field("data.target"), what, "leave it out, or name keys of .json by `data.labels`")
    empty = next((i for i, text in enumerate(texts) if not text), -1)
    if empty >= 0:
        raise UserError(f"{items.name(empty)}", f"its {column} is empty", "write its class, or leave the sample out")
    stated = _names_in(data.class_names) if data.class_names else []
    if all(_NUMBER.fullmatch(text) for text in texts):
        values = np.array([int(text) for text in texts], np.int32)
        if stated and values.max() >= len(stated):
            at = int(values.argmax())
            what = f"its class is {values[at]}, and {show_path(data.class_names)} names {len(stated)}, from 0 on"
            raise UserError(items.name(at), what, "name all classes there")
        names = stated or numbered_classes(int(values.max()) + 1)
        return Labels(Outputs("class", tuple(names)), values, counted=not stated)
    named = [composed(text) for text in texts]
    names = stated or sorted({*named})
    place = {name: k for k, name in enumerate(names)}
    at = next((i for i, name in enumerate(named) if name not in place), -1)
    if at >= 0:
        what = f"its class {quote(named[at])} is none of {show_path(data.class_names)}{nearest(named[at], names)}"
        raise UserError(items.name(at), what, "add it there, or mend it")
    return Labels(Outputs("class", tuple(names)), np.array([place[name] for name in named], np.int32))


def _names_in(file: str) -> list[str]:
    """The names of classes in a file, one a line."""
    path = Path(os.path.expanduser(file))
    try:
        with open_regular(path) as content:
            names = [composed(line.strip()) for line in read_lines(content, show_path(path))]
    except OSError as error:
        raise UserError(show_path(path), f"cannot be read ({error.strerror})", "give the file of names") from error
    while names and not names[-1]:
        names.pop()
    twice = next((name for name, count in Counter(names).items() if count > 1 or not name), None)
    if not names or twice is not None:
        what = "is empty" if not names else f"names {quote(twice)} twice" if twice else "has an empty line"
        raise UserError(show_path(path), what, "write the name of one class in each line")
    return names


def _by_json(field: str, items: Items, data: ImageData) -> Labels:
    """Labels under keys of JSON."""
    objects = []
    for i, text in enumerate(items.texts(JSON)):
        try:
            value = strict_json.parse(text.encode())
        except ValueError as error:
            raise UserError(items.name(i), f"its .json is none ({error})", "write an object of JSON") from error
        if not isinstance(value, dict):
            raise UserError(items.name(i), "its .json is no object", "write an object of JSON")
        objects.append(value)
    keys = data.labels or tuple(key for key in KEYS if key in objects[0])[:1]
    if not keys:
        what = f"which keys of its .json are the labels? There are {', '.join(objects[0]) or 'none'}"
        raise UserError(field, what, "give one or several, such as `data.labels KEY`")
    for key in keys:
        at = next((i for i, value in enumerate(objects) if key not in value), -1)
        if at >= 0:
            what = f"its .json lacks {quote(key)}{nearest(key, [*objects[at]])}"
            raise UserError(items.name(at), what, "add it, or name another key by `data.labels`")
    return _read(field, items, data, keys, [tuple(as_cell(value[key]) for key in keys) for value in objects])


def _read(field: str, items: Items, data: ImageData, columns: Sequence[str], cells: list[tuple[Cell, ...]]) -> Labels:
    """Labels in columns of samples: of one column of whole numbers or of names, classes."""
    if len(columns) == 1 and data.target in ("", "class") and not data.separator:
        texts = [str(cell[0]).strip() if isinstance(cell[0], str) else "" for cell in cells]
        plain = all(isinstance(cell[0], str) for cell in cells)
        numbers = plain and all(_NUMBER.fullmatch(text) for text in texts)
        if plain and (
            data.target or data.class_names or not any(map(_is_amount, texts)) or (numbers and columns[0] in KEYS)
        ):
            return _classes(field, items, texts, data, columns[0])
    rows = _ItemRows(tuple(columns), cells, range(len(cells)), (field,), name=items.name)
    return read_labels(rows, range(len(columns)), data.separator, data.target)


def _is_amount(text: str) -> bool:
    return bool(re.fullmatch(r"[-+]?[\d.,]+([eE][-+]?\d+)?", text))


def _by_table(field: str, items: Items, data: ImageData) -> Labels:
    """Labels of a table, whose rows are those of samples by their keys, with or without what ends a file's name."""
    rows = read_rows(Path(os.path.expanduser(data.label_table)))
    stated = Declared(data.labels, data.file_column, "", "", data.separator, data.target)
    columns = choose_columns(rows, stated)
    names = rows.texts(columns.file)
    place: dict[str, int] = {}
    for row, name in enumerate(names):
        stem, suffix = os.path.splitext(name)
        key = stem if suffix.lower() in EXTENSIONS else name
        if place.setdefault(key, row) != row:
            raise UserError(rows.where(row, columns.file), f"is {quote(key)} again", "keep one row of it")
    order = []
    for i in range(len(items)):
        key = items.key(i)
        if key not in place:
            what = f"{rows.title} has no row of it"
            raise UserError(items.name(i), what, "add one, or leave the sample out")
        order.append(place[key])
    texts = {column: [rows.cells[i][column] for i in order] for column in columns.labels}
    cells = [*zip(*texts.values(), strict=True)]
    return _read(field, items, data, [rows.names[column] for column in columns.labels], cells)
