"""The time that `--help` of each command and `import vit_jax` take, as processes, when all files are in the page cache.

    python -m benchmarks.startup [--times 5] [--json OUT]

wall  seconds from the start of a process to its end, the least of all repetitions
CPU   its CPU time, the least of all repetitions; more reliable on a loaded machine
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, load

ROOT = Path(__file__).parents[1]
# {name: (arguments of python, largest number of seconds of wall time, or 0 for no limit)}.
COMMANDS: dict[str, tuple[list[str], float]] = {
    "python -c pass": (["-c", "pass"], 0.0),
    "python -c 'import vit_jax'": (["-c", "import vit_jax"], 0.2),
    "python -m vit_jax.train --help": (["-m", "vit_jax.train", "--help"], 0.5),
    "python -m vit_jax.evaluate --help": (["-m", "vit_jax.evaluate", "--help"], 0.5),
    "python -m vit_jax.predict --help": (["-m", "vit_jax.predict", "--help"], 0.5),
    "python -m vit_jax --help": (["-m", "vit_jax", "--help"], 0.5),
    "python -m convert --help": (["-m", "convert", "--help"], 0.3),
}


def once(arguments: list[str]) -> tuple[float, float]:
    """(wall, CPU) seconds of one process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="repetitions of each command")
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    machine = describe()
    print(heading(machine), flush=True)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for arguments, _ in COMMANDS.values():
        once(arguments)  # not measured: writes byte code and fills the page cache
    for _ in range(o.times):  # in turns, so that a busy machine affects all of them
        for name, (arguments, _limit) in COMMANDS.items():
            times[name].append(once(arguments))
    rows: dict[str, Any] = {}
    for name, (_, limit) in COMMANDS.items():
        wall, cpu = (min(column) for column in zip(*times[name], strict=True))
        rows[name] = {"wall": wall, "cpu": cpu, "limit": limit}
        verdict = f"  limit {limit} s: {'met' if wall <= limit else 'missed'}" if limit else ""
        print(f"{name:34} wall {wall:.2f} s  CPU {cpu:.2f} s{verdict}")
    print(f"best of {o.times}, load {load()}")
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
