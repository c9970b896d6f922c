"""Everything before the first step: data, network, compiled steps, starting state, and the run's folder."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import backend, runs, starting
from ..config import (
    RunConfig,
    Teacher,
    adapted,
    averaged,
    check_run,
    factor_shapes,
    held,
    kept_beside,
    learnt_table,
    moments,
    muon_kernels,
    network_of,
    parameters,
    shapes,
    task_row,
    to_dict,
    trained,
    with_sizes,
)
from ..config.formats import cannot_go_on
from ..division import Division, planned
from ..errors import UserError, install, printable
from ..hosts import ALONE, Hosts
from ..memory import run_bytes
from ..teacher import says, teacher_of
from .caught import Caught
from .decision import Decision
from .saving import Saver

if TYPE_CHECKING:
    from ..checkpoint import Checkpoints, Saved
    from ..data import Data
    from ..data.contract import Order
    from ..histograms import Histograms
    from ..report import Log, Progress
    from ..step import Engine, Evaluator, State
    from ..tasks import Task

OVERFIT_STEPS = 100  # steps of a run with overfit_batches and no max_steps


@dataclass(frozen=True)
class Setup:
    """What is determined by a run's config and its data."""

    stated: RunConfig  # as the user gave it, with the sizes that the data determines
    run: RunConfig  # as it is trained: the same without overfit_batches, else changed by `plan`
    dataset: Data
    order: Order
    epochs: int
    teacher: Teacher | None  # without the arrays of its network
    task: Task
    engine: Engine
    evaluator: Evaluator
    environment: dict[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """JSON values of config.json by which a run resumes only with the data and frozen arrays that it began with."""
        frozen = {name: runs.array_digest(np.asarray(x)) for name, x in runs.flatten(self.task.frozen).items()}
        return {"data": self.dataset.identity, **({"frozen": runs.text_digest(frozen)} if frozen else {})}

    @property
    def steps(self) -> int:
        """Training steps of the run."""
        return self.epochs * self.order.steps_per_epoch

    @property
    def stop(self) -> int:
        """The step after which this process ends, because of the budget max_steps or the end of the run."""
        return min(self.steps, self.run.max_steps or self.steps)


@dataclass
class Session:
    """A run in training: its setup, its files, and the state that the loop updates."""

    setup: Setup
    folder: runs.Run
    checkpoints: Checkpoints
    saver: Saver
    log: Log
    progress: Progress
    caught: Caught
    decision: Decision
    state: State  # on the devices
    step: int  # steps done
    saved: int  # step of the newest checkpoint, or -1
    record: dict[str, Any]  # the content of config.json
    # {"step", the selection metric, "loss", "weights": "raw" or "ema"} of the best validation so far.
    best: dict[str, Any] | None = None
    stale: int = 0  # epochs since the best validation
    due: bool = False  # the evaluation after this step has not been done yet
    # {"steps": number of steps, metric: its sum over them} since the last row of metrics.jsonl.
    totals: dict[str, float] = field(default_factory=lambda: {"steps": 0})
    seconds: float = 0.0  # spent on the run up to the newest checkpoint, by all processes
    clock: float = field(default_factory=time.monotonic)  # when `seconds` was last updated
    # Of the training steps alone, by all processes: without compilation (first steps), evaluations and saving.
    cpu_seconds: float = 0.0
    histograms: Histograms | None = None  # where the run asks for them

    @property
    def run(self) -> RunConfig:
        return self.setup.run

    @property
    def hosts(self) -> Hosts:
        return self.decision.hosts

    @property
    def engine(self) -> Engine:
        return self.setup.engine

    @property
    def task(self) -> Task:
        return self.setup.task

    @property
    def epoch(self) -> float:
        """Epochs done, with fractions."""
        return self.step / self.setup.order.steps_per_epoch


def given_data(run: Any, data: Any, class_names: Sequence[str], hosts: int = 1) -> tuple[RunConfig, Data | None]:
    """(the run with the data.source of examples that Python gives, these examples opened), or (the run, None).

    `data` and `class_names` are those of `train`, `hosts` the number of processes that train. Raises UserError.
    """
    if not isinstance(run, RunConfig):
        what = f"run is a {type(run).__name__}"
        raise UserError(f"{what}; give a RunConfig, such as vit_jax.preset('digits').run or vit_jax.load('digits').run")
    if data is None:
        if class_names:
            raise UserError("class_names: are those of examples given as data=...; leave them out")
        return run, None
    source = task_row(run.task).given
    if not source:
        raise UserError(f"data: the task {run.task} takes none from Python; give data.source")
    run = check_run(replace(run, data=replace(run.data, source=source)))
    backend.configure_jax(planned(run, hosts).devices)
    from ..data import Given
    from ..tasks import TASKS

    return run, TASKS[run.task].open_data(run, Given(data, class_names))


def open_session(
    run: RunConfig,
    preset: str,
    folder: runs.Run,
    caught: Caught,
    dataset: Data | None = None,
    hosts: Hosts = ALONE,
) -> Session:
    """Set a run up, restore or initialise its state, create its folder if it is new, and print what will be trained.

    `preset` is the preset's name for config.json; `dataset` is the data where it is open already. Raises UserError.
    """
    import jax

    from ..checkpoint import Checkpoints
    from ..histograms import Histograms
    from ..report import Log, Progress

    setup = set_up(run, dataset or own_data(run, folder), hosts)
    hosts.compare({"data": runs.text_digest(setup.identity)} | setup.environment["versions"])
    run = setup.run
    announce(setup)
    checkpoints = Checkpoints(folder, factor_shapes(run))
    state, notes, init = starting_state(setup, folder, checkpoints, hosts)
    step = int(jax.device_get(setup.engine.gather(state).step))
    hosts.moved(step)
    if not folder.exists():
        folder.create(
            runs.record_of(
                setup.stated,
                preset,
                **setup.dataset.metadata(),
                **setup.identity,
                **({"init": init} if init else {}),
                environment=setup.environment,
            )
        )
    elif remark := folder.remark():
        print(f"note     {printable(remark)}; the file is restored")
        folder.write_record(folder.record())
    restored = {
        name: notes[name] for name in ("best", "stale", "due", "totals", "seconds", "cpu_seconds") if name in notes
    }
    if remark := folder.log_remark(step):
        print(f"note     {printable(remark)}")
    folder.drop_metrics(lambda row: is_rewritten(row, step, notes))
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
        setup,
        folder,
        checkpoints,
        Saver(checkpoints, run.async_save, progress.say),
        log,
        progress,
        caught,
        Decision(hosts, caught, deadline, run.save_minutes * 60),
        state,
        step,
        saved=step if notes else -1,
        record=folder.record(),
        histograms=Histograms(setup.engine) if run.histograms else None,
        **restored,
    )


