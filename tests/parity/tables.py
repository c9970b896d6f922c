"""What the comparisons found, as Markdown that can be read as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]  # {part, subject, against, quantity, difference, limit, where, passed}
MODELS = ("presets", "combinations", "libraries")  # parts whose networks get a line each
COLUMNS = {
    "float64": "float64",
    "float32": "float32",
    "gradients, float64, of its tensor's": "gradients",
    "tensors": "tensors",
}


def table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Markdown with aligned columns."""
    lines = [tuple(cell.replace("|", "/") for cell in line) for line in lines]
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    rows = [titles, tuple("-" * w for w in widths), *lines]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows
    )


def worst(rows: Sequence[Row]) -> Row:
    """The comparison that took the largest share of its limit (a NaN is the largest of all)."""
    return max(rows, key=lambda r: (not r["passed"], r["difference"] / (r["limit"] or 1e-300)))


def verdict(rows: Sequence[Row]) -> str:
    """ok, or where it first fails."""
    failed = [r for r in rows if not r["passed"]]
    return (
        f"FAILED: {failed[0]['quantity']}" + (f" at {failed[0]['where']}" if failed[0]["where"] else "")
        if failed
        else "ok"
    )


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by the values of some keys, in order of appearance."""
    out: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        out.setdefault(tuple(row[k] for k in keys), []).append(row)
    return out


def models(rows: Iterable[Row]) -> str:
    """One line a network: the largest difference of outputs in either precision and of gradients; and its weights."""
    lines = []
    for (against, subject), its in grouped(rows, "against", "subject").items():
        cells = []
        for start in COLUMNS:
            found = [r["difference"] for r in its if r["quantity"].startswith(start)]
            most = max(found, key=lambda d: (d != d, d), default=None)  # NaN is more than any
            cells.append("-" if most is None else "equal" if start == "tensors" and most == 0 else f"{most:.1e}")
        if set(cells[:3]) != {"-"}:
            lines.append((subject, against, *cells, verdict(its)))
    return table(("network", "compared with", *COLUMNS.values(), "verdict"), lines)


def families(rows: Iterable[Row]) -> str:
    """One line for each quantity of a family of comparisons: the largest difference in it."""
    family = [
        {
            **row,
            "family": row["part"].partition(" options")[0]
            + (", every value of every option" if " options" in row["part"] else ""),
        }
        for row in rows
    ]
    lines = [
        (
            name,
            against,
            quantity,
            str(len(its)),
            f"{worst(its)['difference']:.1e}",
            f"{worst(its)['limit']:.0e}",
            verdict(its),
        )
        for (name, against, quantity), its in grouped(family, "family", "against", "quantity").items()
    ]
    return table(("what", "compared with", "quantity", "comparisons", "largest difference", "limit", "verdict"), lines)


def every(rows: Iterable[Row]) -> str:
    """One line for each quantity of each network, layer or option value."""
    lines = [
        (subject, against, quantity, f"{worst(its)['difference']:.1e}", f"{worst(its)['limit']:.0e}", verdict(its))
        for (subject, against, quantity), its in grouped(rows, "subject", "against", "quantity").items()
    ]
    return table(("model or option", "compared with", "quantity", "largest difference", "limit", "verdict"), lines)


def outcome(faults: Iterable[Row]) -> str:
    """caught, or the faults that slipped through."""
    missed = [f["fault"] for f in faults if not f["caught"]]
    return f"NOT CAUGHT: {', '.join(missed)}" if missed else "caught"


def planted(faults: Iterable[Row]) -> str:
    """One line for each layout or network of it: who computes it independently, the faults planted in its table."""
    lines = [
        (layout, by, "; ".join(f["fault"] for f in its), outcome(its))
        for (layout, by), its in grouped(faults, "layout", "test").items()
    ]
    return table(("table of", "computed by", "faults planted in it", "verdict"), lines)


def report(
    rows: list[Row], faults: list[dict[str, Any]], absent: dict[str, str], seconds: float, full: bool = False
) -> str:
    """All that was found: networks and families, or with `full` every line; then the planted faults and a count."""
    named = [r for r in rows if r["part"] in MODELS]
    others = [r for r in rows if r["part"] not in (*MODELS, "sabotage, control")]
    parts = [every(rows)] if full and rows else [f(some) for f, some in ((models, named), (families, others)) if some]
    in_code, in_tables = ([f for f in faults if ("layout" in f) == tables] for tables in (False, True))
    if in_code:
        lines = [(f["fault"], f["test"], outcome([f])) for f in in_code]
        parts.append(table(("deliberate fault", "caught by", "verdict"), lines))
    if in_tables:
        parts.append(planted(in_tables))
    parts += [f"Not compared: {library} ({reason})." for library, reason in absent.items()]
    failed, caught = sum(not r["passed"] for r in rows), sum(f["caught"] for f in faults)
    parts.append(
        f"{len(rows)} comparisons, {failed} beyond their limits; {caught} of {len(faults)} faults caught; "
        f"{seconds:.0f} s."
    )
    return "\n\n".join(parts)
