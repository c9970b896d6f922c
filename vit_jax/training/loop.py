"""The training loop: take a batch, do a step, then log, evaluate and save when due."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CheckFailed
from ..files.metrics import STEP_METRICS
from ..machine import backend
from ..machine.division import most_examples as most_examples_of
from .log import Batches, Profile, steps_together
from .session import NOTED, Event, Session
from .stopping import Decision

if TYPE_CHECKING:
    from ..tasks.base import Evaluation, Task
    from .engine.engine import Engine
    from .log import Batch

Measured = tuple[int, dict[str, float]]
TOKENS = "tokens_per_second"  # of targets, ends included, padding not


def loop(s: Session) -> Generator[Event, None, str]:
    """Do steps until the run ends."""
    from ..data.batches import batches

    if s.due:
        _measure_epoch(s)
        if s.hosts.owner:
            s.checkpoints.note(s.step, _checkpoint_notes(s), _state_of_files(s))
        yield from s.new_events()
    if ending := _why_end(s):
        return ending
    with (
        contextlib.closing(
            batches(s.setup.dataset.splits["train"], s.setup.order, s.step, s.setup.stop, s.engine.devices.rows)
        ) as stream,
        s.progress,
        s.caught.waiting(),
        s.saver,
        Profile(s.run.profile_steps, s.folder.path / "profile", s.progress.say) as profile,
    ):
        ahead = Batches(stream)
        compiled: set[tuple[Engine, int]] = set()
        meter = Meter(s.setup.order.batch, s.task.unit, s.totals, s.decision, most_examples(s))
        _send_next(s, ahead, meter, profile, compiled)
        s.decision.saved = time.monotonic()
        while True:
            s.saver.check()
            after_step(s, meter)
            yield from _tell(s, meter)
            ending = _why_end(s)
            if ending or _evaluation_due(s) or "save" in s.decision.known:
                _accept(s, meter.settle())
                s.cpu_seconds += meter.cpu()
                save(s)
                s.decision.has_saved()
                meter.restart()
                s.progress.restart()
            if ending:
                return ending
            _send_next(s, ahead, meter, profile, compiled)


def _tell(s: Session, meter: Meter) -> Iterator[Event]:
    """What has happened. The time that the caller takes for it is not the run's; if he leaves, the run is saved."""
    try:
        for event in s.new_events():
            clock, cpu_clock = time.monotonic(), time.process_time()
            yield event
            meter.clock += time.monotonic() - clock
            meter.cpu_clock += time.process_time() - cpu_clock
    except GeneratorExit:
        with contextlib.suppress(CheckFailed):  # what is not finite is not saved
            _accept(s, meter.settle())
            s.cpu_seconds += meter.cpu()
            save(s)
        raise


def _send_next(s: Session, ahead: Batches, meter: Meter, profile: Profile, compiled: set[tuple[Engine, int]]) -> None:
    """Do the next step, or as many steps together as may be, and read the metrics of those before.

    `compiled` are the stages of the run, and in each the numbers of steps, that this process has done together. The
    first steps of others compile: their time is printed and does not count in the speed.
    """
    run, order = s.run, s.setup.order
    every = [run.log_every, order.steps_per_epoch, *([run.histograms] if run.histograms else [])]
    count = steps_together(s.step, run.steps_per_dispatch, every, s.setup.stop, profile.steps, s.setup.stages)
    if count > 1 and any(map(s.hooks.due, range(s.step + 1, s.step + count + 1))):
        count = 1
    batches = ahead.take(count)
    count, engine = len(batches), s.engine
    if (engine, count) in compiled:
        _accept(s, meter.add(s.step + count, steps(s, batches, profile), tokens(s, batches)))
        return
    _accept(s, meter.settle())
    s.cpu_seconds += meter.cpu()
    began, what = time.monotonic(), "step" if count == 1 else f"{count} steps"
    s.progress.say(f"compiling the training {'step' if count == 1 else f'program for {count} steps'} ...")
    meter.add(s.step + count, steps(s, batches, profile), tokens(s, batches))
    _accept(s, meter.settle())
    s.progress.say(f"first {what} done after {time.monotonic() - began:.1f} s, compilation included")
    compiled.add((engine, count))
    meter.most = most_examples(s)
    meter.restart()
    s.progress.restart()


