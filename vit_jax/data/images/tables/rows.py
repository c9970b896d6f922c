"""The rows of a table, from the bytes of a CSV file or of JSON Lines: cells as texts, and the line of each."""

from __future__ import annotations

import bisect
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import UserError
from ....files import strict_json
from ....files.lines import quote, read_lines
from ....files.reading import LINE, open_regular, show_path, size_text

LARGEST = 1 << 28  # bytes
COLUMNS, CELLS = 10_000, 20_000_000
JSON_LINES = (".jsonl", ".ndjson")
_OTHERS = (".json", ".parquet", ".arrow", ".xlsx", ".xls", ".ods", ".gz", ".zip", ".bz2", ".xz", ".pkl")
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_QUOTED = re.compile(r'"((?:[^"]++|"")*+)"')
_INDEX = re.compile(r"(Unnamed: 0(\.\d+)?)?")  # what pandas writes and reads an index without a name as

Cell = str | tuple[str, ...] | None  # a text, a list of JSON of texts or numbers, or any other value of JSON


@dataclass(frozen=True)
class Rows:
    """The rows of one table, or of several with the same columns."""

    names: tuple[str, ...]
    cells: list[tuple[Cell, ...]]
    lines: Sequence[int]  # of each row, the line of its file in which it begins, counted from 1
    titles: tuple[str, ...]  # the files, as messages call them
    starts: tuple[int, ...] = (0,)
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def title(self) -> str:
        """The table, as messages call it."""
        return self.titles[0] if len(self.titles) == 1 else f"{self.titles[0]} and {len(self.titles) - 1} more"

    @property
    def of_hugging_face(self) -> bool:
        """Whether it is metadata.csv or metadata.jsonl, as the imagefolder of Hugging Face's datasets has them."""
        return all(Path(title).stem == "metadata" for title in self.titles)

    def where(self, row: int, column: int | None = None) -> str:
        """The place of a row, or of a cell of it, in messages."""
        title = self.titles[bisect.bisect(self.starts, row) - 1]
        return f"{title} line {self.lines[row]}" + ("" if column is None else f", column {self.shown(column)}")

    def shown(self, column: int) -> str:
        """The name of a column in messages: in quotes where it would not be seen what belongs to it."""
        name = self.names[column]
        return name if re.fullmatch(r"[\w.\-]{1,60}", name) else quote(name)

    def texts(self, column: int) -> list[str]:
        """The cells of a column without blanks around them."""
        found = []
        for i, row in enumerate(self.cells):
            cell = row[column]
            if not isinstance(cell, str):
                kind = "a list" if isinstance(cell, tuple) else "an object or a list of such"
                raise UserError(self.where(i, column), f"is {kind}", "give a text or a number, or another column")
            found.append(cell.strip())
        return found

    def lists(self, column: int) -> list[tuple[str, ...]]:
        """The cells of a column as lists: a text is a list of one, an empty cell of none."""
        found = []
        for i, row in enumerate(self.cells):
            cell = row[column]
            if cell is None:
                raise UserError(self.where(i, column), "is an object or a list of such", "give texts or numbers")
            texts = cell if isinstance(cell, tuple) else (cell,)
            found.append(tuple(text.strip() for text in texts if text.strip()))
        return found

    def has_lists(self, column: int) -> bool:
        """Whether a cell of a column is a list."""
        return any(isinstance(row[column], tuple) for row in self.cells)


