"""Kill training runs at moments drawn over their CPU time, resume each, and compare what is left with whole runs.

    python -m benchmarks.endurance [--kills 200] [--seed 0] [--json FILE] [--run "digits --epochs 30"]

A life is the training command in a process that is forked from this one, where all is imported and jax has not started
anything. The kernel sends it SIGKILL once it has used as much CPU time as was drawn: uniformly over that of a whole
run, or, in the first life of every second run, over its saves. The same command then goes on, to be killed up to three
times in all, until a life ends before its moment. Of what is left, all must be as in a run that was never killed, bit
for bit: parameters, moments and averages (each proved by its digest), notes, metrics.jsonl and summary.json without
what clocks measure, config.json, pictures, and the list of files. Exits with 1 if anything differs; the folder then
stays.

The run is tiny and has everything that draws: crops, flips, dropout, drop path; also accumulation and an average. With
--run it is the one that these words train, and a single run is killed as often as stated, each life after a share of
the whole run's CPU time that is drawn so that they pass through it together.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import importlib
import itertools
import json
import mmap
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading
from vit_jax.files.digests import bytes_digest
from vit_jax.runs import Run

COMMAND = shlex.split(
    "digits --name run --epochs 3 --batch 256 --accumulate 2 --ema 0.8 --keep 1 --log-every 4 "
    "--model.width 16 --model.depth 1 --model.heads 2 --model.hidden 16 --model.patch 4 --model.init-std 0.2 "
    "--model.dropout 0.1 --model.attention-dropout 0.1 --model.drop-path 0.2 "
    "--augment.flip --augment.crop-padding 1 --optim.lr 3e-2 --optim.clip 1"
)
# {how a run saves: its flags}
VARIANTS = {
    "each epoch": [],
    "each step": ["--save-minutes", "0"],
    "each epoch, in a thread": ["--async-save"],
    "each step, in a thread": ["--async-save", "--save-minutes", "0", "--steps-per-dispatch", "2"],
}
DRAWN = {"each epoch"}  # which draw their pictures, too
KILLS = 3  # of a run, at most
START = 2.5  # seconds of CPU time that a life has at least with --run: about its start
CLOCKS = {"seconds", "cpu_seconds", "images_per_second", "memory"}
# (module, class, function, what is going on within it); of a save in a cell of its own, as it may have its own thread.
SAVING = (
    ("vit_jax.weights.checkpoint", "Checkpoints", "save", "writing arrays"),
    ("vit_jax.weights.checkpoint", "", "sync_tree", "syncing arrays"),
    ("vit_jax.weights.checkpoint", "Checkpoints", "_write_record", "writing digests"),
    ("vit_jax.weights.checkpoint", "Checkpoints", "prune", "deleting old ones"),
)
ELSE = (
    ("vit_jax.training.loop", "Loop", "until_end", "steps"),
    ("vit_jax.training.engine.engine", "Engine", "train", "steps, the first compiles"),
    ("vit_jax.training.engine.engine", "Engine", "train_together", "steps, the first compiles"),
    ("vit_jax.training.engine.evaluator", "Evaluator", "measure", "evaluation"),
    ("vit_jax.training.train", "", "finish", "end"),
    ("vit_jax.training.finish", "", "draw", "pictures"),
    ("vit_jax.extras.report.hook", "", "leave_report", "report"),
)
# What a life imports, before it is forked: without, half of its CPU time would be that.
IMPORTED = (
    *(
        "flax.nnx",
        "jax",
        "optax",
        "orbax.checkpoint",
        "matplotlib.pyplot",
        "PIL.Image",
        "rich.live",
        "sklearn.datasets",
    ),
    *("vit_jax.extras.report.contents", "vit_jax.extras.report.command"),
    *("vit_jax.figures", "vit_jax.tasks.classify.learn", "vit_jax.commands.train"),
    *dict.fromkeys(module for module, *_ in (*ELSE, *SAVING)),
)
STAGES = ["start-up", *dict.fromkeys(what for *_, what in (*ELSE, *SAVING))]


class Watch:
    """What a life is doing, in memory that it shares with its parent, and when it saved, in its CPU time."""

    def __init__(self) -> None:
        self.cells = mmap.mmap(-1, 2)  # numbers in STAGES: of the main thread, of a save
        self.saves: list[tuple[float, float]] = []

    @property
    def saving(self) -> bool:
        return bool(self.cells[1])

    @property
    def stage(self) -> str:
        return STAGES[self.cells[1] or self.cells[0]]

    def clear(self) -> None:
        self.cells[0] = self.cells[1] = 0

    def install(self) -> None:
        """Watch the functions of this process."""
        for cell, functions in enumerate((ELSE, SAVING)):
            for module, owner, name, what in functions:
                place = sys.modules[module] if not owner else getattr(sys.modules[module], owner)
                setattr(place, name, self._watched(getattr(place, name), cell, STAGES.index(what), name == "save"))

    def _watched(self, function: Callable[..., Any], cell: int, stage: int, save: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            before, began = self.cells[cell], time.process_time()
            self.cells[cell] = stage
            try:
                return function(*args, **kwargs)
            finally:
                self.cells[cell] = before
                if save:
                    self.saves.append((began, time.process_time()))

        return watched


def left(run: Run) -> dict[str, Any]:
    """What a run leaves, as JSON, without what clocks measure; each array is read and compared with its digest."""
    from vit_jax.weights.checkpoint import Checkpoints

    saved, skipped = Checkpoints(run).restore(run.config().model.shapes())
    assert saved is not None
    files = [p for p in sorted(run.path.rglob("*")) if p.is_file() and run.checkpoints not in p.parents]
    return {
        "skipped": skipped,
        "arrays": run.saved(saved.step)["arrays"],
        "notes": {k: v for k, v in saved.notes.items() if k not in CLOCKS},
        "log": [{k: v for k, v in row.items() if k not in CLOCKS} for row in run.metrics()],
        "summary": {k: v for k, v in (run.summary() or {}).items() if k not in CLOCKS},
        "config": run.config_file.read_text(),
        "steps": sorted(p.name for p in run.checkpoints.iterdir()),
        "files": [str(p.relative_to(run.path)) for p in files],
        "pictures": {p.name: digest(p) for p in files if p.suffix == ".png"},
        "beside": sorted(p.name for p in run.path.parent.iterdir()),
    }


def digest(path: Path) -> str:
    found = bytes_digest()
    found.update(path.read_bytes())
    return found.hexdigest()


def kill_after(seconds: float) -> None:
    """Have the kernel send this process SIGKILL once it has used so many seconds of CPU time, in all its threads."""
    libc = ctypes.CDLL(None, use_errno=True)
    event = (ctypes.c_int * 16)(0, 0, signal.SIGKILL, 0)  # struct sigevent: a value, the signal, SIGEV_SIGNAL
    timer, whole = ctypes.c_void_p(), int(seconds)
    when = (ctypes.c_long * 4)(0, 0, whole, max(1, int((seconds - whole) * 1e9)))  # struct itimerspec
    process_cpu_time = 2
    if libc.timer_create(process_cpu_time, event, ctypes.byref(timer)) or libc.timer_settime(timer, 0, when, None):
        raise OSError(ctypes.get_errno(), "no timer of CPU time")


@dataclass
class Life:
    """How a life ended."""

    killed: bool
    code: int  # its exit code, unless it was killed
    cpu: float  # seconds
    left: dict[str, Any]  # of one that ended well: what is left, and "saves", their CPU times


def live(place: Path, words: list[str], watch: Watch, dies: float = 0.0, pictures: bool = False) -> Life:
    """Train in a folder, in a forked process, which is killed after `dies` seconds of CPU time (0: it is not)."""
    out = place / "left.json"
    out.unlink(missing_ok=True)
    watch.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # jax warns of any fork: only one with work in progress hangs
        child = os.fork()
    if child == 0:
        _train(place, words, watch, dies, pictures, out)
    _, status, used = os.wait4(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    code = 0 if killed else os.waitstatus_to_exitcode(status)
    ended = json.loads(out.read_text()) if code == 0 and not killed else {}
    return Life(killed, code, used.ru_utime + used.ru_stime, ended)


def _train(place: Path, words: list[str], watch: Watch, dies: float, pictures: bool, out: Path) -> None:
    """The child: train, and write what is left. It ends here."""
    code = 70
    try:
        os.chdir(place)
        log = os.open("out.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from vit_jax.commands import train as command
        from vit_jax.files.terminal import run_command

        if not pictures:
            from vit_jax.extras.report import hook

            sys.modules["vit_jax.training.finish"].draw = hook.leave_report = lambda *_: ""
        watch.install()
        if dies:
            kill_after(dies)
        print("$", shlex.join(words), flush=True)
        code = run_command(lambda: command.command(words))
        sys.stdout.flush()
        if code == 0:
            out.write_text(json.dumps({**left(Run("runs/run")), "saves": watch.saves}))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@dataclass
class Whole:
    """A run that was never killed: what it left, its CPU time, and the CPU times of its saves."""

    left: dict[str, Any]
    cpu: float
    saves: list[tuple[float, float]]


def whole(place: Path, words: list[str], watch: Watch, pictures: bool) -> Whole:
    """Train it twice, so that the programs of the second are in jax's cache, as in all lives. Exits if it fails."""
    place.mkdir(parents=True)
    for _ in range(2):
        shutil.rmtree(place / "runs", ignore_errors=True)
        life = live(place, words, watch, pictures=pictures)
        if life.killed or life.code:
            raise SystemExit(f"the run without a kill failed:\n{(place / 'out.txt').read_text()}")
    saves = life.left.pop("saves")
    return Whole(life.left, life.cpu, saves)


