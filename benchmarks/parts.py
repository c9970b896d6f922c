"""Predictions in parts: one worker, then three of which one is killed; is the table the same, and is memory flat?

python -m benchmarks.parts [--images 1000000] [--folder FOLDER]

Trains a tiny network on the digits, draws 8x8 images into tars of webdataset (no labels), and runs
`vit-jax predict RUN wds:... --parts OUT` as whole processes. Prints CPU-seconds, and the resident memory of each worker
after a tenth of its parts and at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = shlex.split("--model.width 16 --model.depth 1 --model.heads 2 --model.hidden 32 --epochs 2")
DRAWN, IN_A_SHARD = 5_000, 20_000


def write_shards(folder: Path, images: int) -> None:
    """Tars of 8x8 images; each of some drawn ones is there many times, under other names."""
    folder.mkdir()
    rng, drawn = np.random.default_rng(0), []
    for _ in range(DRAWN):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(file, "PNG")
        drawn.append(file.getvalue())
    for first in range(0, images, IN_A_SHARD):
        with tarfile.open(folder / f"{first // IN_A_SHARD:04}.tar", "w") as archive:
            for i in range(first, min(first + IN_A_SHARD, images)):
                info = tarfile.TarInfo(f"{i:08}.png")
                content = drawn[i * 7919 % DRAWN]
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def vit_jax(*words: object) -> list[str]:
    """A command of this checkout."""
    return [sys.executable, "-m", "vit_jax", *map(str, words)]


class Worker:
    """A process that predicts, and its resident memory in MB, early and late."""

    def __init__(self, folder: Path, out: Path, part_size: int):
        words = ("predict", folder / "runs" / "digits", f"wds:{folder}/shards/*.tar", "--parts", out)
        command = vit_jax(*words, "--part-size", part_size, "--batch", 256)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.early = self.late = self.most = 0.0

    def look(self, parts: int) -> bool:
        """Whether it still runs; notes its memory, that at five parts as `early`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        for line in status:
            if line.startswith("VmRSS"):  # a process that has ended has none
                self.late = int(line.split()[1]) / 1024
                self.most = max(self.most, self.late)
                self.early = self.late if parts <= 5 else self.early
        return self.process.poll() is None


def follow(out: Path, workers: list[Worker], kill_at: int) -> None:
    """Wait for workers, and kill the first one at so many parts; 0: none is. Prints their memory."""
    running = [*workers]
    while running:
        count = len(list((out / "parts").glob("*.csv")))
        running = [worker for worker in running if worker.look(count)]
        if kill_at and count >= kill_at:
            workers[0].process.kill()
            print(f"  worker 0 is killed at {count} parts", flush=True)
            kill_at = 0
        time.sleep(0.5)
    for i, each in enumerate(workers):
        memory = f"{each.early:.0f} MB at the fifth part, {each.late:.0f} at the end, {each.most:.0f} at most"
        print(f"  worker {i}: exit {each.process.returncode}, {memory}")


def merged(out: Path) -> str:
    """The digest of the merged table."""
    table = out.with_suffix(".csv")
    subprocess.run(vit_jax("predict", "--parts", out, "--merge", table, "--force"), check=True)
    return hashlib.sha256(table.read_bytes()).hexdigest()


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("parts-benchmark"), help="an empty or a new one")
    o = parser.parse_args()
    o.folder.mkdir(exist_ok=True)
    words = ("train", "digits", *SIZE, "--dir", o.folder / "runs", "--name", "digits")
    subprocess.run(vit_jax(*words), check=True, stdout=subprocess.DEVNULL)
    write_shards(o.folder / "shards", o.images)
    part_size, digests = max(o.images // 100, 256), []
    for out, workers, kill_at in ((o.folder / "one", 1, 0), (o.folder / "three", 3, 20)):
        before, begun = os.times(), time.monotonic()
        print(f"{workers} of {o.images:,} images, {part_size:,} in a part", flush=True)
        follow(out, [Worker(o.folder, out, part_size) for _ in range(workers)], kill_at)
        after = os.times()
        used = sum(after[2:4]) - sum(before[2:4])
        print(f"  {used:.0f} core-seconds, {time.monotonic() - begun:.0f} s", flush=True)
        digests.append(merged(out))
    print("the tables are equal" if len({*digests}) == 1 else "the tables differ")
    sys.exit(len({*digests}) != 1)


if __name__ == "__main__":
    main()