def read_rows(path: Path) -> Rows:
    """The rows of a CSV file, or by its suffix of JSON Lines."""
    title = show_path(path)
    suffix = path.suffix.lower()
    if suffix in _OTHERS:
        raise UserError(title, f"a table is CSV or JSON Lines, and this is {suffix}", "save it as .csv or .jsonl")
    try:
        if path.is_dir():
            raise UserError(title, "is a folder", "give the table in it, as csv:FILE")
        with open_regular(path) as file:
            if path.stat().st_size > LARGEST:
                raise UserError(title, f"has more than {size_text(LARGEST)}", "give a smaller table")
            if file.peek(2)[:2] in _UTF16:
                raise UserError(f"{title} line 1", "is UTF-16", "save the file as UTF-8")
            lines = _plain_lines(title, read_lines(file, title))
            names, rows = _json_rows(title, lines) if suffix in JSON_LINES else _csv_rows(title, lines)
            return _checked(title, names, rows)
    except (OSError, ValueError) as error:  # ValueError: no path, with a zero byte in it
        reason = getattr(error, "strerror", None) or error
        raise UserError(title, f"cannot be read ({reason})", "give the path of a table") from error


def join_tables(tables: Sequence[Rows]) -> Rows:
    """Several tables as one; a column that one lacks is empty there."""
    names = tuple(dict.fromkeys(name for table in tables for name in table.names))
    starts, cells, lines = list[int](), list[tuple[Cell, ...]](), array("q")
    for table in tables:
        starts.append(len(cells))
        order = [table.names.index(name) if name in table.names else -1 for name in names]
        cells += [tuple(row[column] if column >= 0 else "" for column in order) for row in table.cells]
        lines.extend(table.lines)
    remarks = tuple(dict.fromkeys(remark for table in tables for remark in table.remarks))
    return Rows(names, cells, lines, tuple(table.title for table in tables), tuple(starts), remarks)


def _plain_lines(title: str, lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """(number, line) of each. Raises UserError on a zero byte."""
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise UserError(f"{title} line {number}", "has a zero byte, as UTF-16 has", "save the file as UTF-8 text")
        yield number, line


def _checked(title: str, names: Sequence[str], rows: Iterator[tuple[int, tuple[Cell, ...]]]) -> Rows:
    """The table of these rows, within bounds, without a first column that has no name."""
    names = [name.strip() for name in names]
    if len(names) > COLUMNS:
        raise UserError(f"{title} line 1", f"has {len(names):,} columns", f"give {COLUMNS:,} at most")
    first, remarks = 0, list[str]()
    if len(names) > 1 and _INDEX.fullmatch(names[0]):
        first, remarks = 1, [f"{title}: the first column has no name and is left out, as an index"]
    kept = names[first:]
    for i, name in enumerate(kept, first + 1):
        if not name:
            raise UserError(f"{title} line 1", f"column {i} has no name", "give it one, or remove it")
        if names.index(name) + 1 != i:
            raise UserError(f"{title} line 1", f"two columns are called {quote(name)}", "rename or remove one")
    cells: list[tuple[Cell, ...]] = []
    lines = array("q")  # which takes a fifth of the memory of a list
    for number, row in rows:
        cells.append(row[first:] if first else row)
        lines.append(number)
        if len(cells) * len(kept) > CELLS:
            raise UserError(f"{title} line {number}", f"the table has more than {CELLS:,} cells", "leave columns out")
    if not cells:
        raise UserError(title, "has no rows", "give one row an image, after the names of the columns")
    return Rows(tuple(kept), cells, lines, (title,), remarks=tuple(remarks))


def _csv_rows(title: str, lines: Iterator[tuple[int, str]]) -> tuple[list[str], Iterator[tuple[int, tuple[Cell, ...]]]]:
    """(names of the columns, (line, cells) of each row after them)."""
    where = f"{title} line 1"
    _, header = next(lines, (1, ""))
    if re.fullmatch(r"sep=[,;\t|]", header):  # which Excel writes before the header
        _, header = next(lines, (2, ""))
    if not header.strip():
        raise UserError(where, "is empty", "give the names of the columns there, and below one row an image")
    header = _whole(where, header, lines)
    bare = _QUOTED.sub("", header)
    used = [each for each in _DELIMITERS if each in bare]
    if len(used) > 1:
        several = " and ".join(_DELIMITERS[each] for each in used)
        raise UserError(where, f"has {several}, and one of them separates columns", "put names in quotes that have one")
    delimiter = used[0] if used else ","  # of one column, which may name images to predict
    names = _cells(where, header, delimiter)
    return names, _csv_body(title, len(names), delimiter, lines)


def _csv_body(
    title: str, columns: int, delimiter: str, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, tuple[Cell, ...]]]:
    for number, line in lines:
        if not line:
            continue
        if '"' in line:
            where = f"{title} line {number}"
            cells = _cells(where, _whole(where, line, lines), delimiter)
        else:
            cells = line.split(delimiter)
        if len(cells) != columns:
            what = f"has {len(cells):,} cell{'s' if len(cells) > 1 else ''}, and the first line {columns}"
            remedy = (
                f"put a cell in quotes that has {_DELIMITERS[delimiter]}" if len(cells) > columns else "complete it"
            )
            raise UserError(f"{title} line {number}", what, remedy)
        yield number, tuple(cells)