def moment(draw: random.Random, found: Whole, in_save: bool) -> float:
    """A moment of a whole life, in seconds of CPU time: uniform over it, or over its saves."""
    if not in_save:
        return draw.uniform(0, found.cpu)
    began, ended = draw.choices(found.saves, [end - begin for begin, end in found.saves])[0]
    return draw.uniform(began, ended)


def differences(got: Any, expected: Any, name: str = "") -> Iterator[str]:
    """The names of the values that differ in two JSON values."""
    if isinstance(got, dict) and isinstance(expected, dict):
        for key in dict.fromkeys((*expected, *got)):
            yield from differences(got.get(key), expected.get(key), f"{name}.{key}".lstrip("."))
    elif repr(got) != repr(expected):
        yield name


def endure(kills: int, seed: int, folder: Path, watch: Watch) -> list[dict[str, Any]]:
    """Kill and resume runs until there were so many kills; a row of each run."""
    wholes: dict[str, Whole] = {}
    for number, (name, flags) in enumerate(VARIANTS.items()):
        wholes[name] = whole(folder / f"whole-{number}", [*COMMAND, *flags], watch, name in DRAWN)
        print(f"whole run, saved {name}: {wholes[name].cpu:.1f} CPU seconds", flush=True)
        first = wholes[next(iter(VARIANTS))]
        if differing := [*differences(wholes[name].left["arrays"], first.left["arrays"])]:
            raise SystemExit(f"a run saved {name} has other arrays than one that is not: {', '.join(differing)}")
    draw, rows = random.Random(seed), list[dict[str, Any]]()
    for number, name in enumerate(itertools.cycle(VARIANTS)):
        done = sum(len(row["kills"]) for row in rows)
        if done >= kills:
            return rows
        place, in_save = folder / f"killed-{number}", number // len(VARIANTS) % 2 == 1
        moments = [moment(draw, wholes[name], in_save and not i) for i in range(min(KILLS, kills - done))]
        row = killed(place, name, wholes[name], watch, [*COMMAND, *VARIANTS[name]], moments)
        rows.append(row)
        print(f"{done + len(row['kills']):4} {name}: {told(row, place)}", flush=True)
        if not row["differs"]:
            shutil.rmtree(place)
    raise AssertionError


