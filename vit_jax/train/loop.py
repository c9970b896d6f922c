"""The loop: batch, step, log, evaluate when due, save when due."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import backend
from ..errors import CheckFailed, Interrupted
from ..report.log import OF_THE_STEP
from .session import Caught, Session

if TYPE_CHECKING:
    from ..tasks import Evaluation


@contextlib.contextmanager
def signals() -> Iterator[Caught]:
    """Note SIGINT and SIGTERM for the loop to see; where it would not, and on a second SIGINT, end at once.

    Raises Interrupted then. Outside the main thread Python cannot catch signals; nothing changes there.
    """
    caught = Caught()

    def note(number: int, frame: Any) -> None:
        again = caught.name == "SIGINT" and number == signal.SIGINT
        caught.name = signal.Signals(number).name
        if again or not caught.waits:
            raise KeyboardInterrupt  # no Exception, or something on the way might take it for a failure of its own

    old = {}
    with contextlib.suppress(ValueError):
        old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    except KeyboardInterrupt:
        if not caught.name:
            raise
        raise Interrupted(
            f"{caught.name}: ended at once; repeat the command to go on from the last checkpoint", caught.name
        ) from None
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def loop(s: Session) -> str:
    """Run steps until the end, a budget or early stopping, and return which. Everything is saved then."""
    from ..data import batches

    if s.due:
        evaluate_epoch(s)
        s.checkpoints.note(s.step, notes(s))
    if ending := why_end(s):
        return ending
    with (
        contextlib.closing(batches(s.setup.dataset.splits["train"], s.setup.order, s.step, s.setup.stop)) as stream,
        s.progress,
        s.caught.waiting(),
    ):
        meter, last_save = first_step(s, next(stream)), time.monotonic()
        while True:
            after_step(s, meter)
            ending = why_end(s)
            if ending or evaluation_due(s) or time.monotonic() - last_save > s.run.save_minutes * 60:
                check_finite(s, meter.settle())
                save(s)
                last_save = time.monotonic()
                meter.restart()
            if ending:
                return ending
            s.state, metrics = s.engine.train(s.state, next(stream))
            s.step += 1
            check_finite(s, meter.add(s.step, metrics))


def first_step(s: Session, batch: dict[str, Any]) -> Meter:
    """The step that compiles; its time is said, and left out of the speed."""
    meter, began = Meter(s.setup.order.batch, s.task.unit, s.totals), time.monotonic()
    s.progress.say("compiling the training step ...")
    s.state, metrics = s.engine.train(s.state, batch)
    s.step += 1
    meter.add(s.step, metrics)
    check_finite(s, meter.settle())
    s.progress.say(f"first step done after {time.monotonic() - began:.1f} s, compilation included")
    meter.restart()
    return meter


def after_step(s: Session, meter: Meter) -> None:
    """Log and evaluate, where they are due."""
    epoch_ends = s.step % s.setup.order.steps_per_epoch == 0
    in_turn = s.step % s.run.log_every == 0 or epoch_ends
    if in_turn or s.step == s.setup.stop:
        check_finite(s, meter.settle())
        row = meter.row(s.step, s.epoch, in_turn)
        s.log.write(row | {"memory": backend.memory_peak()})
        s.progress.update(s.step, {name: row[name] for name in meter.means}, row[meter.speed])
    else:
        s.progress.update(s.step)
    s.due = evaluation_due(s)
    if s.due and not s.caught.name:
        with contextlib.suppress(KeyboardInterrupt):  # a run that is told to end evaluates when it goes on
            evaluate_epoch(s)


def why_end(s: Session) -> str:
    """Why the run ends after this step; '' where it goes on."""
    if not s.due and (s.step >= s.setup.steps or (s.run.patience and s.stale >= s.run.patience)):
        return "finished"
    if s.caught.name:
        return f"stopped: {s.caught.name}"
    if s.step >= s.setup.stop:
        return "stopped: max_steps"
    return "stopped: max_minutes" if time.monotonic() > s.deadline else ""


class Meter:
    """Collects the device's metrics one step late, so that the host never waits for the step just sent.

    `totals` counts steps and sums the loss and the task's metrics since the last line of the log; checkpoints
    keep it, so that a run that goes on writes the lines that it would have written.
    """

    def __init__(self, batch: float, unit: str, totals: dict[str, float]):
        self.batch, self.speed, self.totals = batch, f"{unit}_per_second", totals
        self.pending: tuple[int, dict[str, Any]] | None = None
        self.last: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        """Leave out of the speed what happened since the last step."""
        self.clock, self.counted = time.monotonic(), 0

    def add(self, step: int, metrics: dict[str, Any]) -> tuple[int, dict[str, float]] | None:
        """Take a step's metrics; read those of the step before it: (step, metrics)."""
        read = self.settle()
        self.pending = (step, metrics)
        self.counted += 1
        return read

    def settle(self) -> tuple[int, dict[str, float]] | None:
        """Read what is pending, waiting for it."""
        import jax

        if self.pending is None:
            return None
        step, metrics = self.pending
        self.pending = None
        self.last = {k: float(v) for k, v in jax.device_get(metrics).items()}
        self.totals["steps"] += 1
        for name in self.means:
            self.totals[name] = self.totals.get(name, 0.0) + self.last[name]
        return step, self.last

    @property
    def means(self) -> list[str]:
        """The metrics that are means over a batch: the loss, then the task's own."""
        return ["loss", *(name for name in self.last if name not in ("loss", *OF_THE_STEP))]

    def row(self, step: int, epoch: float, in_turn: bool) -> dict[str, Any]:
        """One line of metrics.jsonl: the loss and the task's metrics are means since the last line that came in turn."""
        means = {name: self.totals[name] / self.totals["steps"] for name in self.means}
        speed = self.counted * self.batch / max(time.monotonic() - self.clock, 1e-9) if self.counted else None
        if in_turn:
            self.totals.update(dict.fromkeys(self.totals, 0))
        self.restart()
        return {"kind": "train", "step": step, "epoch": epoch, **self.last, **means, self.speed: speed}


