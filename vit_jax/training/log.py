"""What is recorded of steps: their metrics, in metrics.jsonl; histograms and a trace by jax's profiler on request."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..config.run import profiled_steps
from ..files.atomic import replacing, sync_folder
from ..files.digests import bytes_digest
from ..files.metrics import HISTOGRAMS, LARGEST_HISTOGRAMS, STEP_METRICS
from ..files.reading import bounded_lines, check_regular, open_regular
from ..files.terminal import print_note
from ..machine import backend
from ..tasks.table import task_spec
from .hooks import Hooks
from .job import Job
from .progress import Progress
from .state import State


class Log:
    """Appends rows of metrics to metrics.jsonl, and shows them to hooks.

    A row is {"kind": "train" | "eval", "step": int, name: float, ...}; rows of evaluations also have "split" and
    "weights" ("raw" | "ema"). For hooks a value is called `train/loss`, `validation/accuracy`,
    `test_ema/loss`; an evaluation on the training split is called `train_split/...`.
    """

    def __init__(self, path: Path, step: int, hooks: Hooks | None = None):
        path, self._hooks = Path(path), hooks
        path.parent.mkdir(parents=True, exist_ok=True)
        self._histograms = path.with_name(HISTOGRAMS)
        for file in (path, self._histograms):
            check_regular(file, link=False)
            _cut_back(file, step)
        self._digest, self._bytes, self._in_turn = bytes_digest(), 0, True
        if path.is_file():
            with open_regular(path, link=False) as written:
                while data := written.read(1 << 20):
                    self._count(data)
        self._kept = self.written()
        exists = path.is_file()
        self._file = open(path, "ab")
        if not exists:
            sync_folder(path.parent)  # what saves record of it needs its name as well

    def write(self, row: dict[str, Any], in_turn: bool = True) -> None:
        """Append one row. NaN and infinity become null, because JSON has no such numbers."""
        row = {name: _plain(value) for name, value in row.items()}
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        self._file.write(line)
        self._file.flush()
        self._count(line)
        self._in_turn = self._in_turn and in_turn
        if self._in_turn:
            self._kept = self.written()
        if self._hooks is not None:
            self._hooks.each("row", row["step"], _scalars(row))

    def write_histograms(self, step: int, groups: dict[str, dict[str, dict[str, Any]]]) -> None:
        """Append a row to histograms.jsonl, durably, and to TensorBoard."""
        row = {group: {name: _round_histogram(h) for name, h in each.items()} for group, each in groups.items()}
        exists = self._histograms.exists()
        with open(self._histograms, "ab") as file:
            file.write((json.dumps({"step": step, **row}, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if not exists:
            sync_folder(self._histograms.parent)
        if self._hooks is not None:
            self._hooks.each("histograms", step, groups)

    def _count(self, data: bytes) -> None:
        self._digest.update(data)
        self._bytes += len(data)

    def written(self) -> dict[str, Any]:
        """{"bytes", "digest"} of metrics.jsonl as it was written, whatever has happened to the file since."""
        return {"bytes": self._bytes, "digest": self._digest.hexdigest()}

    def sync(self) -> dict[str, Any]:
        """Make the rows durable that a run which goes on from here keeps; `written` of them."""
        os.fsync(self._file.fileno())
        return dict(self._kept)

    def close(self) -> None:
        """Close all files. May be called twice."""
        self._file.close()
        if self._hooks is not None:
            self._hooks.each("close")
            self._hooks = None


def _cut_back(path: Path, step: int) -> None:
    """Remove the rows after `step` and broken lines from a file of rows, atomically; the others keep their bytes."""
    if not path.is_file():
        return
    with open_regular(path, link=False) as old:
        lines = bounded_lines(old, LARGEST_HISTOGRAMS)
        if all(line and line.endswith(b"\n") and _step_of(line) <= step for line in lines):
            return
    with replacing(path) as temporary, open_regular(path, link=False) as old, open(temporary, "wb") as file:
        lines = bounded_lines(old, LARGEST_HISTOGRAMS)
        file.writelines(line.removesuffix(b"\n") + b"\n" for line in lines if line and _step_of(line) <= step)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _step_of(line: bytes) -> float:
    """The step of a row; infinity if the line is broken."""
    try:
        row = json.loads(line)
        return row["step"] if isinstance(row["step"], int) else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def _plain(value: Any) -> Any:
    """A value for JSON: 0-d arrays become numbers, NaN and infinity None."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _round_histogram(histogram: dict[str, Any]) -> dict[str, Any]:
    """A histogram for JSON: numbers with the digits that float32 has, NaN and infinity None."""
    numbers = {name: float(f"{float(x):.7g}") for name, x in histogram.items() if name != "counts"}
    return {**{k: _plain(x) for k, x in numbers.items()}, "counts": [int(n) for n in histogram["counts"]]}


