"""Kill training runs that are kept in a store at requests drawn over all of theirs, and compare what they come to.

    python -m benchmarks.store_endurance [--kills 200] [--seed 0] [--json FILE]

The store is one of this machine (tests/loopback_s3.py), which has the run and its images too, as shards. A life is a
process as in benchmarks/endurance.py; it gets SIGKILL when its n-th request comes in, n uniform over those of a whole
life. The same command then goes on, every other time with an empty cache, as on another machine, to be killed up to
three times in all. A save is reported when the call that makes it returns: the next life has to go on from there, or
from the next. At the end all must be as in a run that was never killed, bit for bit, and the store may hold no object
that no record names. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import importlib
import io
import itertools
import json
import mmap
import os
import random
import re
import signal
import struct
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.endurance import COMMAND, IMPORTED, KILLS, VARIANTS, differences, left, workplace
from benchmarks.machine import describe, heading
from tests import loopback_s3

DATA = ["--data.source", "wds:*.tar", "--data.dir", "s3://bucket/data"]
SHARDS = 4


class Lives:
    """Processes that train, one after the other, and what they report in memory that is shared with them."""

    def __init__(self, folder: Path, bucket: loopback_s3.Bucket):
        self.folder, self.bucket = folder, bucket
        self._cells = mmap.mmap(-1, 16)  # the step that the newest life began at, the last that it reported saved

    def live(self, work: Callable[[], int], cache: str, dies: int = 0) -> tuple[int, int]:
        """Work in a process that is forked from this one.

        Args:
            work: returns its exit code.
            cache: the name of its cache.
            dies: the request at which it is killed; 0: none.

        Returns:
            (its exit code, or -9 if it was killed; how many requests it made).
        """
        self._cells[:] = struct.pack("qq", -1, -1)
        count, done = itertools.count(1), [0]
        child = os.fork()
        if child == 0:
            self._work(work, cache)

        def asked() -> None:
            done[0] = next(count)
            if done[0] == dies:
                os.kill(child, signal.SIGKILL)

        self.bucket.asked = asked
        _, status, _ = os.wait4(child, 0)
        self.bucket.asked = lambda: None
        return os.waitstatus_to_exitcode(status), done[0]

    @property
    def steps(self) -> tuple[int, int]:
        """(the step that the newest life began at, the last that it reported saved); -1 where there was none."""
        began, reported = struct.unpack("qq", self._cells[:])
        return began, reported

    def _work(self, work: Callable[[], int], cache: str) -> None:
        code = 70
        try:
            log = os.open(self.folder / "out.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ["XDG_CACHE_HOME"] = str(self.folder / cache)
            self._watch()
            code = work()
            sys.stdout.flush()
        except BaseException:
            importlib.import_module("traceback").print_exc()
        finally:
            os._exit(code)

    def _watch(self) -> None:
        """Note where the loop begins and what is reported; signs of life come and are missed quickly; no pictures."""
        from vit_jax.extras.report import hook
        from vit_jax.extras.stores import mirror
        from vit_jax.training import finish
        from vit_jax.training.loop import Loop
        from vit_jax.training.stopping import Saver

        mirror.BEAT, mirror.LEASE = 0.2, 1.0
        steps, save = Loop.until_end, Saver._save

        def begun(loop: Loop) -> Any:
            self._cells[:8] = struct.pack("q", loop.state.step)
            return steps(loop)

        def saved(saver: Saver, state: Any, *rest: Any) -> None:
            save(saver, state, *rest)
            self._cells[8:] = struct.pack("q", int(state.step))

        Loop.until_end, Saver._save = begun, saved  # type: ignore[method-assign]
        finish.draw = hook.leave_report = lambda *_: ""


def write_images() -> int:
    """Write the digits into the store as tars of NUMBER.png and NUMBER.cls."""
    from PIL import Image
    from sklearn.datasets import load_digits

    from vit_jax.files.places import store_of

    digits, store = load_digits(), store_of("s3://bucket/data")
    for shard in range(SHARDS):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for number in range(shard, len(digits.images), SHARDS):
                picture = io.BytesIO()
                Image.fromarray((digits.images[number] * 15).astype("uint8")).save(picture, "PNG")
                add(archive, f"{number:04}.png", picture.getvalue())
                add(archive, f"{number:04}.cls", str(digits.target[number]).encode())
        store.put(f"digits-{shard}.tar", content.getvalue())
    return 0


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def train(words: list[str]) -> int:
    """Train; the exit code."""
    from vit_jax.commands import train as command
    from vit_jax.files.terminal import run_command

    print("$", *words, flush=True)
    return run_command(lambda: command.command(words))


def leave(url: str, out: Path) -> int:
    """Write what a run in the store has left, and the objects that no record names."""
    from vit_jax.extras.stores.records import Records
    from vit_jax.files.places import pull_weights, store_of
    from vit_jax.runs import find

    run, store = find(url), store_of(url)
    pull_weights(run.path)
    found = {k: v for k, v in left(run).items() if k != "beside"}
    kept = [record for number in Records(store).numbers() if (record := Records(store).read(number))]
    named = {name for record in kept for file in record.files.values() for name, _ in file.parts}
    found["config"] = re.sub(r'"(name|digest)": "[^"]*"', "", found["config"])
    found["lost"] = sorted({*store.list("files/"), *store.list("writers/")} - named)
    out.write_text(json.dumps(found))
    return 0


def endure(lives: Lives, kills: int, seed: int) -> list[dict[str, Any]]:
    """Kill and resume runs until there were so many kills; a row of each run."""
    draw, rows, wholes = random.Random(seed), list[dict[str, Any]](), dict[str, tuple[dict[str, Any], int]]()
    for number, name in enumerate(itertools.cycle(VARIANTS)):
        words = [*COMMAND, *VARIANTS[name], *DATA, "--dir", "s3://bucket/runs"]
        if name not in wholes:
            for _ in range(2):  # the programs of the second are in jax's cache, as in all lives
                words[words.index("--name") + 1] = f"whole-{number}"
                for key in [key for key in lives.bucket.objects if key.startswith("runs/")]:
                    del lives.bucket.objects[key]
                code, requests = lives.live(lambda words=words: train(words), f"whole-{number}")
                if code:
                    raise SystemExit(f"the run without a kill failed: see {lives.folder}/out.txt")
            wholes[name] = found(lives, f"s3://bucket/runs/whole-{number}"), requests
            print(f"whole run, saved {name}: {requests} requests", flush=True)
        done = sum(len(row["kills"]) for row in rows)
        if done >= kills:
            return rows
        words[words.index("--name") + 1] = f"run-{number}"
        moments = [draw.randint(1, wholes[name][1]) for _ in range(min(KILLS, kills - done))]
        row = killed(lives, words, f"run-{number}", wholes[name][0], moments) | {"saved": name}
        rows.append(row)
        print(f"{done + len(row['kills']):4} {name}: killed at {row['kills']}: {row['differs'] or 'equal'}", flush=True)
    raise AssertionError


def found(lives: Lives, url: str) -> dict[str, Any]:
    """What a run in the store has left."""
    out = lives.folder / "left.json"
    out.unlink(missing_ok=True)
    code, _ = lives.live(lambda: leave(url, out), "reading")
    return json.loads(out.read_text()) if code == 0 else {"code": code}  # type: ignore[no-any-return]


def killed(lives: Lives, words: list[str], name: str, whole: dict[str, Any], moments: list[int]) -> dict[str, Any]:
    """Kill a run at these requests of its lives and resume it, until a life ends before; a row that says so."""
    kills, differs, reported, code = list[tuple[int, int]](), list[str](), -1, -9
    for life, dies in enumerate((*moments, 0)):
        code, _ = lives.live(lambda: train(words), f"{name}-{life // 2}", dies)
        began, saved = lives.steps
        if began >= 0 and reported >= 0 and began < reported:
            differs.append(f"life {life} began at step {began}, and {reported} was reported saved")
        reported = max(reported, saved)
        if code != -signal.SIGKILL:
            break
        kills.append((dies, reported))
    if code:
        differs.append(f"exit code {code}")
    return {"kills": kills, "differs": [*differs, *differences(found(lives, f"s3://bucket/runs/{name}"), whole)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--json", type=Path, help="file to write all kills to")
    o = parser.parse_args()
    with workplace() as folder, loopback_s3.serving() as bucket:
        for name in IMPORTED:
            importlib.import_module(name)
        os.chdir(folder)
        print(heading(describe()), flush=True)
        lives = Lives(folder, bucket)
        if lives.live(write_images, "data")[0]:
            raise SystemExit(f"the shards could not be written: see {folder}/out.txt")
        rows = endure(lives, o.kills, o.seed)
        count = sum(len(row["kills"]) for row in rows)
        print(f"\n{count} kills of {len(rows)} runs, by how they save: {dict(Counter(row['saved'] for row in rows))}")
        said = (folder / "out.txt").read_text().splitlines()
        for line, times in Counter(re.sub(r"\d+", "N", x) for x in said if x.startswith(("skipped", "note"))).items():
            print(f"said {times} times: {line}")
        if o.json:
            o.json.write_text(json.dumps(rows, indent=1) + "\n")
        if differing := sum(bool(row["differs"]) for row in rows):
            raise SystemExit(f"{differing} of {len(rows)} runs differ; what they printed is in {folder}")


if __name__ == "__main__":
    main()
