"""Results that a notebook shows as a table, and that pandas.DataFrame takes: `DataFrame(result.rows)`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
