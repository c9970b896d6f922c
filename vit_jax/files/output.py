"""Results: files that commands write on request, whole or not at all; tables for a terminal and for a notebook.

`pandas.DataFrame` takes what a notebook shows as a table too: `DataFrame(result.rows)`.
"""

from __future__ import annotations

import contextlib
import csv
import html
import io
import os
import shutil
import tempfile
import unicodedata
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .atomic import replacing
from .terminal import JOINERS

if TYPE_CHECKING:
    from rich.table import Table


def write_csv(path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[str | int]]) -> int:
    """Write a CSV table, atomically; returns how many rows it has. File names keep their bytes, also no UTF-8."""
    table = GrowingCsv(path, header)
    table.add([*rows])
    return table.rows


class GrowingCsv:
    """A CSV table whose rows are in its file, whole, when they are added, so that a process that is killed leaves them.

    The file takes the place of another with the first rows, so that nothing is lost where there are none to be had.
    """

    def __init__(self, path: str | os.PathLike[str], header: Sequence[str]):
        self.path, self.header, self.there, self.rows = path, header, False, 0

    def add(self, rows: Sequence[Sequence[str | int]]) -> None:
        """Add rows, which may be none: then the file is there with what it has."""
        if not self.path:
            return
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows if self.there else [self.header, *rows])
        content = text.getvalue().encode("utf-8", "surrogateescape")
        if self.there:
            with open(self.path, "ab") as file:
                file.write(content)
        else:
            with replacing(Path(self.path)) as temporary:
                temporary.write_bytes(content)
        self.there, self.rows = True, self.rows + len(rows)


def digits(values: np.ndarray) -> list[str]:
    """Numbers with the fewest digits that tell them from every other float32; six decimals would make them equal."""
    return list(map(str, values.astype(np.float32)))


def write_npz(
    path: str | os.PathLike[str], parts: Iterable[Mapping[str, np.ndarray]], rows: int, **whole: Any
) -> dict[str, tuple[int, ...]]:
    """Write arrays to a .npz, atomically: parts [k, ...] of `rows` rows together, and whole ones -> {name: shape}."""
    path, shapes = Path(path), dict[str, tuple[int, ...]](dict.fromkeys(whole, ()))
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.", suffix=".tmp", dir=path.absolute().parent) as folder:
        with contextlib.ExitStack() as stack:
            files: dict[str, Any] = {}
            for part in parts:
                for name, array in part.items():
                    if name not in files:
                        files[name] = stack.enter_context(open(Path(folder, f"{name}.npy"), "wb"))
                        shapes[name] = (rows, *array.shape[1:])
                        described = {"descr": array.dtype.str, "fortran_order": False, "shape": shapes[name]}
                        np.lib.format.write_array_header_1_0(files[name], described)
                    files[name].write(array.tobytes())
        for name, array in whole.items():
            np.save(Path(folder, f"{name}.npy"), np.asarray(array))
            shapes[name] = np.shape(array)
        with zipfile.ZipFile(together := Path(folder, "npz"), "w") as archive:
            for name in shapes:
                archive.write(Path(folder, f"{name}.npy"), f"{name}.npy")
                Path(folder, f"{name}.npy").unlink()
        os.replace(together, path)
    return shapes