def _whole(where: str, line: str, more: Iterator[tuple[int, str]]) -> str:
    """A row, with the lines after its first while a quote is open. Raises UserError where it is never closed."""
    parts, quotes, size = [line], line.count('"'), len(line)
    while quotes % 2:
        _, further = next(more, (0, None))
        if further is None or size > LINE:
            raise UserError(
                where, "a quote that begins there has no end", 'close it, or write "" for a quote in a cell'
            )
        parts.append(further)
        quotes, size = quotes + further.count('"'), size + len(further) + 1
    return "\n".join(parts)


def _cells(where: str, row: str, delimiter: str) -> list[str]:
    """The cells of a row in which some are in quotes. Raises UserError."""
    cells, at = [], 0
    while True:
        if match := _QUOTED.match(row, at):
            cells.append(match[1].replace('""', '"'))
            at = match.end()
            if row[at : at + 1] not in ("", delimiter):
                after = quote(row[at : at + 20])
                raise UserError(where, f"{after} follows a quote that ends a cell", 'write "" for a quote in a cell')
        else:
            end = row.find(delimiter, at)
            cells.append(row[at : end if end >= 0 else len(row)])
            at += len(cells[-1])
            if '"' in cells[-1]:
                what = f"the cell {quote(cells[-1])} has a quote inside"
                raise UserError(where, what, 'write the cell in quotes, and "" for the quote')
        if at == len(row):
            return cells
        at += 1


def _json_rows(
    title: str, lines: Iterator[tuple[int, str]]
) -> tuple[list[str], Iterator[tuple[int, tuple[Cell, ...]]]]:
    """The same of JSON Lines. A key that a row lacks is an empty cell there."""
    place: dict[str, int] = {}
    found: list[tuple[int, dict[str, Any]]] = []
    held = 0
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{title} line {number}"
        try:
            value = strict_json.parse(line.encode())
        except ValueError as error:
            raise UserError(where, f"is no JSON ({error})", "write one object on each line") from error
        if not isinstance(value, dict):
            raise UserError(where, "is no object of JSON", "write one object on each line")
        for key in value:
            place.setdefault(key.strip(), len(place))
        held += sum(len(each) if isinstance(each, list) else 1 for each in value.values())
        if len(place) > COLUMNS or held > CELLS:
            most = f"{COLUMNS:,} keys" if len(place) > COLUMNS else f"{CELLS:,} values"
            raise UserError(where, f"the table has more than {most}", "leave some out")
        found.append((number, {key.strip(): as_cell(each) for key, each in value.items()}))
    return [*place], ((number, tuple(row.get(key, "") for key in place)) for number, row in found)


def as_cell(value: Any) -> Cell:
    """A value of JSON as a cell: null is an empty one."""
    if isinstance(value, list):
        texts = [as_cell(each) for each in value]
        return (
            tuple(text for text in texts if isinstance(text, str)) if all(isinstance(t, str) for t in texts) else None
        )
    if isinstance(value, dict):
        return None
    return "" if value is None else value if isinstance(value, str) else repr(value)