def _scalars(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row as {name in TensorBoard and W&B: value}."""
    series = row["kind"]
    if series == "eval":
        split = row.get("split", "eval")
        series = ("train_split" if split == "train" else split) + ("_ema" if row.get("weights") == "ema" else "")
    return {
        f"{series}/{name}": value for name, value in row.items() if name != "step" and isinstance(value, int | float)
    }


Measured = tuple[int, dict[str, float]]
TOKENS = "tokens_per_second"  # of targets, ends included, padding not


class Meter:
    """Reads each step's metrics once the next has been sent, so that the host never waits for the newest.

    `totals` counts the steps, and the places for ids and the padding in their batches, and sums the loss and the task's
    metrics, since the last row of metrics.jsonl. Checkpoints contain it, so that a resumed run writes the same rows as
    an uninterrupted one. `most` are the examples per second of an MFU of 1, or 0. `on_votes` takes the hosts'.
    """

    def __init__(
        self, batch: float, unit: str, totals: dict[str, float], on_votes: Callable[[Any], None], most: float = 0.0
    ):
        self.batch, self.speed, self.totals = batch, f"{unit}_per_second", totals
        self.on_votes, self.most = on_votes, most
        self.pending: tuple[int, dict[str, Any], list[tuple[int, int, int]]] | None = None
        self.last: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        """Start to measure speed and CPU time anew, without the time since the last step."""
        self.clock, self.counted, self.tokens, self.cpu_clock = time.monotonic(), 0, 0, time.process_time()

    def cpu(self) -> float:
        """Seconds of CPU time of this process, all its threads, since this was last asked or `restart` called."""
        before, self.cpu_clock = self.cpu_clock, time.process_time()
        return self.cpu_clock - before

    def add(self, step: int, metrics: dict[str, Any], tokens: list[tuple[int, int, int]]) -> list[Measured]:
        """Store the metrics of some steps, and return those of the steps before."""
        previous = self.settle()
        self.pending = (step, metrics, tokens)
        self.counted += len(tokens)
        self.tokens += sum(each[0] for each in tokens)
        return previous

    def settle(self) -> list[Measured]:
        """Wait for the stored metrics and return (step, metrics) of each step; none if they were read already."""
        import jax

        if self.pending is None:
            return []
        step, metrics, tokens = self.pending
        self.pending, found = None, []
        values = {name: np.atleast_1d(x) for name, x in jax.device_get(metrics).items()}
        self.on_votes(values.pop("votes", None))
        for i, (_, places, padding) in enumerate(tokens):
            self.last = {name: float(x[i]) for name, x in values.items()}
            counts = {"steps": 1, **({"places": places, "padding": padding} if places else {})}
            for name, count in counts.items():
                self.totals[name] = self.totals.get(name, 0) + count
            for name in self.means:
                self.totals[name] = self.totals.get(name, 0.0) + self.last[name]
            found.append((step - len(tokens) + 1 + i, self.last))
        return found

    @property
    def means(self) -> list[str]:
        """The names of the metrics that are means over a batch: the loss, then the task's own."""
        return ["loss", *(name for name in self.last if name not in ("loss", *STEP_METRICS))]

    def row(self, step: int, epoch: float, in_turn: bool) -> dict[str, Any]:
        """A row of metrics.jsonl, with the loss and the task's metrics as means over the steps since the last row.

        Where the peak of the devices is known also the MFU. Of batches of ids also the target tokens per second and the
        padding, a share of all places in these batches.
        """
        means = {name: self.totals[name] / self.totals["steps"] for name in self.means}
        seconds = max(time.monotonic() - self.clock, 1e-9)
        speeds = {self.speed: self.counted * self.batch / seconds if self.counted else None}
        if self.most and self.counted:
            speeds["mfu"] = self.counted * self.batch / seconds / self.most
        if places := self.totals.get("places"):
            means["padding"] = self.totals["padding"] / places
            speeds[TOKENS] = self.tokens / seconds if self.counted else None
        if in_turn:
            self.totals.update(dict.fromkeys(self.totals, 0))
        self.restart()
        return {"kind": "train", "step": step, "epoch": epoch, **self.last, **means, **speeds}


class Recording:
    """The first that follows a step: the progress line, and when due a row of metrics.jsonl.

    Takes the metrics of steps to `accept`, which raises CheckFailed where they are not finite, and the votes of hosts
    to `on_votes`.
    """

    def __init__(
        self, job: Job, state: State, accept: Callable[[list[Measured]], None], on_votes: Callable[[Any], None]
    ):
        self.job, self.state, self.accept = job, state, accept
        self.log = self._open_log()
        steps, batch, unit = job.order.steps_per_epoch, job.order.batch, task_spec(job.run.task).unit
        self.progress = Progress(job.epochs, steps, state.step + 1, batch, job.stop, unit=unit)
        self.meter = Meter(batch, unit, state.totals, on_votes)

    def _open_log(self) -> Log:
        """The log of the run, without the rows that will be written again; hooks begin."""
        folder, state, hooks = self.job.folder, self.state, self.job.hooks
        if remark := folder.log_remark(state.step):
            print_note(remark)
        ends = self.job.is_end(state.step, state.stale)
        folder.drop_metrics(lambda row: _is_rewritten(row, state, ends))
        try:
            hooks.each("begin", folder, self.job.stated, state.step)
            return Log(folder.metrics_file, state.step, hooks)
        except BaseException:
            hooks.each("close")
            raise

    def after_step(self) -> None:
        """Write a row if it is due; it has the means of the steps since the row before."""
        job, run, state, meter = self.job, self.job.run, self.state, self.meter
        in_turn = not (state.step % run.log_every and state.step % job.order.steps_per_epoch)
        if not in_turn and state.step != job.stop:
            self.progress.update(state.step)
            return
        self.settle()
        row = meter.row(state.step, job.epochs_of(state.step), in_turn)
        self.log.write(row | {"memory": backend.memory_peak(), "cpu_seconds": state.cpu_seconds}, in_turn)
        values = {name: row[name] for name in meter.means}
        speeds = {"examples": meter.speed, "tokens": TOKENS, "padding": "padding", "mfu": "mfu"}
        self.progress.update(state.step, values, **{name: row.get(key) for name, key in speeds.items()})

    def settle(self) -> None:
        """Wait for the metrics of all steps that were sent, and count their CPU time."""
        self.accept(self.meter.settle())
        self.state.cpu_seconds += self.meter.cpu()

    def restart(self) -> None:
        """Measure speed and CPU time anew, without the time since the last step."""
        self.meter.restart()
        self.progress.restart()


WATCHED = ("train", "validation")  # what is measured during training


def _is_rewritten(row: dict[str, Any], state: State, ends: bool) -> bool:
    """Whether a row of metrics.jsonl will be written again by a run that goes on after a state.

    Of the rows of its step (Log removes those of later steps) these are: evaluations at the end of a run, if it `ends`
    there (else they are of an end beyond which it goes on), the evaluation that is due, and the row that
    was written out of turn when a budget ended the process.
    """
    if row["step"] != state.step:
        return False
    if row["kind"] == "eval":
        return state.due if row.get("split") in WATCHED else ends
    return bool(state.totals.get("steps"))


class Profile:
    """Traces the steps that `profile_steps` names ("FIRST:LAST", counted from 1; empty: none) into a folder.

    Within `with`, `begin` is called before each step and `end` after it. `say` prints a line.
    """

    def __init__(self, steps: str, folder: Path, say: Callable[[str], None]):
        self.steps, self.folder, self.say = profiled_steps(steps), folder, say
        self.first = 0  # of the trace that has begun

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *error: object) -> None:
        if self.first:
            self._stop(f"from step {self.first} on, as training ended before step {self.steps[-1]}")

    def begin(self, step: int) -> None:
        """Start the trace if this is one of its steps: the first, or that with which a resumed run begins."""
        import jax

        if step in self.steps and not self.first:
            jax.profiler.start_trace(self.folder, create_perfetto_trace=True)
            self.first = step

    def end(self, step: int, results: Any) -> None:
        """End the trace if this is its last step."""
        import jax

        if self.first and step == self.steps[-1]:
            jax.block_until_ready(results)  # the step itself has only been sent
            self._stop(f"of steps {self.first} to {step}")

    def _stop(self, what: str) -> None:
        import jax

        jax.profiler.stop_trace()
        self.first = 0
        newest = max(
            self.folder.rglob("perfetto_trace.json.gz"), key=lambda file: file.stat().st_mtime, default=self.folder
        )
        self.say(f"profile  a trace {what}: open {newest} at https://ui.perfetto.dev")
