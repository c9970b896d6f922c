"""The overhead of the host in training: the training loop compared with its compiled step alone, in one process.

    python -m benchmarks.host [--presets ...] [--rounds 5] [--json OUT]

The loop is that of vit_jax.train on a preset, with augmentation and dropout. It takes random images of CIFAR's shape
from an .npz in memory, logs to a file, and draws the live bar (to /dev/null). The device's part is the same compiled
step, called repeatedly on one batch that stays on the device. Compilation, evaluation and checkpoints are not
measured. Blocks of both alternate; each begins and ends when all steps that were sent are done.

overhead   (loop - device) / device, of wall time
CPU        (loop - device) / device, of the CPU time of the process: batches, transfers and bookkeeping
main       CPU time per step of the thread of the loop, which does not depend on the machine's load
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, load, spread
from vit_jax import backend, runs
from vit_jax.config import ImageData
from vit_jax.presets.table import preset

PRESETS = "cifar10-48x4,cifar10-128x6,cifar10-256x6"
REQUIRED, GOAL = 5.0, 1.0  # percent
IMAGES = 50_000


@dataclass
class Marks:
    """The clocks before the first step of a block and after its last one, when no step is running on the device."""

    every: int  # steps between rows of metrics.jsonl
    calls: int = 0
    first: tuple[float, float, float] | None = None
    last: tuple[float, float, float] | None = None
    steps: int = 0  # between `first` and `last`

    def before_step(self) -> None:
        self.calls += 1
        # The loop has just written a row, for which it waited for all steps.
        if self.calls > 1 and (self.calls - 1) % self.every == 0:
            now = clocks()
            self.first = self.first or now
            self.last, self.steps = now, self.steps + (self.every if self.first != now else 0)


def clocks() -> tuple[float, float, float]:
    """(wall time, CPU time of this thread, CPU time of the process), in seconds."""
    return time.perf_counter(), time.thread_time(), time.process_time()


class NoCheckpoints:
    """In place of Checkpoints, so that saving is not measured."""

    def save(self, *_: Any) -> None: ...

    def note(self, *_: Any) -> None: ...


def images(folder: Path) -> str:
    """Write a set of random images of CIFAR's shape, and return its data.source."""
    import numpy as np

    draw, path = np.random.default_rng(0), folder / "noise.npz"
    np.savez(path, images=draw.integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8), labels=np.arange(IMAGES) % 10)
    return str(path)


def session(name: str, source: str, folder: Path) -> Any:
    """The session of a preset's run, as vit_jax.train sets it up, but without checkpoints."""
    from vit_jax.training.session import open_session
    from vit_jax.training.signals import Caught

    run = replace(preset(name).run, data=ImageData(source=source), dir=str(folder), epochs=1000)
    s = open_session(run, name, runs.Run(folder / name), Caught())
    s.checkpoints = NoCheckpoints()
    return s


def loop_block(s: Any, blocks: int, bar: bool) -> tuple[list[float], int]:
    """([seconds of wall, thread, process], number of steps) of the training loop for `blocks` x log_every steps."""
    from vit_jax.report import Progress
    from vit_jax.training.loop import loop

    every = s.run.log_every
    per_epoch = s.setup.order.steps_per_epoch
    if s.step % per_epoch + (blocks + 3) * every > per_epoch:  # no evaluation in between: start at the next epoch
        s.step += per_epoch - s.step % per_epoch
    s.step += -s.step % every
    stop = s.step + (blocks + 1) * every + 1
    s.setup = replace(s.setup, run=replace(s.run, max_steps=stop))
    with open(os.devnull, "w") as nothing:
        console = None
        if bar:
            from rich.console import Console

            console = Console(file=nothing, force_terminal=True, width=120)
        s.progress = Progress(s.setup.epochs, per_epoch, s.step + 1, s.run.batch, stop, console=console)
        marks, train = Marks(every), s.engine.train

        def timed(state: Any, batch: Any) -> Any:
            marks.before_step()
            return train(state, batch)

        s.engine.train = timed
        try:
            loop(s)
        finally:
            del s.engine.train  # the instance's attribute, so that the method is found again
    assert marks.first and marks.last and marks.steps == blocks * every, marks
    return [b - a for a, b in zip(marks.first, marks.last, strict=True)], marks.steps


