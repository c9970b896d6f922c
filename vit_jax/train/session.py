"""Setting a run up: its data, network and state, and the folder that they are kept in."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import backend, runs
from ..config import RunConfig, network_of, parameters, roles, shapes, task_row, to_dict, with_sizes
from ..config.formats import cannot_go_on
from ..errors import UserError

if TYPE_CHECKING:
    from ..checkpoint import Checkpoints
    from ..data import Data
    from ..data.contract import Order
    from ..report import Log, Progress
    from ..step import Engine, Evaluator, State
    from ..tasks import Task

OVERFIT_STEPS = 100


@dataclass(frozen=True)
class Setup:
    """What follows from a run's config and its data alone."""

    stated: RunConfig  # as the user gave it, with the sizes that the data decides
    run: RunConfig  # as it is run: overfitting resolved
    dataset: Data
    order: Order
    epochs: int
    task: Task
    engine: Engine
    evaluator: Evaluator
    environment: dict[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """What a run keeps to tell whether it goes on with what it began with: its data, and the task's frozen arrays if it has any."""
        frozen = {name: runs.array_digest(np.asarray(x)) for name, x in runs.flatten(self.task.frozen).items()}
        return {"data": self.dataset.identity, **({"frozen": runs.text_digest(frozen)} if frozen else {})}

    @property
    def steps(self) -> int:
        """Updates of the whole run."""
        return self.epochs * self.order.steps_per_epoch

    @property
    def stop(self) -> int:
        """The step at which this process ends."""
        return min(self.steps, self.run.max_steps or self.steps)


@dataclass
class Caught:
    """The signal that asked the run to end, if one did.

    While steps run there is something to save, so the signal waits for the loop to do so; at all
    other times it ends the process at once.
    """

    name: str = ""
    waits: bool = False

    @contextlib.contextmanager
    def waiting(self, waits: bool = True) -> Iterator[None]:
        """Let a signal wait, or not, for the time of a block."""
        before, self.waits = self.waits, waits
        try:
            yield
        finally:
            self.waits = before


@dataclass
class Session:
    """A run in training: what is fixed, and what the loop moves on."""

    setup: Setup
    folder: runs.Run
    checkpoints: Checkpoints
    log: Log
    progress: Progress
    caught: Caught
    deadline: float  # of time.monotonic()
    state: State
    step: int  # updates done
    saved: int  # the step of the newest checkpoint, or -1
    best: dict[str, Any] | None = None  # {step, and the metric that chooses} of the weights that validation likes most
    stale: int = 0  # epochs since then
    due: bool = False  # an evaluation was put off because the process had to end
    totals: dict[str, float] = field(
        default_factory=lambda: {"steps": 0}
    )  # and the sum of each metric, since the last line of the log
    seconds: float = 0.0  # spent on the run up to the newest checkpoint, by all processes
    clock: float = field(default_factory=time.monotonic)  # when `seconds` was counted

    @property
    def run(self) -> RunConfig:
        return self.setup.run

    @property
    def engine(self) -> Engine:
        return self.setup.engine

    @property
    def task(self) -> Task:
        return self.setup.task

    @property
    def epoch(self) -> float:
        """Epochs done."""
        return self.step / self.setup.order.steps_per_epoch


def set_up(run: RunConfig, preset: str, folder: runs.Run, caught: Caught) -> Session:
    """Open the data, build or restore the state, and say what is about to happen. Raises UserError."""
    import jax

    from ..checkpoint import Checkpoints
    from ..report import Log, Progress

    setup = prepare(run)
    run = setup.run
    announce(setup)
    checkpoints = Checkpoints(folder)
    state, notes = starting_state(setup, folder, checkpoints)
    step = int(jax.device_get(setup.engine.gather(state).step))
    if not folder.exists():
        folder.create(
            runs.record_of(
                setup.stated,
                preset,
                **setup.dataset.record(),
                **setup.identity,
                environment=setup.environment,
            )
        )
    kept = {name: notes[name] for name in ("best", "stale", "due", "totals", "seconds") if name in notes}
    folder.drop_metrics(lambda row: comes_again(row, step, notes))
    tensorboard = folder.path / "tensorboard" if run.tensorboard else None
    log = Log(folder.metrics_file, step, tensorboard, run.wandb, folder.path.name, to_dict(setup.stated))
    progress = Progress(
        setup.epochs, setup.order.steps_per_epoch, step + 1, setup.order.batch, setup.stop, unit=setup.task.unit
    )
    deadline = time.monotonic() + run.max_minutes * 60 if run.max_minutes else math.inf
    print(
        f"run      {folder}: {setup.epochs} epochs of {setup.order.steps_per_epoch} steps"
        + (f"; going on after step {step}" if step else ""),
        flush=True,
    )
    return Session(
        setup, folder, checkpoints, log, progress, caught, deadline, state, step, saved=step if notes else -1, **kept
    )


def prepare(run: RunConfig) -> Setup:
    """Open the data and build the compiled steps. Raises UserError."""
    from ..models import definition
    from ..optim import Optimizer
    from ..step import Engine, Evaluator, check_divisible
    from ..tasks import TASKS, task
    from ..weights import read

    dataset = TASKS[run.task].open(run)
    stated = replace(run, model=with_sizes(run.model, dataset.sizes))
    run, order, epochs = plan(stated, dataset)
    its = task(run, dataset.record()).bring(lambda path: read(path, run.dir))
    network = definition(run.model, dtype=run.compute_dtype, param_dtype=parameter_dtype(run))
    # The schedule spans the whole run, whatever the budget.
    optimizer = Optimizer(run.optim, epochs * order.steps_per_epoch, order.steps_per_epoch, parameters(run.model))
    engine = Engine(run, network, its, optimizer)
    check_divisible(dataset.step_sizes(run.batch), len(engine.devices), run.accumulate)
    environment = backend.environment() | {"accumulate": run.accumulate, "parallel": run.parallel}
    return Setup(stated, run, dataset, order, epochs, its, engine, Evaluator(run.model, network, its), environment)


def parameter_dtype(run: RunConfig) -> str:
    """float32, or float64 where everything is."""
    return "float64" if run.compute_dtype == "float64" else "float32"


def plan(run: RunConfig, dataset: Data) -> tuple[RunConfig, Order, int]:
    """(the run, the order of its examples, its epochs); overfitting changes all three.

    Raises UserError where the training set is smaller than a batch.
    """
    order = dataset.order(run.batch, run.seed, run.overfit_batches)
    if not run.overfit_batches:
        return run, order, run.epochs
    quiet = task_row(run.task).quiet(run)
    run = replace(quiet, optim=replace(run.optim, schedule="constant", warmup=0.0, weight_decay=0.0), patience=0)
    return run, order, math.ceil((run.max_steps or OVERFIT_STEPS) / order.steps_per_epoch)


def starting_state(setup: Setup, folder: runs.Run, checkpoints: Checkpoints) -> tuple[State, dict[str, Any]]:
    """The state to go on from and the notes saved with it, or a fresh one and no notes. Raises UserError."""
    import jax

    from ..models import start
    from ..weights import starting_weights

    run, dtype = setup.run, parameter_dtype(setup.run)
    if folder.exists():
        runs.same_identity(folder, setup.stated)
        record = folder.record()
        if record["data"] not in (None, setup.dataset.identity):  # none: of a converted run, whose file did not say
            raise UserError(
                f"{folder}: data.source {run.data.source} is not the data that this run began with; restore it, or choose another --name"
            )
        if (frozen := record.get("frozen")) and frozen != setup.identity.get("frozen"):
            raise UserError(
                f"{folder}: its frozen arrays (a teacher) are not those that this run began with; restore them, or choose another --name"
            )
        if reason := cannot_go_on(record):
            raise UserError(
                f"{folder}: {reason}; train anew under another --name, its weights can still be evaluated and used"
            )
        checkpoints.clear()
        saved, skipped = checkpoints.restore(shapes(run.model))
        for reason in skipped:
            print(f"skipped  {reason}")
        if saved is not None:
            compare_environments(setup.environment, saved.notes["environment"])
            checkpoints.prune(saved.step, (saved.notes["best"] or {}).get("step"), run.keep)  # what a kill left undone
            return setup.engine.place(saved.state), saved.notes
    fresh = start(run.model, jax.random.key(run.seed), dtype)
    if run.init:
        given = starting_weights(run, runs.flatten(fresh), setup.dataset.record())
        fresh = runs.unflatten({name: jax.numpy.asarray(x, dtype) for name, x in given.items()})
    return setup.engine.start(fresh), {}


def comes_again(row: dict[str, Any], step: int, notes: dict[str, Any]) -> bool:
    """Whether a line of the log will be written again by a run that goes on from a checkpoint.

    Later steps apart (those the log cuts off itself): the test and other splits that are read once, an evaluation that the notes call
    due, and the line that a spent budget wrote out of turn.
    """
    if row["step"] != step:
        return False
    if row["kind"] == "eval":
        return row.get("split") not in ("train", "validation") or bool(notes.get("due"))
    return bool(notes.get("totals", {}).get("steps"))


def compare_environments(now: dict[str, Any], then: dict[str, Any]) -> None:
    """Say what has changed since a checkpoint was written and can change the last bits; of a converted one nothing is known."""
    was = {**then, **then["versions"]}
    changed = [
        f"{k} {was.get(k)} -> {v}"
        for k, v in {**now, **now["versions"]}.items()
        if was and k != "versions" and v != was.get(k)
    ]
    if changed:
        print(f"note     not bit for bit what an uninterrupted run gives, because these changed: {', '.join(changed)}")


def announce(setup: Setup) -> None:
    """Print what will be trained, on what, with what."""
    run, environment = setup.run, setup.environment
    what, cost = network_of(run.model).describe(run.model)
    count, width = sum(map(math.prod, shapes(run.model).values())), 8 if parameter_dtype(run) == "float64" else 4
    copies = 2 + len(roles(run.optim)) + bool(run.ema)
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in setup.dataset.splits.items())
    versions = environment["versions"]
    print(f"model    {what}")
    print(f"         {count:,} parameters, {cost}")
    print(f"data     {setup.dataset.name}: {setup.dataset.contents}; {sizes}")
    for note in setup.dataset.notes:
        print(f"         {note}")
    print(f"memory   {copies * count * width / 1e6:,.1f} MB for weights, gradients and optimizer, before activations")
    print(
        f"device   {environment['devices']} x {environment['device']}, {environment['cores']} cores; {run.parallel}, {run.compute_dtype}"
    )
    print(
        f"versions python {versions['python']}, jax {versions['jax']}, flax {versions['flax']}, optax {versions['optax']}"
    )
    if backend.unused_gpu():
        print(
            "warning  there is an NVIDIA GPU but jax runs on the CPU: install vit-jax[cuda12], or [cuda13] beside PyTorch"
        )
