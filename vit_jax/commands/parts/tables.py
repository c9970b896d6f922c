"""Tables in parts: each a CSV or parquet file with the same columns, joined to one in their order."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ...errors import UserError
from ...files.atomic import replacing

if TYPE_CHECKING:
    import pyarrow

Format = Literal["csv", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
INTEGERS, FRACTIONS = ("rank",), ("probability", "value", "score")  # columns of numbers, in parquet
Row = Sequence[str | int]
Rows = Iterable[Row]


def check_format(format: str) -> None:
    """Raise UserError where the library of a format is not installed."""
    if format == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            what = "is parquet, which pyarrow writes, and that is not installed"
            raise UserError("--format", what, "pip install pyarrow, or give --format csv") from error


def encode(format: str, header: Sequence[str], rows: Rows, all_fractions: bool = False) -> bytes:
    """A table as the content of a file."""
    if format == "csv":
        text = io.StringIO(newline="")
        csv.writer(text).writerows([header, *rows])
        return text.getvalue().encode("utf-8", "surrogateescape")
    if format != "parquet":
        raise ValueError(f"format {format}")
    import pyarrow
    import pyarrow.parquet

    columns = [*zip(*rows, strict=True)] or [()] * len(header)
    kinds = [*map(_kind, header)]
    if all_fractions:
        kinds[1:-1] = [float] * len(kinds[1:-1])
    arrays = [_column(kind, values) for kind, values in zip(kinds, columns, strict=True)]
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays, [*header]), file)
    return file.getvalue()


def _kind(name: str) -> type:
    """What the cells of a column are, by its name."""
    return int if name in INTEGERS else float if name in FRACTIONS else str


def _column(kind: type, values: Sequence[Any]) -> pyarrow.Array:
    """A column of a table; blank cells of numbers are null, and names that are no UTF-8 have U+FFFD in them."""
    import pyarrow

    if kind is not str:
        held = pyarrow.int32() if kind is int else pyarrow.float64()
        return pyarrow.array([None if value == "" else kind(value) for value in values], held)
    texts = (str(value).encode("utf-8", "surrogateescape").decode("utf-8", "replace") for value in values)
    return pyarrow.array(texts, pyarrow.string())


def join(format: str, parts: Iterable[bytes], path: str) -> int:
    """Write the tables of parts as one, whole or not at all; one part at a time is in memory."""
    with replacing(Path(path)) as temporary:
        return {"csv": _join_csv, "parquet": _join_parquet}[format](iter(parts), temporary)


def _join_csv(parts: Iterator[bytes], path: Path) -> int:
    rows = 0
    with open(path, "wb") as file:
        for i, part in enumerate(parts):
            text = io.StringIO(part.decode("utf-8", "surrogateescape"), newline="")
            rows += sum(1 for _ in csv.reader(text)) - 1
            file.write(part if not i else part[part.index(b"\r\n") + 2 :])
    return rows


def _join_parquet(parts: Iterator[bytes], path: Path) -> int:
    from pyarrow import parquet

    first = parquet.read_table(io.BytesIO(next(parts)))
    with parquet.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        rows = int(first.num_rows)
        for part in parts:
            table = parquet.read_table(io.BytesIO(part))
            writer.write_table(table)
            rows += int(table.num_rows)
    return rows
