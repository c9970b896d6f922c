"""The training loop: take a batch, do a step, then log, evaluate and save when due."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.groups import factor_shapes
from ..config.run import RunConfig
from ..errors import CheckFailed
from ..files.terminal import print_note
from ..machine import backend
from ..machine.division import most_examples
from ..machine.numerics import fixed_settings
from .hooks import Event
from .job import Job, engine_at
from .log import TOKENS, Batches, Log, Measured, Meter, Profile, steps_together
from .progress import Progress
from .state import State, first_state, write_folder
from .stopping import Agreement, Caught, Saver

if TYPE_CHECKING:
    from ..tasks.base import Evaluation, Task
    from ..tasks.predictor import Predictor
    from .engine.engine import Engine
    from .log import Batch


WATCHED = ("train", "validation")  # what is measured during training


class Loop:
    """A job in training: its state, which it restores or begins with, and what is open around its steps."""

    def __init__(self, job: Job, caught: Caught):
        from ..weights.checkpoint import Checkpoints

        self.job, self.caught, run = job, caught, job.run
        self.checkpoints = Checkpoints(job.folder, factor_shapes(run))
        self.state, is_saved, init = first_state(job, self.checkpoints)
        self.saved = self.state.step if is_saved else -1  # the step of the newest checkpoint
        write_folder(job, init, self.checkpoints)
        self.log = self._open_log()
        steps = job.order.steps_per_epoch
        self.progress = Progress(job.epochs, steps, self.state.step + 1, job.order.batch, job.stop, unit=job.task.unit)
        deadline = time.monotonic() + run.max_minutes * 60 if run.max_minutes else math.inf
        self.agreement = Agreement(job.hosts, caught, deadline, run.save_minutes * 60)
        after = f"; going on after step {self.state.step}" if self.state.step else ""
        print(f"run      {job.folder}: {job.epochs} epochs of {steps} steps{after}", flush=True)
        self.saver = Saver(self.checkpoints, run.async_save, self.progress.say)
        self.record = job.folder.record()
        self.clock = time.monotonic()  # when the state's `seconds` were last updated
        self.events: list[Event] = []  # not told yet
        self.compiled: set[tuple[Engine, int]] = set()  # stages, and in each the numbers of steps, done by this process

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

    @property
    def run(self) -> RunConfig:
        """As it is trained."""
        return self.job.run

    @property
    def engine(self) -> Engine:
        """That of the next step."""
        return engine_at(self.job.stages, self.state.step)

    @property
    def epoch(self) -> float:
        """Epochs done, with fractions."""
        return self.state.step / self.job.order.steps_per_epoch

    def until_end(self) -> Generator[Event, None, str]:
        """Do steps until the run ends, and tell what happens; returns why it has ended, as summary.json has it."""
        from ..data.batches import batches

        job, state = self.job, self.state
        if state.due:
            self._measure_epoch()
            if job.hosts.owner:
                self.checkpoints.note(state.step, state.notes(job), self._state_of_files())
            yield from self.new_events()
        if ending := self._why_end():
            return ending
        with (
            contextlib.closing(
                batches(job.data.splits["train"], job.order, state.step, job.stop, self.engine.devices.rows)
            ) as stream,
            self.progress,
            self.caught.waiting(),
            self.saver,
            Profile(self.run.profile_steps, job.folder.path / "profile", self.progress.say) as profile,
        ):
            ahead = Batches(stream)
            meter = Meter(job.order.batch, job.task.unit, state.totals, self.agreement.read, self._most_examples())
            self._send_next(ahead, meter, profile)
            self.agreement.saved = time.monotonic()
            while True:
                self.saver.check()
                self._after_step(meter)
                yield from self._tell(meter)
                ending = self._why_end()
                if ending or self._evaluation_due() or "save" in self.agreement.known:
                    self._accept(meter.settle())
                    state.cpu_seconds += meter.cpu()
                    self.save()
                    self.agreement.has_saved()
                    meter.restart()
                    self.progress.restart()
                if ending:
                    return ending
                self._send_next(ahead, meter, profile)

    def _tell(self, meter: Meter) -> Iterator[Event]:
        """What has happened. The time that the caller takes for it is not the run's; if he leaves, the run is saved."""
        try:
            for event in self.new_events():
                clock, cpu_clock = time.monotonic(), time.process_time()
                yield event
                meter.clock += time.monotonic() - clock
                meter.cpu_clock += time.process_time() - cpu_clock
        except GeneratorExit:
            with contextlib.suppress(CheckFailed):  # what is not finite is not saved
                self._accept(meter.settle())
                self.state.cpu_seconds += meter.cpu()
                self.save()
            raise

    def _send_next(self, ahead: Batches, meter: Meter, profile: Profile) -> None:
        """Do the next step, or as many steps together as may be, and read the metrics of those before.

        The first steps of a stage, or of another number together, compile: their time is printed and does not count in
        the speed.
        """
        run, job, state = self.run, self.job, self.state
        every = [run.log_every, job.order.steps_per_epoch, *([run.histograms] if run.histograms else [])]
        count = steps_together(state.step, run.steps_per_dispatch, every, job.stop, profile.steps, job.stages)
        if count > 1 and any(map(job.hooks.due, range(state.step + 1, state.step + count + 1))):
            count = 1
        batches = ahead.take(count)
        count, engine = len(batches), self.engine
        if (engine, count) in self.compiled:
            self._accept(meter.add(state.step + count, self._steps(batches, profile), self._tokens(batches)))
            return
        self._accept(meter.settle())
        state.cpu_seconds += meter.cpu()
        began, what = time.monotonic(), "step" if count == 1 else f"{count} steps"
        self.progress.say(f"compiling the training {'step' if count == 1 else f'program for {count} steps'} ...")
        meter.add(state.step + count, self._steps(batches, profile), self._tokens(batches))
        self._accept(meter.settle())
        self.progress.say(f"first {what} done after {time.monotonic() - began:.1f} s, compilation included")
        self.compiled.add((engine, count))
        meter.most = self._most_examples()
        meter.restart()
        self.progress.restart()

    def _steps(self, batches: list[Batch], profile: Profile) -> dict[str, Any]:
        """Do a step for each of these batches; their metrics, on the device: scalars, or of several steps [n]."""
        job, state = self.job, self.state
        if self.run.histograms and state.step % self.run.histograms == 0:
            self.log.write_histograms(state.step + 1, self.engine.histograms(state.tree, batches[0]))
        if due := len(batches) == 1 and job.hooks.due(state.step + 1):
            job.hooks.each("before", state, batches[0])
        profile.begin(state.step + 1)
        votes = self.agreement.votes()
        if len(batches) == 1:
            state.tree, metrics = self.engine.train(state.tree, batches[0], votes)
        else:
            state.tree, metrics = self.engine.train_together(state.tree, batches, votes)
        state.step += len(batches)
        job.hosts.heartbeat(state.step)
        profile.end(state.step, metrics)
        if due:
            job.hooks.each("step", state, metrics)
        return metrics

    def _most_examples(self) -> float:
        """Examples per second at which the run's devices would work at their peak in the next step; 0: unknown."""
        run, devices = replace(self.run, model=self.engine.model), self.engine.devices
        return most_examples(run, self.job.teacher, devices.target.kind, len(devices))

    def _tokens(self, batches: list[Batch]) -> list[tuple[int, int, int]]:
        """`Task.tokens` of each batch, of all hosts."""
        count, places = self.job.hosts.count, (self.job.task.tokens(batch) for batch in batches)
        return [tuple(count * each for each in its) for its in places]  # type: ignore[misc]

    def _after_step(self, meter: Meter) -> None:
        """Log and evaluate if due."""
        job, state = self.job, self.state
        in_turn = not (state.step % self.run.log_every and state.step % job.order.steps_per_epoch)
        if in_turn or state.step == job.stop:
            self._accept(meter.settle())
            state.cpu_seconds += meter.cpu()
            row = meter.row(state.step, self.epoch, in_turn)
            self.log.write(row | {"memory": backend.memory_peak(), "cpu_seconds": state.cpu_seconds}, in_turn)
            values = {name: row[name] for name in meter.means}
            speeds = {"examples": meter.speed, "tokens": TOKENS, "padding": "padding", "mfu": "mfu"}
            self.progress.update(state.step, values, **{name: row.get(key) for name, key in speeds.items()})
        else:
            self.progress.update(state.step)
        state.due = self._evaluation_due()
        if state.due and not self.agreement.signal:
            with contextlib.suppress(KeyboardInterrupt):  # an interrupted evaluation is repeated on resumption
                self._measure_epoch()
            meter.restart()

    def _why_end(self) -> str:
        """Why the loop ends after this step, as the status of summary.json: "finished", "stopped: ..."; else ''."""
        if not self.state.due and self.job.is_end(self.state.step, self.state.stale):
            return "finished"
        if self.agreement.signal:
            return f"stopped: {self.agreement.signal}"
        if self.state.step >= self.job.stop:
            return "stopped: max_steps"
        return "stopped: max_minutes" if "time" in self.agreement.known else ""

    def _accept(self, measured: list[Measured]) -> None:
        """Note these steps. Raises CheckFailed on the first whose loss, or weights after it, are NaN or infinite."""
        for step, metrics in measured:
            for name, what in (("loss", "loss"), ("param_norm", "norm of the weights")):
                if not math.isfinite(metrics[name]):
                    raise self._not_finite(what, metrics[name], step)
            self._record_event("step", step, metrics)

    def _not_finite(self, what: str, value: float, step: int) -> CheckFailed:
        """The error for a value that is NaN or infinite, with its step, the last good checkpoint and advice."""
        self.saver.wait()
        saved = self.job.folder.complete_steps()
        where = f"the last good checkpoint is step {saved[0]}" if saved else "nothing had been saved yet"
        return CheckFailed(
            f"the {what} is {value} at step {step}; {where} in {self.job.folder}; try a lower `optim.lr` (now "
            f"{self.run.optim.lr}), a longer `optim.warmup`, or `optim.clip 1` under another `name`"
        )

    def _evaluation_due(self) -> bool:
        """Whether this step is followed by an evaluation: the last of an epoch; about each 10th to overfit."""
        steps = self.job.order.steps_per_epoch
        epochs = max(1, 10 // steps) if self.run.overfit_batches else 1
        return self.state.step % (epochs * steps) == 0

    def _measure_epoch(self) -> None:
        """Measure and print the watched split, and update the best result: the better of weights and average."""
        state, task = self.state, self.job.task
        name, split = self.watched_split()
        results = {} if split is None else self.measure_and_log(name, split)
        state.due = False
        if not results:
            return
        metric, sign = task.selection_metric
        if name == "validation":
            measured: list[dict[str, Any]] = [
                {"step": state.step, metric: e.metrics[metric], "loss": e.metrics["loss"], "weights": weights}
                for weights, e in results.items()
            ]
            now = max(measured, key=lambda each: (sign * each[metric], -each["loss"], each["weights"] == "ema"))
            better = state.best is None or sign * now[metric] > sign * state.best[metric]
            # The loss decides between equal metrics: once all examples are right, training still improves it.
            tie = state.best is not None and now[metric] == state.best[metric] and now["loss"] < state.best["loss"]
            state.best = now if better or tie else state.best
            state.stale = 0 if better else state.stale + 1
        words = []
        for weights, result in results.items():
            kind = "" if weights == "raw" else f" {weights}"
            words.append(f"{name}{kind} {_headline(metric, result.metrics)}")
        self.progress.say(f"epoch {state.step // self.job.order.steps_per_epoch}: {'  '.join(words)}")

    def measure(self, name: str, split: Any, final: Mapping[str, Task] | None = None) -> dict[str, Evaluation]:
        """Measure the weights ("raw") and their average ("ema"), if any, on a split; a signal interrupts it."""
        job, results = self.job, dict[str, Any]()
        tree = self.engine.gather(self.state.tree)
        with self.caught.waiting(job.hosts.several):
            job.evaluator.between = self._poll_stop
            for weights, parameters in (("raw", tree.parameters), ("ema", tree.averaged)):
                if parameters is not None:
                    score = () if final is None else (final.get(weights, job.task).examine,)
                    result = job.evaluator.measure(parameters, split, self.run.batch, *score)
                    results[weights] = replace(result, metrics=job.hosts.share(result.metrics))
        for weights, result in results.items():
            if not math.isfinite(result.metrics["loss"]) and "loss" not in result.undefined:
                raise self._not_finite(f"{name} loss ({weights} weights)", result.metrics["loss"], self.state.step)
        return results

    def _poll_stop(self) -> None:
        """Between two batches of an evaluation: break it off, on all hosts, if one of several has caught a signal."""
        if (votes := self.agreement.votes()) is not None:
            self.agreement.read(self.engine.devices.most(votes))
            if signal := self.agreement.signal:
                self.caught.name = self.caught.name or signal
                raise KeyboardInterrupt

    def measure_and_log(self, name: str, split: Any, final: Mapping[str, Task] | None = None) -> dict[str, Evaluation]:
        """Do `measure`, and write its results to the log; a signal interrupts it before anything is logged."""
        results = self.measure(name, split, final)
        for weights, result in results.items():
            step = self.state.step
            at = {"split": name, "weights": weights, "step": step, "epoch": self.epoch}
            self.log.write({"kind": "eval", **at, **result.metrics})
            self._record_event("evaluation", step, result.metrics, name, weights)
        return results

    def watched_split(self) -> tuple[str, Any]:
        """(Name, split) to evaluate during training: validation, or None; with overfit_batches train."""
        if self.run.overfit_batches:
            return "train", self.job.data.splits["train"].subset(np.arange(self.job.order.n))
        return "validation", self.job.data.splits.get("validation")

    def save(self) -> None:
        """Save a checkpoint of this step, unless there is one."""
        job, state = self.job, self.state
        if self.saved == state.step:
            return
        now = time.monotonic()
        state.seconds, self.clock = state.seconds + now - self.clock, now
        best = state.best["step"] if state.best else None
        arrays = self.engine.to_host(state.tree)
        if job.hosts.owner:
            self.saver.save(arrays, state.notes(job), best, self.run.keep, self._state_of_files())
            job.hooks.each("saved", state)
        self.saved = state.step

    def _state_of_files(self) -> dict[str, Any]:
        """What a checkpoint records of config.json and the log, so that damage to them is noticed."""
        return {"config": self.record, "log": self.log.sync()}

    def _record_event(self, kind: Any, step: int, metrics: Any, split: str = "", weights: str = "") -> None:
        """Note a step or an evaluation, to be told."""
        epoch = step / self.job.order.steps_per_epoch
        self.events.append(Event(kind, step, epoch, metrics, split, weights, _now=self.network))

    def new_events(self) -> Iterator[Event]:
        """What has happened since the last call."""
        while self.events:
            yield self.events.pop(0)

    def network(self) -> Predictor:
        """The network with its newest weights, copied: the next step takes their memory."""
        import jax

        from ..weights.load import predictor_of

        job = self.job
        with fixed_settings(self.run.compute_dtype):
            tree = jax.tree.map(jax.numpy.copy, self.engine.gather(self.state.tree).parameters)
            arrays = self.engine.devices.to_host(tree)
            return predictor_of(self.run, arrays, job.data.metadata(), self.state.step, job.folder.path)


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


def _headline(metric: str, metrics: dict[str, float]) -> str:
    values = {metric.replace("_", " "): metrics[metric], "loss": metrics["loss"]}
    return " ".join(f"{name} {value:.4f}" for name, value in values.items())
