"""`python -m tests.parity [PART...] [--markdown FILE] [--json FILE] [--jobs N]`: compare ours with PyTorch, and print the table.

Exits with 0 where everything is within its limits and every planted fault is caught, else with 3.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from .groups import SHARES, groups, run, set_up

FAILED = 3


def summary(rows: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line a subject and precision: the largest share of its limit that any of its comparisons took."""
    worst: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        key = row["subject"], row["against"], row["quantity"]
        share = row["difference"] / (row["limit"] or 1e-300)
        if key not in worst or not share <= worst[key]["share"]:
            worst[key] = {**row, "share": share}
    lines = []
    for (subject, against, quantity), row in worst.items():
        verdict = "ok" if row["passed"] else f"FAILED at {row['where']}" if row["where"] else "FAILED"
        lines.append((subject, against, quantity, f"{row['difference']:.1e}", f"{row['limit']:.0e}", verdict))
    return lines


def table(titles: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """Markdown, its columns aligned so that it can be read as it is."""
    lines = [tuple(cell.replace("|", "/") for cell in line) for line in lines]
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    rows = [titles, tuple("-" * w for w in widths), *lines]
    return "\n".join("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows)


def report(rows: list[dict[str, Any]], faults: list[dict[str, Any]], absent: dict[str, str], seconds: float) -> str:
    """All that was found, as Markdown."""
    titles = ("model or slot", "compared with", "quantity", "largest difference", "limit", "verdict")
    failed, caught = sum(not r["passed"] for r in rows), sum(f["caught"] for f in faults)
    parts = [table(titles, summary(rows))] if rows else []
    if faults:
        parts.append(table(("deliberate fault", "caught by", "verdict"), [(f["fault"], f["test"], "caught" if f["caught"] else "NOT CAUGHT") for f in faults]))
    parts += [f"Not compared: {library} ({reason})." for library, reason in absent.items()]
    parts.append(f"{len(rows)} comparisons, {failed} beyond their limits; {caught} of {len(faults)} faults caught; {seconds:.0f} s.")
    return "\n\n".join(parts)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="python -m tests.parity", description="Compare ours with PyTorch, and print the table.")
    out.add_argument("parts", nargs="*", help="only parts whose names contain one of these")
    out.add_argument("--markdown", type=Path, help="write the table to this file")
    out.add_argument("--json", type=Path, help="write every comparison to this file")
    out.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="processes")
    return out


def main() -> int:
    arguments = parser().parse_args()
    if not importlib.util.find_spec("torch"):
        print("PyTorch is not installed: pip install 'vit-jax[torch,parity]'", file=sys.stderr)
        return 2
    from .libraries import absent

    names = [*groups(), *(f"faults {i + 1}/{SHARES}" for i in range(SHARES))]
    chosen = [n for n in names if not arguments.parts or any(word in n for word in arguments.parts)]
    if not chosen:
        print(f"no part is called {' or '.join(arguments.parts)}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    began, rows, faults = time.monotonic(), [], []
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn"), set_up) as pool:
        for done in as_completed([pool.submit(run, part) for part in chosen]):
            part, seconds, found = done.result()
            (faults if part.startswith("faults") else rows).extend(found)
            print(f"{part}: {len(found)} in {seconds:.0f} s", file=sys.stderr, flush=True)
    order = {name: i for i, name in enumerate(names)}
    rows.sort(key=lambda r: order[r["part"]])
    text = report(rows, faults, absent(), time.monotonic() - began)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text + "\n")
    if arguments.json:
        about = {"python": platform.python_version(), "machine": platform.machine(), "seconds": time.monotonic() - began}
        arguments.json.write_text(json.dumps({"about": about, "absent": absent(), "comparisons": rows, "faults": faults}, indent=1) + "\n")
    return 0 if all(r["passed"] for r in rows) and all(f["caught"] for f in faults) else FAILED


if __name__ == "__main__":
    sys.exit(main())