def steps(s: Session, batches: list[Batch], profile: Profile) -> dict[str, Any]:
    """Do a step for each of these batches; returns their metrics, on the device: scalars, or of several steps [n]."""
    if s.run.histograms and s.step % s.run.histograms == 0:
        s.log.write_histograms(s.step + 1, s.engine.histograms(s.state, batches[0]))
    if due := len(batches) == 1 and s.hooks.due(s.step + 1):
        s.hooks.each("before", s, batches[0])
    profile.begin(s.step + 1)
    votes = s.decision.votes()
    if len(batches) == 1:
        s.state, metrics = s.engine.train(s.state, batches[0], votes)
    else:
        s.state, metrics = s.engine.train_together(s.state, batches, votes)
    s.step += len(batches)
    s.hosts.heartbeat(s.step)
    profile.end(s.step, metrics)
    if due:
        s.hooks.each("step", s, s.step, metrics)
    return metrics


def most_examples(s: Session) -> float:
    """Examples per second at which the run's devices would work at their peak in the next step; 0: unknown."""
    run = replace(s.run, model=s.engine.model)
    return most_examples_of(run, s.setup.teacher, s.engine.devices.target.kind, len(s.engine.devices))


def tokens(s: Session, batches: list[Batch]) -> list[tuple[int, int, int]]:
    """`Task.tokens` of each batch."""
    return [tuple(count * s.hosts.count for count in s.task.tokens(batch)) for batch in batches]  # type: ignore[misc]


def after_step(s: Session, meter: Meter) -> None:
    """Log and evaluate if due."""
    epoch_ends = s.step % s.setup.order.steps_per_epoch == 0
    in_turn = s.step % s.run.log_every == 0 or epoch_ends
    if in_turn or s.step == s.setup.stop:
        _accept(s, meter.settle())
        s.cpu_seconds += meter.cpu()
        row = meter.row(s.step, s.epoch, in_turn)
        s.log.write(row | {"memory": backend.memory_peak(), "cpu_seconds": s.cpu_seconds}, in_turn)
        values = {name: row[name] for name in meter.means}
        speeds = {"examples": meter.speed, "tokens": TOKENS, "padding": "padding", "mfu": "mfu"}
        s.progress.update(s.step, values, **{name: row.get(key) for name, key in speeds.items()})
    else:
        s.progress.update(s.step)
    s.due = _evaluation_due(s)
    if s.due and not s.decision.signal:
        with contextlib.suppress(KeyboardInterrupt):  # an interrupted evaluation is repeated on resumption
            _measure_epoch(s)
        meter.restart()


def _why_end(s: Session) -> str:
    """Why the loop ends after this step, as the status of summary.json: "finished" or "stopped: ..."; else ''."""
    if not s.due and s.setup.is_end(s.step, s.stale):
        return "finished"
    if s.decision.signal:
        return f"stopped: {s.decision.signal}"
    if s.step >= s.setup.stop:
        return "stopped: max_steps"
    return "stopped: max_minutes" if "time" in s.decision.known else ""


class Meter:
    """Reads each step's metrics once the next has been sent, so that the host never waits for the newest.

    `totals` counts the steps, and the places for ids and the padding in their batches, and sums the loss and the task's
    metrics, since the last row of metrics.jsonl. Checkpoints contain it, so that a resumed run writes the same rows as
    an uninterrupted one. `most` are the examples per second of an MFU of 1, or 0.
    """

    def __init__(self, batch: float, unit: str, totals: dict[str, float], decision: Decision, most: float = 0.0):
        self.batch, self.speed, self.totals = batch, f"{unit}_per_second", totals
        self.decision, self.most = decision, most
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
        self.decision.read(values.pop("votes", None))
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


def _accept(s: Session, measured: list[Measured]) -> None:
    """Note these steps. Raises CheckFailed on the first whose loss, or the weights after it, are NaN or infinite."""
    for step, metrics in measured:
        for name, what in (("loss", "loss"), ("param_norm", "norm of the weights")):
            if not math.isfinite(metrics[name]):
                raise _not_finite(s, what, metrics[name], step)
        s.record_event("step", step, metrics)


def _not_finite(s: Session, what: str, value: float, step: int) -> CheckFailed:
    """The error for a value that is NaN or infinite, with its step, the last good checkpoint and advice."""
    s.saver.wait()
    saved = s.folder.complete_steps()
    where = f"the last good checkpoint is step {saved[0]}" if saved else "nothing had been saved yet"
    return CheckFailed(
        f"the {what} is {value} at step {step}; {where} in {s.folder}; try a lower `optim.lr` (now "
        f"{s.run.optim.lr}), a longer `optim.warmup`, or `optim.clip 1` under another `name`"
    )