def endure_one(words: list[str], kills: int, seed: int, folder: Path, watch: Watch) -> list[dict[str, Any]]:
    """Kill one run so many times, whatever it is, and compare it with the same that is not; its row."""
    found = whole(folder / "whole", words, watch, False)
    steps, rows = found.left["log"][-1]["step"], len(found.left["log"])
    print(f"whole run: {found.cpu:.1f} CPU seconds, {steps} steps, {rows} rows of metrics.jsonl", flush=True)
    draw = random.Random(seed)
    share = 1.2 * found.cpu / kills  # half of it on average, so that the end comes after the last kill
    row = killed(folder, "as stated", found, watch, words, [START + draw.uniform(0, share) for _ in range(kills)])
    print(f"{len(row['kills'])} kills: {told(row, folder)}", flush=True)
    return [row]


def told(row: dict[str, Any], place: Path) -> str:
    """The moments of a run's kills, and whether it ended equal."""
    moments = ", ".join(f"{kill['after']:.2f} s ({kill['stage']})" for kill in row["kills"])
    ends = "; ".join(["differs", *row["differs"], f"see {place}"]) if row["differs"] else "equal"
    return f"killed after {moments or 'its end'}: {ends}"


def killed(
    place: Path, name: str, found: Whole, watch: Watch, words: list[str], moments: Sequence[float]
) -> dict[str, Any]:
    """Kill a run at these moments of its lives and resume it, until a life ends before its moment; a row that says so.

    The last life has none.
    """
    place.mkdir(exist_ok=True)
    kills = list[dict[str, Any]]()
    for after in (*moments, 0.0):
        life = live(place, words, watch, after, name in DRAWN)
        if not life.killed:
            break
        kills.append({"after": after, "stage": watch.stage, "saving": watch.saving})
    life.left.pop("saves", None)
    differs = [f"exit code {life.code}"] if life.code else [*differences(life.left, found.left)]
    lines = [x for x in (place / "out.txt").read_text().splitlines() if x.startswith(("skipped", "note"))]
    return {"saved": name, "kills": kills, "differs": differs, "said": lines}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """A Markdown table of kills by stage and variant, and how many of them were of runs that ended equal."""
    every = [(kill["stage"], row["saved"], not row["differs"]) for row in rows for kill in row["kills"]]
    lines = [f"| killed during | {' | '.join(VARIANTS)} | equal |", "|---|" + "---|" * (len(VARIANTS) + 1)]
    for what, stages in (*((stage, {stage}) for stage in STAGES), ("all", {*STAGES})):
        found = [kill for kill in every if kill[0] in stages]
        counts = Counter(saved for _, saved, _ in found)
        numbers = " | ".join(str(counts[name]) for name in VARIANTS)
        if found:
            lines.append(f"| {what} | {numbers} | {sum(equal for *_, equal in found)} of {len(found)} |")
    return lines


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder for the runs and jax's cache of programs, which stays if the block ends by an exception or an exit."""
    folder = Path(tempfile.mkdtemp(prefix="endurance-"))
    os.environ.update(
        JAX_PLATFORMS="cpu",
        JAX_COMPILATION_CACHE_DIR=str(folder / "programs"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        MPLBACKEND="agg",
    )
    yield folder
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--run", type=shlex.split, help="words of the command train, instead of the tiny run")
    parser.add_argument("--json", type=Path, help="file to write all kills to")
    o = parser.parse_args()
    with workplace() as folder:
        for name in IMPORTED:
            importlib.import_module(name)
        print(heading(describe()), flush=True)
        watch = Watch()
        if o.run:
            rows = endure_one([*o.run, "--name", "run"], o.kills, o.seed, folder, watch)
        else:
            rows = endure(o.kills, o.seed, folder, watch)
            print("\n" + "\n".join(table(rows)))
        saving = [row["saved"] for row in rows for kill in row["kills"] if kill["saving"]]
        threads = sum("thread" in name for name in saving)
        print(f"\n{len(saving)} kills while a save was under way, {threads} of them in a thread; {len(rows)} runs")
        for line, count in Counter(re.sub(r"\d+", "N", text) for row in rows for text in row["said"]).items():
            print(f"said {count} times: {line}")
        if o.json:
            o.json.write_text(json.dumps(rows, indent=1) + "\n")
        if differing := sum(bool(row["differs"]) for row in rows):
            raise SystemExit(f"{differing} of {len(rows)} runs differ; their folders are in {folder}")


if __name__ == "__main__":
    main()
