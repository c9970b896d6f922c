"""The training loop: take a batch, do a step, then what follows it: a row of the log, an evaluation, a checkpoint."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.groups import factor_shapes
from ..errors import CheckFailed
from ..machine.division import most_examples
from ..machine.numerics import fixed_settings
from ..tasks.can import Counts, Examines
from .hooks import Event
from .job import Job
from .log import Measured, Profile, Recording
from .state import first_state, write_folder
from .stopping import Agreement, Caught, Saving

if TYPE_CHECKING:
    from ..data.batches import Batch
    from ..tasks.base import Evaluation, Task
    from ..tasks.predictor import Predictor
    from .engine.engine import Engine


class Loop:
    """A job in training: its state, which it restores or begins with, and what follows each of its steps.

    What happens around a step, from top to bottom: histograms, hooks that are due, a trace, the step, hooks again; then
    the log, the evaluation and the checkpoint, each where it is due; at last it is told to the caller.
    """

    def __init__(self, job: Job, caught: Caught):
        from ..weights.checkpoint import Checkpoints

        run, self.job, self.caught = job.run, job, caught
        self.checkpoints = Checkpoints(job.folder, factor_shapes(run))
        self.state, is_saved, init = first_state(job, self.checkpoints)
        write_folder(job, init, self.checkpoints)
        deadline = time.monotonic() + run.max_minutes * 60 if run.max_minutes else math.inf
        self.agreement = Agreement(job.hosts, caught, deadline, run.save_minutes * 60)
        self.recording = Recording(job, self.state, self._accept, self.agreement.read)
        self.say = self.recording.progress.say
        after = f"; going on after step {self.state.step}" if self.state.step else ""
        print(f"run      {job.folder}: {job.epochs} epochs of {job.order.steps_per_epoch} steps{after}", flush=True)
        self.evaluating = Evaluating(self)
        saved = self.state.step if is_saved else -1
        self.saving = Saving(job, self.state, self.checkpoints, self.recording, saved)
        self.events: list[Event] = []  # not told yet
        self.compiled: set[tuple[Engine, int]] = set()  # stages, and in each the numbers of steps, done by this process

    @property
    def engine(self) -> Engine:
        """That of the next step."""
        return self.job.engine_after(self.state.step)

    def until_end(self) -> Generator[Event, None, str]:
        """Do steps until the run ends, and tell what happens; returns why it has ended, as summary.json has it."""
        job, run, state = self.job, self.job.run, self.state
        if state.due:
            self.evaluating.measure_epoch()
            if job.hosts.owner:
                self.checkpoints.note(state.step, state.notes(job), self.saving.of_files())
            yield from self.new_events()
        if ending := self._why_end():
            return ending
        with (
            job.batches(state.step) as stream,
            self.recording.progress,
            self.caught.waiting(),
            self.saving.saver,
            Profile(run.profile_steps, job.folder.path / "profile", self.say) as profile,
        ):
            batches = Batches(stream)
            self.recording.meter.restart()
            self._send_next(batches, profile)
            self.agreement.saved = time.monotonic()  # compilation does not count
            while True:
                self.saving.saver.check()
                self.recording.after_step()
                self.evaluating.after_step()
                yield from self._tell()
                ending = self._why_end()
                if ending or self.evaluating.due() or "save" in self.agreement.known:
                    self.saving.save()
                    self.agreement.has_saved()
                    self.recording.restart()
                if ending:
                    return ending
                self._send_next(batches, profile)

    def _tell(self) -> Iterator[Event]:
        """What has happened. The time that the caller takes for it is not the run's; if he leaves, the run is saved."""
        meter = self.recording.meter
        try:
            for event in self.new_events():
                clock, cpu_clock = time.monotonic(), time.process_time()
                yield event
                meter.clock += time.monotonic() - clock
                meter.cpu_clock += time.process_time() - cpu_clock
        except GeneratorExit:
            with contextlib.suppress(CheckFailed):  # what is not finite is not saved
                self.saving.save()
            raise

    def _send_next(self, ahead: Batches, profile: Profile) -> None:
        """Do the next step, or as many steps together as may be, and read the metrics of those before.

        The first steps of a stage, or of another number together, compile: their time is printed and does not count in
        the speed.
        """
        run, job, state, meter = self.job.run, self.job, self.state, self.recording.meter
        every = [run.log_every, job.order.steps_per_epoch, *([run.histograms] if run.histograms else [])]
        count = steps_together(state.step, run.steps_per_dispatch, every, job.stop, profile.steps, job.stages)
        if count > 1 and any(map(job.hooks.due, range(state.step + 1, state.step + count + 1))):
            count = 1
        batches = ahead.take(count)
        count, engine = len(batches), self.engine
        if (engine, count) in self.compiled:
            self._accept(meter.add(state.step + count, self._steps(batches, profile), self._tokens(batches)))
            return
        self.recording.settle()
        began, what = time.monotonic(), "step" if count == 1 else f"{count} steps"
        self.say(f"compiling the training {'step' if count == 1 else f'program for {count} steps'} ...")
        meter.add(state.step + count, self._steps(batches, profile), self._tokens(batches))
        self._accept(meter.settle())
        self.say(f"first {what} done after {time.monotonic() - began:.1f} s, compilation included")
        self.compiled.add((engine, count))
        meter.most = self._most_examples()
        self.recording.restart()

    def _steps(self, batches: list[Batch], profile: Profile) -> dict[str, Any]:
        """Do a step for each of these batches; their metrics, on the device: scalars, or of several steps [n]."""
        job, state, every = self.job, self.state, self.job.run.histograms
        if every and state.step % every == 0:
            self.recording.log.write_histograms(state.step + 1, self.engine.histograms(state.tree, batches[0]))
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
        run, devices = replace(self.job.run, model=self.engine.model), self.engine.devices
        return most_examples(run, self.job.teacher, devices.target.kind, len(devices))

    def _tokens(self, batches: list[Batch]) -> list[tuple[int, int, int]]:
        """`Task.tokens` of each batch, of all hosts."""
        count, counts = self.job.hosts.count, self.job.task.able(Counts)
        places = (counts.tokens(batch) for batch in batches)
        return [tuple(count * each for each in its) for its in places]  # type: ignore[misc]

    def _why_end(self) -> str:
        """Why the loop ends after this step, as the status of summary.json: "finished", "stopped: ..."; else ''."""
        job, state = self.job, self.state
        if not state.due and job.is_end(state.step, state.stale):
            return "finished"
        if self.agreement.signal:
            return f"stopped: {self.agreement.signal}"
        if state.step >= job.stop:
            return "stopped: max_steps"
        return "stopped: max_minutes" if "time" in self.agreement.known else ""

    def _accept(self, measured: list[Measured]) -> None:
        """Note these steps. Raises CheckFailed on the first whose loss, or weights after it, are NaN or infinite."""
        for step, metrics in measured:
            for name, what in (("loss", "loss"), ("param_norm", "norm of the weights")):
                if not math.isfinite(metrics[name]):
                    raise self.not_finite(what, metrics[name], step)
            self.note("step", step, metrics)

    def not_finite(self, what: str, value: float, step: int) -> CheckFailed:
        """The error for a value that is NaN or infinite, with its step, the last good checkpoint and advice."""
        self.saving.saver.wait()
        saved, optim = self.job.folder.complete_steps(), self.job.run.optim
        where = f"the last good checkpoint is step {saved[0]}" if saved else "nothing had been saved yet"
        return CheckFailed(
            f"the {what} is {value} at step {step}; {where} in {self.job.folder}; try a lower `optim.lr` (now "
            f"{optim.lr}), a longer `optim.warmup`, or `optim.clip 1` under another `name`"
        )

    def note(self, kind: Any, step: int, metrics: Any, split: str = "", weights: str = "") -> None:
        """Note a step or an evaluation, to be told."""
        self.events.append(Event(kind, step, self.job.epochs_of(step), metrics, split, weights, _now=self.network))

    def new_events(self) -> Iterator[Event]:
        """What has happened since the last call."""
        while self.events:
            yield self.events.pop(0)

    def network(self) -> Predictor:
        """The network with its newest weights, copied: the next step takes their memory."""
        import jax

        from ..weights.load import predictor_of

        job, run = self.job, self.job.run
        with fixed_settings(run.compute_dtype):
            tree = jax.tree.map(jax.numpy.copy, self.engine.gather(self.state.tree).parameters)
            arrays = self.engine.devices.to_host(tree)
            return predictor_of(run, arrays, job.data.metadata(), self.state.step, job.folder.path)