def own_data(run: RunConfig, folder: runs.Run) -> Data | None:
    """The data of a run that is to go on, opened by what its folder keeps of it; None if it keeps nothing of it.

    Raises UserError.
    """
    from ..tasks import TASKS

    own = task_row(run.task).from_its_folder(run, folder.path) if folder.exists() else run
    return None if own == run else TASKS[run.task].open_data(own)


def set_up(run: RunConfig, dataset: Data | None = None, hosts: Hosts = ALONE) -> Setup:
    """Open a run's data, unless it is open, and build its network, training step and evaluation step.

    Raises UserError.
    """
    from ..models import definition
    from ..optim import Optimizer
    from ..step import Engine, Evaluator, check_divisible, check_together
    from ..tasks import TASKS, task_of

    dataset = dataset or TASKS[run.task].open_data(run)
    stated = replace(run, model=with_sizes(run.model, dataset.sizes))
    run, order, epochs = plan(stated, dataset)
    teacher = teacher_of(run, dataset)
    task = task_of(run, dataset.metadata()).load_frozen(teacher)
    if teacher and teacher.config:
        teacher = replace(teacher, arrays={})  # the task has them
    network = definition(run.model, dtype=run.compute_dtype, param_dtype=parameter_dtype(run))
    # The schedule spans the run with all its resumptions, whatever the budget of this process is.
    optimizer = Optimizer(run.optim, epochs * order.steps_per_epoch, order.steps_per_epoch, learnt_table(run))
    engine = Engine(run, network, task, optimizer, hosts)
    sizes = dataset.step_sizes(run.batch)
    check_divisible(sizes, len(engine.devices), engine.parts)
    check_together(sizes, len(engine.devices), task_row(run.task).together(run))
    parallel = run.parallel + (f", fsdp {run.fsdp}" if run.fsdp > 1 else "")
    parallel += (", scan" if run.scan else "") + (f", remat {run.remat}" if run.remat != "none" else "")
    parallel += ", fused attention" if run.attention_kernel == "fused" else ""
    environment = backend.environment() | {"parallel": parallel}
    environment |= {"devices": len(engine.devices), "accumulate": engine.parts, "hosts": hosts.count}
    environment |= {"steps_per_dispatch": run.steps_per_dispatch, "async_save": run.async_save}
    evaluator = Evaluator(run.model, network, task, engine.devices)
    return Setup(stated, run, dataset, order, epochs, teacher, task, engine, evaluator, environment)


def parameter_dtype(run: RunConfig) -> str:
    """The dtype of a run's parameters: float64 if its compute_dtype is, else float32."""
    return "float64" if run.compute_dtype == "float64" else "float32"


