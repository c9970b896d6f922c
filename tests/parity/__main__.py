"""`python -m tests.parity [PART...] [--markdown FILE] [--json FILE] [--jobs N]`: compare with PyTorch, print a table.

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
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from .groups import FAULTS, groups, run, set_up
from .tables import report

FAILED = 3


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m tests.parity", description="Compare ours with PyTorch, and print the table."
    )
    out.add_argument("parts", nargs="*", help="only parts whose names contain one of these")
    out.add_argument(
        "--markdown", type=Path, help="write a table with a line for every model and option value to this file"
    )
    out.add_argument("--json", type=Path, help="write every comparison to this file")
    out.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="processes")
    return out


def main() -> int:
    arguments = parser().parse_args()
    if not importlib.util.find_spec("torch"):
        print("PyTorch is not installed: pip install 'vit-jax[torch,parity]'", file=sys.stderr)
        return 2
    from .libraries import absent

    names = [*groups(), *FAULTS]
    chosen = [n for n in names if not arguments.parts or any(word in n for word in arguments.parts)]
    if not chosen:
        print(f"no part is called {' or '.join(arguments.parts)}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    began, rows, faults = time.monotonic(), [], []
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn"), set_up) as pool:
        for done in as_completed([pool.submit(run, part) for part in chosen]):
            part, seconds, found = done.result()
            (faults if part in FAULTS else rows).extend(found)
            print(f"{part}: {len(found)} in {seconds:.0f} s", file=sys.stderr, flush=True)
    order = {name: i for i, name in enumerate(names)}
    rows.sort(key=lambda r: order[r["part"]])
    seconds = time.monotonic() - began
    print(report(rows, faults, absent(), seconds))
    if arguments.markdown:
        arguments.markdown.write_text(report(rows, faults, absent(), seconds, full=True) + "\n")
    if arguments.json:
        about = {"python": platform.python_version(), "machine": platform.machine(), "seconds": seconds}
        arguments.json.write_text(
            json.dumps({"about": about, "absent": absent(), "comparisons": rows, "faults": faults}, indent=1) + "\n"
        )
    return 0 if all(r["passed"] for r in rows) and all(f["caught"] for f in faults) else FAILED


if __name__ == "__main__":
    sys.exit(main())