def print_table(
    names: Sequence[str], groups: Iterable[Sequence[Sequence[str]]], width: int = 0, once: bool = False
) -> list[str]:
    """Print columns beside names, in as many tables as the width (0: that of the terminal) needs.

    A title is broken at its last space; long names and cells are cut in the middle, to a third of the width and at most
    32 columns.
    """
    from rich.console import Console

    width = width or shutil.get_terminal_size((120, 24)).columns
    first = _cut_column(names, max(min(width // 3, 32), 12))
    tables: list[list[list[str]]] = [[first]]
    left_out = []
    for group in groups:
        columns = [_cut_column(column, 32) for column in group]
        whole = _width([first, *columns]) <= width
        if len(tables[-1]) > 1 and columns and _width([*tables[-1], *columns]) > width and whole and not once:
            tables.append([first])
        for column in columns:
            if _width([*tables[-1], column]) > width and len(tables[-1]) > 1:
                if once:
                    left_out.append(column[0])
                    continue
                tables.append([first])
            tables[-1].append(column)
    for i, columns in enumerate(tables):
        console = Console(width=max(width, _width(columns)), markup=False, highlight=False, emoji=False)
        if i:
            console.print()
        console.print(_table(columns))
    return left_out


def _cut_column(column: Sequence[str], most: int) -> list[str]:
    return [column[0], *(_middle_cut(cell, most) for cell in column[1:])]


def _middle_cut(text: str, most: int) -> str:
    left, right = text, ""
    if text_width(text) > most:
        left, right = shorten(text, most // 2 + 1)[:-1], text[-(most - most // 2 - 1) :]
        while text_width(right) > most - most // 2 - 1 or text_width(right[:1]) == 0 < len(right):
            right = right[1:]
        left += "…"
    return left + right


def _title(column: Sequence[str]) -> str:
    """The title of a column, in two lines if it has a space."""
    return "\n".join(column[0].rsplit(" ", 1))


def _width(columns: Iterable[Sequence[str]]) -> int:
    """The width of a table of these columns: their widest cells, and two spaces between them."""
    widths = [max(map(text_width, [*_title(column).split("\n"), *column[1:]])) for column in columns]
    return sum(widths) + 2 * (len(widths) - 1)


def _table(columns: Sequence[Sequence[str]]) -> Table:
    """Titles over cells, without lines; the first column begins at the left, the others end at the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for i, column in enumerate(columns):
        table.add_column(_title(column), justify="right" if i else "left", vertical="bottom", no_wrap=True)
    for row in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*row)
    return table


def shorten(name: str, most: int) -> str:
    """A name that is at most so wide, cut with an ellipsis."""
    name = "".join(c if c.isprintable() or c in JOINERS else "\ufffd" for c in name)
    if text_width(name) <= most:
        return name
    while name and text_width(name) > most - 1:
        name = name[:-1]
    return name + "…"


def text_width(text: str) -> int:
    """The width of a text in columns of a terminal."""
    shown = (c for c in text if unicodedata.category(c) not in ("Mn", "Mc", "Me", "Cf"))
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in shown)


MOST = 60


def html_table(rows: Sequence[Mapping[str, Any]], notes: Iterable[str] = ()) -> str:
    """Rows {column: value} as a table, of which numbers have four decimals, and notes below it."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(row.get(name, '')))}</td>" for name in columns) + "</tr>"
        for row in rows[:MOST]
    )
    below = [f"{len(rows) - MOST:,} more rows"] if len(rows) > MOST else []
    said = "".join(f"<p>{html.escape(note)}</p>" for note in (*below, *notes))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{said}"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Predictions(list[Any]):
    """Predictions as a list, which has them as rows for a table too."""

    def __init__(self, values: Iterable[Any], rows: list[dict[str, Any]]):
        super().__init__(values)
        self.rows = rows

    def _repr_html_(self) -> str:
        return html_table(self.rows)


def predictions(values: Sequence[Any], pairs: Iterable[tuple[Any, Any]], header: Sequence[str]) -> Predictions:
    """Predictions that are shown as a table."""
    rows = []
    for given, said in pairs:
        first = {header[0]: given if isinstance(given, (str, int)) else str(given)} if header else {}
        for rank, each in enumerate([said] if isinstance(said, str) else said, 1):
            told = dict(zip(header[-2:], each, strict=False)) if isinstance(each, tuple) else {header[-1]: each}
            rows.append({**first, **({"rank": rank} if "rank" in header else {}), **told})
    return Predictions(values, rows)


class Compared(dict[str, Any]):
    """What `compare` gives: {"lines", "notes"}, which has the lines as flat rows too."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict for each line: its name, number of runs, status, fields, and the mean of each result."""
        return [
            {
                **{name: line[name] for name in ("name", "runs", "status")},
                **line["fields"],
                **{name: result["mean"] for name, result in line["results"].items()},
            }
            for line in self["lines"]
        ]

    def _repr_html_(self) -> str:
        return html_table(self.rows, self["notes"])