class Evaluating:
    """The second that follows a step: at the end of an epoch what is watched is measured, and the best result kept."""

    def __init__(self, loop: Loop):
        self.loop = loop

    def due(self) -> bool:
        """Whether this step is followed by an evaluation: the last of an epoch; about each 10th to overfit."""
        job = self.loop.job
        steps = job.order.steps_per_epoch
        epochs = max(1, 10 // steps) if job.run.overfit_batches else 1
        return self.loop.state.step % (epochs * steps) == 0

    def after_step(self) -> None:
        """Evaluate if it is due; an evaluation that is interrupted is repeated on resumption."""
        loop = self.loop
        loop.state.due = self.due()
        if loop.state.due and not loop.agreement.signal:
            with contextlib.suppress(KeyboardInterrupt):
                self.measure_epoch()
            loop.recording.meter.restart()

    def measure_epoch(self) -> None:
        """Measure and print the watched split, and update the best result: the better of weights and average."""
        state, job = self.loop.state, self.loop.job
        name, split = self.watched_split()
        results = {} if split is None else self.measure_and_log(name, split)
        state.due = False
        if not results:
            return
        metric, sign = job.task.selection_metric
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
        self.loop.say(f"epoch {state.step // job.order.steps_per_epoch}: {'  '.join(words)}")

    def measure(self, name: str, split: Any, final: Mapping[str, Task] | None = None) -> dict[str, Evaluation]:
        """Measure the weights ("raw") and their average ("ema"), if any, on a split; a signal interrupts it."""
        loop, job, results = self.loop, self.loop.job, dict[str, Any]()
        tree = loop.engine.gather(loop.state.tree)
        with loop.caught.waiting(job.hosts.several):
            job.evaluator.between = self._poll_stop
            for weights, parameters in (("raw", tree.parameters), ("ema", tree.averaged)):
                if parameters is not None:
                    score = () if final is None else (final.get(weights, job.task).able(Examines).examine,)
                    result = job.evaluator.measure(parameters, split, job.run.batch, *score)
                    results[weights] = replace(result, metrics=job.hosts.share(result.metrics))
        for weights, result in results.items():
            if not math.isfinite(result.metrics["loss"]) and "loss" not in result.undefined:
                raise loop.not_finite(f"{name} loss ({weights} weights)", result.metrics["loss"], loop.state.step)
        return results

    def _poll_stop(self) -> None:
        """Between two batches of an evaluation: break it off, on all hosts, if one of several has caught a signal."""
        loop = self.loop
        if (votes := loop.agreement.votes()) is not None:
            loop.agreement.read(loop.engine.devices.most(votes))
            if signal := loop.agreement.signal:
                loop.caught.name = loop.caught.name or signal
                raise KeyboardInterrupt

    def measure_and_log(self, name: str, split: Any, final: Mapping[str, Task] | None = None) -> dict[str, Evaluation]:
        """Do `measure`, and write its results to the log; a signal interrupts it before anything is logged."""
        results = self.measure(name, split, final)
        for weights, result in results.items():
            loop, step = self.loop, self.loop.state.step
            at = {"split": name, "weights": weights, "step": step, "epoch": loop.job.epochs_of(step)}
            loop.recording.log.write({"kind": "eval", **at, **result.metrics})
            loop.note("evaluation", step, result.metrics, name, weights)
        return results

    def watched_split(self) -> tuple[str, Any]:
        """(Name, split) to evaluate during training: validation, or None; with overfit_batches train."""
        job = self.loop.job
        if job.run.overfit_batches:
            return "train", job.data.splits["train"].subset(np.arange(job.order.n))
        return "validation", job.data.splits.get("validation")


def _headline(metric: str, metrics: dict[str, float]) -> str:
    values = {metric.replace("_", " "): metrics[metric], "loss": metrics["loss"]}
    return " ".join(f"{name} {value:.4f}" for name, value in values.items())


def steps_together(
    step: int, most: int, every: Sequence[int], stop: int, profile: range = range(0), stages: Iterable[int] = ()
) -> int:
    """How many steps may be done by one call: a full number, the largest possible, or 1.

    Between would be others, but each is a program of its own that has to be compiled. None of the steps but the last is
    followed by what happens `every` so many steps, ends the run or a stage of it, or is just before the first or is the
    last of those that are traced.
    """
    full = min(most, *every)
    ends = [stop, *((step // each + 1) * each for each in every), *(first for first in stages if first > step)]
    if profile:
        ends += [end for end in (profile[0] - 1, profile[-1]) if end > step]
    return full if step + full <= min(ends) else 1


class Batches:
    """The batches of an iterator, one or several at a time."""

    def __init__(self, stream: Iterator[Batch]):
        self._stream = stream
        self._waiting: deque[Batch] = deque()

    def take(self, count: int) -> list[Batch]:
        """The next `count` batches, or only the next one where not all are of the same shapes, as of sentences."""
        while len(self._waiting) < count:
            self._waiting.append(next(self._stream))
        some = itertools.islice(self._waiting, count)
        if len({tuple((name, x.shape, x.dtype) for name, x in batch.items()) for batch in some}) > 1:
            count = 1
        return [self._waiting.popleft() for _ in range(count)]