def check_finite(s: Session, read: tuple[int, dict[str, float]] | None) -> None:
    """Raise CheckFailed where a step's loss, or the weights that it led to, are NaN or infinite."""
    if read is None:
        return
    step, metrics = read
    for name, what in (("loss", "loss"), ("param_norm", "norm of the weights")):
        if not math.isfinite(metrics[name]):
            raise not_finite(s, what, metrics[name], step)


def not_finite(s: Session, what: str, value: float, step: int) -> CheckFailed:
    """What to say of a NaN: the step, the last good checkpoint and advice."""
    kept = s.folder.sound_steps()
    where = f"the last good checkpoint is step {kept[0]}" if kept else "nothing had been saved yet"
    return CheckFailed(
        f"the {what} is {value} at step {step}; {where} in {s.folder}; "
        f"try a lower --optim.lr (now {s.run.optim.lr}), a longer --optim.warmup, or --optim.clip 1 under another --name"
    )


def evaluation_due(s: Session) -> bool:
    """After every epoch; when overfitting, whose epochs are a few steps, about every ten steps."""
    epochs = max(1, 10 // s.setup.order.steps_per_epoch) if s.run.overfit_batches else 1
    return s.step % (epochs * s.setup.order.steps_per_epoch) == 0


def evaluate_epoch(s: Session) -> None:
    """Evaluate on validation (on the batches learnt by heart, when overfitting) and remember the best."""
    name, split = chosen_split(s)
    results = {} if split is None else evaluate_all(s, name, split)
    s.due = False
    if not results:
        return
    chosen, sign = s.task.chosen
    metrics = results["ema" if "ema" in results else "raw"].metrics
    if name == "validation":
        now = {"step": s.step, chosen: metrics[chosen], "loss": metrics["loss"]}
        better = s.best is None or sign * now[chosen] > sign * s.best[chosen]
        # Of equals the one with the lower loss: where all are right, the first of them is not the best.
        equal = s.best is not None and now[chosen] == s.best[chosen] and now["loss"] < s.best["loss"]
        s.best = now if better or equal else s.best
        s.stale = 0 if better else s.stale + 1
    s.progress.say(
        f"epoch {s.step // s.setup.order.steps_per_epoch}: "
        + "  ".join(
            f"{name}{' ' + weights if weights != 'raw' else ''} {_headline(chosen, e.metrics)}"
            for weights, e in results.items()
        )
    )


def _headline(chosen: str, metrics: dict[str, float]) -> str:
    """The metric that chooses and the loss, in words."""
    told = {chosen.replace("_", " "): metrics[chosen], "loss": metrics["loss"]}
    return " ".join(f"{name} {value:.4f}" for name, value in told.items())


def evaluate_all(s: Session, name: str, split: Any) -> dict[str, Evaluation]:
    """Evaluate the weights and their average on a split, and log both. A signal breaks it off, with nothing logged."""
    state, results = s.engine.gather(s.state), {}
    with s.caught.waiting(False):
        for weights, tree in (("raw", state.parameters), ("ema", state.ema)):
            if tree is not None:
                results[weights] = s.setup.evaluator.evaluate(tree, split, s.run.batch)
    for weights, result in results.items():
        if not math.isfinite(result.metrics["loss"]):
            raise not_finite(s, f"{name} loss ({weights} weights)", result.metrics["loss"], s.step)
    for weights, result in results.items():
        s.log.write(
            {"kind": "eval", "split": name, "weights": weights, "step": s.step, "epoch": s.epoch, **result.metrics}
        )
    return results


def chosen_split(s: Session) -> tuple[str, Any]:
    """The split that is watched during training."""
    if s.run.overfit_batches:
        return "train", s.setup.dataset.splits["train"].part(np.arange(s.setup.order.n))
    return "validation", s.setup.dataset.splits.get("validation")


def save(s: Session) -> None:
    """Checkpoint this step, once."""
    if s.saved == s.step:
        return
    now = time.monotonic()
    s.seconds, s.clock = s.seconds + now - s.clock, now
    s.checkpoints.save(s.engine.gather(s.state), notes(s), s.best["step"] if s.best else None, s.run.keep)
    s.saved = s.step


def notes(s: Session) -> dict[str, Any]:
    """What a checkpoint says beside its arrays: all else that a run needs to go on as if never stopped."""
    return {
        "optimizer": s.run.optim.name, "best": s.best, "stale": s.stale, "due": s.due, "totals": s.totals, "seconds": s.seconds,
        "data": s.setup.dataset.identity, "environment": s.setup.environment,
    }  # fmt: skip