def _evaluation_due(s: Session) -> bool:
    """Whether this step is followed by an evaluation: the last of an epoch; with overfit_batches about every tenth."""
    epochs = max(1, 10 // s.setup.order.steps_per_epoch) if s.run.overfit_batches else 1
    return s.step % (epochs * s.setup.order.steps_per_epoch) == 0


def _measure_epoch(s: Session) -> None:
    """Measure and print the watched split, and update the best result: the better of weights and average."""
    name, split = watched_split(s)
    results = {} if split is None else measure_and_log(s, name, split)
    s.due = False
    if not results:
        return
    metric, sign = s.task.selection_metric
    if name == "validation":
        measured: list[dict[str, Any]] = [
            {"step": s.step, metric: e.metrics[metric], "loss": e.metrics["loss"], "weights": weights}
            for weights, e in results.items()
        ]
        now = max(measured, key=lambda each: (sign * each[metric], -each["loss"], each["weights"] == "ema"))
        better = s.best is None or sign * now[metric] > sign * s.best[metric]
        # The loss decides between equal metrics: once all examples are right, training still improves it.
        tie = s.best is not None and now[metric] == s.best[metric] and now["loss"] < s.best["loss"]
        s.best = now if better or tie else s.best
        s.stale = 0 if better else s.stale + 1
    words = []
    for weights, result in results.items():
        kind = "" if weights == "raw" else f" {weights}"
        words.append(f"{name}{kind} {_headline(metric, result.metrics)}")
    s.progress.say(f"epoch {s.step // s.setup.order.steps_per_epoch}: {'  '.join(words)}")


def _headline(metric: str, metrics: dict[str, float]) -> str:
    values = {metric.replace("_", " "): metrics[metric], "loss": metrics["loss"]}
    return " ".join(f"{name} {value:.4f}" for name, value in values.items())


def measure(s: Session, name: str, split: Any, final: Mapping[str, Task] | None = None) -> dict[str, Evaluation]:
    """Measure the weights ("raw") and their average ("ema"), if there is one, on a split; a signal interrupts it."""
    state, results = s.engine.gather(s.state), {}
    with s.caught.waiting(s.hosts.several):
        s.setup.evaluator.between = functools.partial(_poll_stop, s)
        for weights, tree in (("raw", state.parameters), ("ema", state.averaged)):
            if tree is not None:
                score = () if final is None else (final.get(weights, s.task).examine,)
                result = s.setup.evaluator.measure(tree, split, s.run.batch, *score)
                results[weights] = replace(result, metrics=s.hosts.share(result.metrics))
    for weights, result in results.items():
        if not math.isfinite(result.metrics["loss"]) and "loss" not in result.undefined:
            raise _not_finite(s, f"{name} loss ({weights} weights)", result.metrics["loss"], s.step)
    return results


def _poll_stop(s: Session) -> None:
    """Between two batches of an evaluation: break it off, on all hosts, if one of several has caught a signal."""
    if (votes := s.decision.votes()) is not None:
        s.decision.read(s.engine.devices.most(votes))
        if signal := s.decision.signal:
            s.caught.name = s.caught.name or signal
            raise KeyboardInterrupt


def measure_and_log(
    s: Session, name: str, split: Any, final: Mapping[str, Task] | None = None
) -> dict[str, Evaluation]:
    """Do `measure`, and write its results to the log; a signal interrupts it before anything is logged."""
    results = measure(s, name, split, final)
    for weights, result in results.items():
        s.log.write(
            {"kind": "eval", "split": name, "weights": weights, "step": s.step, "epoch": s.epoch, **result.metrics}
        )
        s.record_event("evaluation", s.step, result.metrics, split=name, weights=weights)
    return results


def watched_split(s: Session) -> tuple[str, Any]:
    """(Name, split) to evaluate during training: validation, which may be None, or with overfit_batches train."""
    if s.run.overfit_batches:
        return "train", s.setup.dataset.splits["train"].subset(np.arange(s.setup.order.n))
    return "validation", s.setup.dataset.splits.get("validation")


def save(s: Session) -> None:
    """Save a checkpoint of this step, unless there is one."""
    if s.saved == s.step:
        return
    now = time.monotonic()
    s.seconds, s.clock = s.seconds + now - s.clock, now
    best = s.best["step"] if s.best else None
    state = s.engine.to_host(s.state)
    if s.hosts.owner:
        s.saver.save(state, _checkpoint_notes(s), best, s.run.keep, _state_of_files(s))
        s.hooks.each("saved", s, s.step)
    s.saved = s.step


def _state_of_files(s: Session) -> dict[str, Any]:
    """What a checkpoint records of config.json and the log, so that damage to them is noticed."""
    return {"config": s.record, "log": s.log.sync()}


def _checkpoint_notes(s: Session) -> dict[str, Any]:
    """The JSON part of a checkpoint: all but the arrays that a run needs to resume as if it had never stopped."""
    return {
        "optimizer": s.run.optim.name,
        **{name: getattr(s, name) for name in NOTED},
        "data": s.setup.dataset.identity,
        "environment": s.setup.environment,
    }