def plan(run: RunConfig, dataset: Data) -> tuple[RunConfig, Order, int]:
    """(the run as it is trained, the order of its examples, its epochs).

    With overfit_batches the run has no augmentation, dropout, weight decay, schedule and early stopping. Raises
    UserError if the training set is smaller than a batch.
    """
    order = dataset.order(run.batch, run.seed, run.overfit_batches)
    if not run.overfit_batches:
        return run, order, run.epochs
    deterministic = task_row(run.task).quiet(run)
    run = replace(
        deterministic,
        optim=replace(run.optim, schedule="constant", warmup=0.0, warmup_steps=0, weight_decay=0.0),
        patience=0,
    )
    return run, order, math.ceil((run.max_steps or OVERFIT_STEPS) / order.steps_per_epoch)


def starting_state(
    setup: Setup, folder: runs.Run, checkpoints: Checkpoints, hosts: Hosts = ALONE
) -> tuple[State, dict[str, Any], dict[str, Any]]:
    """(state on the devices, the notes of its checkpoint, the entry `init` of config.json for a run with `init`).

    For a new run the initial state and no notes; the weights of `init` are opened for nothing else. Raises UserError if
    the run in the folder is another one, or cannot be continued.
    """
    saved = restored(setup, folder, checkpoints) if hosts.owner and folder.exists() else None
    notes = hosts.share(saved.notes if saved else None)
    if notes is not None:
        return setup.engine.spread(saved.state if saved else None), notes, {}
    new, init = new_state(setup, folder) if hosts.owner else (None, {})
    return setup.engine.spread(new), {}, hosts.share(init)


def new_state(setup: Setup, folder: runs.Run) -> tuple[State, dict[str, Any]]:
    """(the state before the first step, the entry `init` of config.json for a run with `init`). Raises UserError."""
    import jax

    from ..models import start

    given, init = starting_parameters(setup, folder)
    with setup.engine.devices.apart():
        parameters = start(setup.run.model, jax.random.key(setup.run.seed), parameter_dtype(setup.run), given)
        return setup.engine.begun(parameters), init


def restored(setup: Setup, folder: runs.Run, checkpoints: Checkpoints) -> Saved | None:
    """The newest checkpoint of the run in the folder, or None if it has saved none.

    Raises UserError if the run in the folder is another one, or cannot be continued.
    """
    run = setup.run
    folder.check_places()
    runs.same_identity(folder, setup.stated)
    record = folder.record()
    if not setup.dataset.same_as(record["data"]):
        raise UserError(
            f"{folder}: data.source {run.data.source} is not the data that this run began with; "
            "restore it, or choose another --name"
        )
    if (frozen := record.get("frozen")) and frozen != setup.identity.get("frozen"):
        raise UserError(
            f"{folder}: its frozen arrays (a teacher) are not those that this run began with; "
            "restore them, or choose another --name"
        )
    if reason := cannot_go_on(record):
        raise UserError(
            f"{folder}: {reason}; train anew under another --name, its weights can still be evaluated and used"
        )
    checkpoints.clear()
    saved, skipped = checkpoints.restore(shapes(run.model))
    for reason in skipped:
        print(f"skipped  {printable(reason)}")
    if saved is not None:
        check_continues(folder, saved, setup)
        compare_environments(setup.environment, saved.notes.get("environment", {}))
        # A process that was killed after saving may not have removed its old checkpoints.
        checkpoints.prune(saved.step, (saved.notes.get("best") or {}).get("step"), run.keep)
    return saved