def device_block(engine: Any, state: Any, batch: Any, steps: int) -> tuple[list[float], Any]:
    """([seconds of wall, thread, process], the next state) of `steps` calls of the compiled step alone."""
    import jax

    before = clocks()
    for _ in range(steps):
        state, metrics = engine.compiled(state, batch, engine.seed, engine.frozen)
    jax.block_until_ready((state, metrics))
    return [b - a for a, b in zip(before, clocks(), strict=True)], state


def compare(name: str, source: str, folder: Path, rounds: int, seconds: float, bar: bool) -> dict[str, Any]:
    """Measure one preset, print the results and return them."""
    import jax
    import numpy as np

    s = session(name, source, folder)
    engine = s.engine
    batch = jax.device_put(
        {
            "image": s.setup.dataset.splits["train"].take(np.arange(s.run.batch)),
            "label": np.zeros(s.run.batch, np.int32),
        },
        engine.devices.sharded,
    )
    state = engine.to_devices(jax.tree.map(np.asarray, s.state))  # a copy, because both sides donate their state
    _, state = device_block(engine, state, batch, 2)
    rough, state = device_block(engine, state, batch, 3)
    blocks = max(
        1, min(round(seconds / (rough[0] / 3 * s.run.log_every)), s.setup.order.steps_per_epoch // s.run.log_every - 4)
    )
    rows: list[dict[str, float]] = []
    for i in range(rounds):
        steps = blocks * s.run.log_every
        if i % 2:
            device, state = device_block(engine, state, batch, steps)
        looped, steps = loop_block(s, blocks, bar)
        if not i % 2:
            device, state = device_block(engine, state, batch, steps)
        rows.append(
            {
                "loop_ms": 1e3 * looped[0] / steps,
                "device_ms": 1e3 * device[0] / steps,
                "main_ms": 1e3 * looped[1] / steps,
                "overhead": 100 * (looped[0] / device[0] - 1),
                "cpu": 100 * (looped[2] / device[2] - 1),
            }
        )
    s.log.close()
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    row = {
        "preset": name,
        "batch": s.run.batch,
        "steps": blocks * s.run.log_every,
        "rounds": rows,
        **middle,
        "load": load(),
    }
    row["spread"] = spread([r["overhead"] for r in rows])
    row["of_minimums"] = 100 * (min(r["loop_ms"] for r in rows) / min(r["device_ms"] for r in rows) - 1)
    row["main_share"] = 100 * row["main_ms"] / min(r["device_ms"] for r in rows)
    row["compiled"] = engine.compiled._cache_size()
    print(
        f"{name:14} batch {s.run.batch:3}: device {row['device_ms']:7.1f} ms, loop {row['loop_ms']:7.1f} ms per step; "
        f"overhead {row['overhead']:+.1f} % [{row['spread']['low']:+.1f}..{row['spread']['high']:+.1f}], "
        f"of the fastest rounds {row['of_minimums']:+.1f} %; CPU {row['cpu']:+.1f} %; "
        f"main thread {row['main_ms']:.2f} ms = {row['main_share']:.1f} %; "
        f"{rounds} rounds of {row['steps']} steps, load {row['load']}; programs compiled {row['compiled']}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default=PRESETS, help=f"names of presets on CIFAR; default: {PRESETS}")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of steps of the loop and of the device")
    parser.add_argument("--seconds", type=float, default=6, help="length of a block, at least log_every steps")
    parser.add_argument("--plain", action="store_true", help="plain lines instead of the live bar")
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    backend.configure_jax()
    machine = describe()
    print(heading(machine), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        source = images(Path(folder))
        rows = [compare(name, source, Path(folder), o.rounds, o.seconds, not o.plain) for name in o.presets.split(",")]
    worst = max(row["overhead"] for row in rows)
    print(f"worst {worst:+.1f} % of the step; required at most {REQUIRED:.0f} %, goal {GOAL:.0f} %")
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
