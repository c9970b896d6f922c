"""Time and memory of a conversion: ViT-L from timm's layout to Hugging Face's, compared with hash and copy.

    python -m benchmarks.convert [--size l] [--rounds 5] [--folder DIR]

baseline  sha256 of the source, a copy of it and fsync of the copy: the least work of a tool that checks what it writes
convert   `python -m convert SRC DST --to huggingface` as a process: it hashes the source, writes, reads back and
compares memory    the largest anonymous memory of that process (RssAnon), minus that of a process that only does the
imports

Both alternate, on a file in the page cache. Times are medians over the rounds; a ratio has the range of its rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, spread
from convert.dialects import LAYOUTS
from convert.rules import file_shapes, narrow
from vit_jax.config import sized

REQUIRED, GOAL = 3.0, 2.0  # limits of the ratio
MARGIN = 64 << 20  # bytes of memory that are allowed besides three times the largest group
STATED = ["heads=16", "eps=1e-6", "activation=gelu", "pool=cls", "image=224", "mean=0.5", "std=0.5"]


def make(path: Path, size: str) -> int:
    """Write a file in timm's layout with random weights; returns the bytes of its largest group of tensors.

    A group is what is converted together: the query, key and value kernels of a block, or a kernel of its mlp.
    """
    import numpy as np
    from safetensors.numpy import save_file

    config = sized(f"vit-{size}16")
    rng = np.random.default_rng(0)
    save_file(
        {n: rng.standard_normal(s, np.float32) for n, s in file_shapes(narrow(LAYOUTS["timm"].rows(config))).items()},
        path,
    )
    return 4 * max(3 * config.width**2, config.width * config.hidden)


def baseline(source: Path, copy: Path) -> dict[str, float]:
    """Do the baseline; returns the seconds of each part and of all."""
    t0 = time.perf_counter()
    with open(source, "rb") as file:
        hashlib.file_digest(file, "sha256")
    t1 = time.perf_counter()
    shutil.copyfile(source, copy)
    t2 = time.perf_counter()
    with open(copy, "rb+") as file:
        os.fsync(file.fileno())
    t3 = time.perf_counter()
    copy.unlink()
    return {"sha256": t1 - t0, "cp": t2 - t1, "fsync": t3 - t2, "all": t3 - t0}


def watched(command: list[str]) -> tuple[float, int]:
    """Run a process; returns (seconds, largest RssAnon in bytes)."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    largest = 0

    def watch() -> None:
        nonlocal largest
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            largest = max(
                [largest, *(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))]
            )
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    code = process.wait()
    seconds = time.perf_counter() - began
    thread.join()
    if code:
        raise SystemExit(f"{' '.join(command)}: exit code {code}")
    return seconds, largest


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convert", description="Time and memory of a conversion, compared with hash and copy."
    )
    parser.add_argument("--size", default="l", help="ti, s, b, l, h or g")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of baseline and conversion")
    parser.add_argument("--folder", default=None, help="where to create the working folder (default: the system's)")
    parser.add_argument("--json", type=Path, help="file to write all results to")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        source, target = folder / "vit.safetensors", folder / "out.safetensors"
        group = make(source, arguments.size)
        command = [
            sys.executable,
            "-m",
            "convert",
            str(source),
            str(target),
            "--to",
            "huggingface",
            *(word for field in STATED for word in ("--set", field)),
        ]
        idle = watched([sys.executable, "-c", "import convert.write.write, time; time.sleep(.2)"])[1]
        watched(command)  # not measured: loads byte code and the file into the page cache
        target.unlink()
        rounds = []
        for _ in range(arguments.rounds):
            parts = baseline(source, folder / "copy")
            seconds, memory = watched(command)
            target.unlink()
            rounds.append({**parts, "convert": seconds, "memory": memory - idle})
        size = source.stat().st_size
    finally:
        shutil.rmtree(folder)
    ratios = [r["convert"] / r["all"] for r in rounds]
    middle = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    print(f"{heading(describe())}\nViT-{arguments.size.upper()}/16, {size / 1e6:,.0f} MB, {arguments.rounds} rounds")
    print(
        f"baseline {middle['all']:.2f} s (sha256 {middle['sha256']:.2f}, cp {middle['cp']:.2f}, "
        f"fsync {middle['fsync']:.2f}); convert {middle['convert']:.2f} s"
    )
    ratio = spread(ratios)
    print(f"ratio {ratio['ratio']:.2f} [{ratio['low']:.2f}..{ratio['high']:.2f}] (at most {REQUIRED}, goal {GOAL})")
    limit = 3 * group + MARGIN
    print(f"memory {max(r['memory'] for r in rounds) / 1e6:.0f} MB above the imports (at most {limit / 1e6:.0f})")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rounds": rounds, "bytes": size, "limit": limit}, indent=1) + "\n")


if __name__ == "__main__":
    main()