def starting_parameters(setup: Setup, folder: runs.Run | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(parameters that the weights of `init` give, {dotted name: array}, the entry `init` of config.json).

    Both are empty for a run without `init` or `init_encoder`. Prints what the weights are. Raises UserError where they
    do not fit, or are not those that the run in the folder began with.
    """
    if not (setup.run.init or setup.run.init_encoder):
        return {}, {}
    started = starting.start(setup.run, setup.dataset.metadata())
    if folder is not None and folder.exists():
        starting.check_same(folder, started.record)
    print(started.says)
    return started.parameters, started.record


def check_continues(folder: runs.Run, saved: Saved, setup: Setup) -> None:
    """Raise UserError unless a checkpoint has what the run goes on with: its moments, its average, its best result."""
    run, best, state = setup.run, saved.notes.get("best"), saved.state
    kept = {role: runs.flatten(tree).keys() for role, tree in state.moments.items()}
    beside = {role: runs.flatten(tree).keys() for role, tree in (state.lora or {}).items()}
    if (
        kept != {role: {*names} for role, names in moments(run.optim, learnt_table(run)).items()}
        or runs.flatten(state.ema or {}).keys() != {*(averaged(run) if run.ema else ())}
        or beside != kept_beside(run)
        or (best is not None and not {setup.task.selection_metric[0], "loss"} <= best.keys())
    ):
        raise UserError(
            f"{folder}: the optimizer, the average or the best result of checkpoint {saved.step} is not that of this "
            f"run; restore the folder, or start a new run with --init {folder}"
        )


def is_rewritten(row: dict[str, Any], step: int, notes: dict[str, Any]) -> bool:
    """Whether a row of metrics.jsonl will be written again by a run that resumes from the checkpoint of `step`.

    Of the rows of that step (Log removes those of later steps) these are: evaluations at the end of a run, the
    evaluation that the notes list as due, and the row that was written out of turn when a budget ended the process.
    """
    if row["step"] != step:
        return False
    if row["kind"] == "eval":
        return row.get("split") not in ("train", "validation") or bool(notes.get("due"))
    return bool(notes.get("totals", {}).get("steps"))


# What an environment has that older versions did not state, as it was then.
_SINCE = {"steps_per_dispatch": 1, "async_save": False, "hosts": 1}


def compare_environments(now: dict[str, Any], then: dict[str, Any]) -> None:
    """Print the changes since a checkpoint was written (unless it is a converted one) that may change the last bits."""
    versions = then.get("versions", {})
    was = {**_SINCE, **then, **versions} if versions else {}
    changed = [
        f"{k} {was.get(k)} -> {v}"
        for k, v in {**now, **now["versions"]}.items()
        if was and k != "versions" and v != was.get(k)
    ]
    if changed:
        print(
            "note     results may differ in their last bits from an uninterrupted run, because of: "
            + printable(", ".join(changed))
        )


def by_rule(run: RunConfig) -> str:
    """How many parameters Muon updates, in a run whose optimizer is muon, and AdamW, and at which rates."""
    table, c = parameters(run.model), run.optim
    kernels, names = muon_kernels(c, table), trained(c, table)
    by_muon, by_adam = (
        sum(math.prod(table[name].shape) for name in names if (name in kernels) is on) for on in (True, False)
    )
    return (
        f"Muon updates {by_muon:,} of them, in {len(kernels)} hidden kernels, at rate {c.muon_lr:g}; "
        f"AdamW {by_adam:,}, in {len(names) - len(kernels)} tensors, at rate {c.lr:g}"
    )


def announce(setup: Setup) -> None:
    """Print the network, data, memory, device and versions of a run."""
    run, environment = setup.run, setup.environment
    what, cost = network_of(run.model).describe(run.model)
    table = learnt_table(run)
    count = sum(math.prod(shape) for shape in shapes(run.model).values())
    training = sum(math.prod(table[name].shape) for name in trained(run.optim, table))
    copies = len(setup.engine.devices) if setup.engine.devices.share_a_cpu else 1
    weights, _ = run_bytes(run, setup.teacher, Division(copies, setup.engine.parts))
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in setup.dataset.splits.items())
    versions = environment["versions"]
    print(f"model    {what}")
    print(f"         {count:,} parameters, {cost}")
    if late := held(run.optim, table):
        first = setup.engine.optimizer.release + 1
        size = sum(math.prod(table[name].shape) for name in late)
        print(f"         {size:,} of them train from step {first} on, in {len(late)} of {len(table)} tensors")
    elif run.lora.rank:
        of = f"LoRA of rank {run.lora.rank} on {len(adapted(run))} kernels"
        print(f"         {of}: {training:,} numbers train, in {len(trained(run.optim, table))} tensors with the head")
    elif run.optim.freeze:
        print(f"         {training:,} of them train, in {len(trained(run.optim, table))} of {len(table)} tensors")
    if run.optim.name == "muon":
        print(f"         {by_rule(run)}")
    if setup.teacher:
        print(printable(f"teacher  {says(setup.teacher)}"))
    print(printable(f"data     {setup.dataset.name}: {setup.dataset.contents}; {sizes}"))
    for remark in setup.dataset.remarks:
        print(printable(f"         {remark}"))
    of = "weights, gradients, optimizer and teacher" if setup.teacher else "weights, gradients and optimizer"
    of += " on each device" if run.fsdp > 1 and copies == 1 else ""
    print(f"memory   {weights / 1e6:,.1f} MB for {of}, before activations")
    devices = f"{environment['devices']} x {environment['device']}, {environment['cores']} cores"
    cut = environment["accumulate"]
    parts = f"; each computes its share of a batch in {cut} parts" if cut > 1 else ""
    print(f"device   {devices}; {environment['parallel']}, {run.compute_dtype}{parts}")
    print("versions " + ", ".join(f"{name} {versions[name]}" for name in ("python", "jax", "flax", "optax")))
    if backend.unused_gpu():
        print(
            "warning  there is an NVIDIA GPU but jax runs on the CPU: "
            f"{install('cuda12')}, or with cuda13 in place of cuda12 if PyTorch is installed"
        )
