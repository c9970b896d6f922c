"""A job: a run that is set up. What is known to be wrong is refused; then its data determine all that is computed.

What a run is made from may lie anywhere: its data, the weights that it starts from, its teacher. Nothing is written.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np

from .. import runs
from ..config.groups import trainable_table
from ..config.network import Teacher
from ..config.run import DataConfig, RunConfig
from ..config.stages import runs_in_stages
from ..config.trees import flatten
from ..errors import Field, UserError
from ..files.digests import array_digest, text_digest
from ..machine import backend
from ..machine.division import Division, check_memory, check_shares, plan_division
from ..machine.hosts import ALONE, Hosts
from ..presets.table import preset
from ..presets.variants import on_other_data
from ..runs.check import check_complete, check_name, check_run
from ..runs.values import changed_places, with_fields
from ..tasks.can import HasFrozen
from ..tasks.table import task_spec
from ..weights.opening import check_unchanged, open_teacher
from ..weights.start import check as check_start
from ..weights.start import start
from .hooks import Hook, Hooks

if TYPE_CHECKING:
    from ..data.base import Data, GivenData, Order
    from ..data.batches import Batch
    from ..tasks.base import Task
    from .engine.engine import Engine
    from .engine.evaluator import Evaluator

# Fields that each host may have in its own way: the places of its files.
OF_A_HOST = ("data.dir", "dir", "name")


def checked_arguments(
    run: Any, data: Any, class_names: Sequence[str], fields: Mapping[str, Any] = {}
) -> tuple[RunConfig, GivenData | None]:
    """The arguments of `train`, checked; `fields` are other values of fields of `run`."""
    from ..data.base import GivenData

    if isinstance(run, str):
        run = preset(run).run if data is None else on_other_data(preset(run).run)
    if not isinstance(run, RunConfig):
        what = f"run is a {type(run).__name__}"
        raise UserError(what, remedy="give a preset's name, or a RunConfig such as vit_jax.preset('digits').run")
    run = with_fields(run, fields) if fields else run
    if given := GivenData.of(data, class_names):
        if not run.data.given:
            raise UserError("data", f"the task {run.task} takes none from Python", "give data.source")
        run = replace(run, data=replace(run.data, source=run.data.given))
    return check_run(run), given


def preflight(run: RunConfig, hosts: Hosts = ALONE) -> tuple[Division, Teacher | None, Hooks]:
    """How a run that `check_run` has passed is divided, as planned before jax starts; its teacher; its hooks."""
    if hosts.several and run.parallel == "pmap":
        raise UserError("hosts", "parallel is pmap, which works on one host only", "set it to jit")
    check_complete(run)
    division = plan_division(run, hosts.count)
    teacher = None
    if run.teacher:
        teacher = open_teacher(run, before_reading=lambda teacher: check_memory(run, teacher, division))
    if teacher is None:
        check_memory(run, None, division)
    hooks = Hooks(run)
    hooks.each("check", run)
    for name, hook in hooks.of.items() if hosts.several else ():
        if type(hook).due is not Hook.due:
            raise UserError(Field("hooks"), f"{name} wants steps alone, and there are several hosts", "leave it out")
    return division, teacher, hooks


def choose_folder(
    run: RunConfig, preset: str, folder: runs.Run | None = None, group: str = "", *, difference: runs.Difference
) -> runs.Run:
    """The folder in which to train a run, new or with this run in it; writes nothing."""
    if folder is None:
        if run.init:
            check_unchanged(run, check_name(run.name or preset))
        folder = runs.choose(run, run.name or preset, bool(run.name), group, difference)
    else:
        if clause := difference(folder, run):
            raise runs.other_content(folder, clause)
    runs.check_place(folder.path)
    if (run.init or run.init_encoder) and not folder.complete_steps():
        check_start(run)
    return folder


OF_DATA = ("data.source", "data.tokenizer")


def frozen_digest(task: Task) -> str:
    """A digest of the arrays of a task that do not learn, such as a teacher's; empty if it has none."""
    digests = {name: array_digest(np.asarray(x)) for name, x in flatten(task.frozen_arrays).items()}
    return text_digest(digests) if digests else ""


def open_data(run: RunConfig, given: GivenData | None = None, fetch: bool = True) -> Data:
    """Open the data of a run."""
    from ..tasks.computed import task_class

    return task_class(run.task).open_data(run, given, fetch)


def with_data(run: RunConfig, dataset: Data) -> RunConfig:
    """The run with what its data determines, such as the number of classes."""
    sized = replace(run, model=run.model.with_sizes(dataset.sizes))
    return task_spec(run.task).with_data(sized, dataset.metadata())


def is_finished(folder: runs.Run) -> bool:
    """Whether a run has a summary, undamaged, of its end."""
    with contextlib.suppress(UserError):
        return (folder.summary() or {}).get("status") == "finished"
    return False


def _ended_before(folder: runs.Run, paths: Iterable[Path]) -> bool:
    """Whether a run is finished and one of these files or folders, or what lies directly in one, is newer."""
    with contextlib.suppress(OSError):  # whoever reads it says what is wrong with it
        if is_finished(folder):
            ended = folder.summary_file.stat().st_mtime_ns
            each = [entry for path in paths for entry in (path, *(os.scandir(path) if path.is_dir() else ()))]
            return any(entry.stat().st_mtime_ns > ended for entry in each)
    return False


class Origin:
    """What a run is made from, its data opened once; whether a folder holds a run that was made from the same."""

    def __init__(self, given: GivenData | None = None, fetch: bool = True, hosts: Hosts = ALONE):
        self.given, self.fetch, self.hosts = given, fetch, hosts
        self._opened: dict[tuple[DataConfig, int], Data] = {}

    def open(self, run: RunConfig, folder: runs.Run) -> Data:
        """The data of a run."""
        kept = run.data
        if folder.exists() and "data.tokenizer" not in changed_places(folder.config(), run):
            kept = kept.in_folder(folder.path)
        key = (kept, run.seed)
        if key not in self._opened:
            if not self.hosts.several:
                backend.configure_jax(plan_division(run, self.hosts.count).devices)
            try:
                self._opened[key] = open_data(replace(run, data=kept), self.given, self.fetch)
            except UserError as error:
                if folder.exists() and self.given is None and not run.data.paths():
                    error.add("; if the data was moved, say to where with `data.source`: this run goes on with it")
                raise
        return self._opened[key]

    def difference(self, folder: runs.Run, run: RunConfig) -> str:
        """A clause on what a run is made from that the run in a folder was not.

        Opened is only what lies elsewhere now, was given in Python, or is newer than the results of a finished run,
        which are shown again if it is the same. What another run began with is compared where it goes on.
        """
        if not folder.exists():
            return ""
        record, elsewhere = folder.record(), changed_places(folder.config(), run)
        clauses = {name: f"{name} is {new}, and was {old}" for name, (old, new) in elsewhere.items()}
        if self.given is None and _ended_before(folder, run.data.paths()):
            clauses.setdefault("data.source", f"data.source {run.data.source} has changed since that run ended")
        of_data = [clauses[name] for name in OF_DATA if name in clauses]
        to_open = of_data or self.given is not None
        if to_open and (clause := self.open(run, folder).difference(record)):
            return f"{of_data[0] if of_data else 'its data is another'}: {clause}"
        its = {"teacher": record.get("frozen")}
        its |= dict.fromkeys(("init", "init_encoder"), (record.get("init") or {}).get("digest"))
        for name, digest in its.items():
            if name in elsewhere and digest != self._digest(name, run, folder):
                return clauses[name]
        return ""

    def _digest(self, name: str, run: RunConfig, folder: runs.Run) -> str:
        """The digest of the arrays of the run's teacher, or of the weights that it starts from."""
        from ..tasks.computed import task_of

        data = self.open(run, folder)
        run, metadata = with_data(run, data), data.metadata()
        if name == "teacher":
            return frozen_digest(task_of(run, metadata).able(HasFrozen).load(open_teacher(run)))
        return str(start(run, metadata).record["digest"])


OVERFIT_STEPS = 100  # steps of a run with overfit_batches and no max_steps


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is set up: what its config and its data determine, and where it lies."""

    stated: RunConfig  # as its user gave it, with the sizes that the data determines
    run: RunConfig  # as it is trained: the same without overfit_batches, else changed by `plan`
    folder: runs.Run
    preset: str  # by whose name config.json knows it
    data: Data
    order: Order
    epochs: int
    teacher: Teacher | None  # without the arrays of its network
    task: Task
    engine: Engine  # of the run as its fields say, without stages
    stages: Mapping[int, Engine]  # {step after which it begins: its engine}, the first 0
    environment: dict[str, Any]
    hooks: Hooks

    @cached_property
    def evaluator(self) -> Evaluator:
        """The compiled evaluation step."""
        from .engine.evaluator import Evaluator

        return Evaluator(self.run.model, self.engine.define(), self.task, self.engine.devices)

    @property
    def hosts(self) -> Hosts:
        return self.engine.hosts

    @property
    def identity(self) -> dict[str, Any]:
        """JSON values of config.json by which a run resumes only with the data and the teacher that it began with."""
        frozen = frozen_digest(self.task)
        return {"data": self.data.identity, **({"frozen": frozen} if frozen else {})}

    @property
    def steps(self) -> int:
        """Training steps of the run."""
        return self.epochs * self.order.steps_per_epoch

    @property
    def stop(self) -> int:
        """The step after which this process ends, because of the budget max_steps or the end of the run."""
        return min(self.steps, self.run.max_steps or self.steps)

    def engine_after(self, step: int) -> Engine:
        """The engine that does the next step after so many."""
        return self.stages[max(first for first in self.stages if first <= step)]

    def epochs_of(self, step: int) -> float:
        """The epochs that so many steps are, with fractions."""
        return step / self.order.steps_per_epoch

    def batches(self, step: int, stop: int = 0) -> contextlib.closing[Generator[Batch, None, None]]:
        """A context with the batches of the steps after `step`, to `stop` (0: that of this process), made ahead."""
        from ..data.batches import batches

        rows = self.engine.devices.rows
        return contextlib.closing(batches(self.data.splits["train"], self.order, step, stop or self.stop, rows))

    def is_end(self, step: int, stale: int) -> bool:
        """Whether the run ends after this step, with so many epochs since the best validation."""
        return step >= self.steps or bool(self.run.patience and stale >= self.run.patience)


def open_job(
    run: RunConfig,
    data: Data,
    folder: runs.Run,
    preset: str = "run",
    teacher: Teacher | None = None,
    hooks: Hooks | None = None,
    hosts: Hosts = ALONE,
) -> Job:
    """Build the network, the training step and the evaluation step of a run with its data; see `preflight`."""
    from ..tasks.computed import task_of

    stated = with_data(run, data)
    run, order, epochs = plan(stated, data)
    if teacher is not None:
        task_spec(run.task).check_teacher(teacher, run, data)
    task: Task = task_of(run, data.metadata()).able(HasFrozen).load(teacher)
    if teacher and teacher.config:
        teacher = replace(teacher, arrays={})  # the task has them
    steps = epochs * order.steps_per_epoch
    engine = engine_of(run, task, steps, order.steps_per_epoch, hosts=hosts)
    check_shares(data.step_sizes(run.batch), len(engine.devices), engine.parts, run.augment.together)
    job = Job(
        stated=stated,
        run=run,
        folder=folder,
        preset=preset,
        data=data,
        order=order,
        epochs=epochs,
        teacher=teacher,
        task=task,
        engine=engine,
        stages=engines_of(engine, run, steps),
        environment=environment_of(run, engine),
        hooks=hooks or Hooks(run),
    )
    hosts.compare({"data": text_digest(job.identity)} | job.environment["versions"])
    return job


def engine_of(run: RunConfig, task: Task, steps: int, steps_per_epoch: int, **where: Any) -> Engine:
    """The engine of a run, without stages, whose schedule spans so many steps, whatever the budget of a process is.

    `where` says on which hosts, or for which target.
    """
    from ..models.build import definition
    from .engine.optim import Optimizer

    define = partial(definition, run.model, run.compute_dtype, run.parameter_dtype)
    optimizer = Optimizer(run.optim, steps, steps_per_epoch, trainable_table(run))
    return make_engine(run, define, task, optimizer, **where)


def make_engine(run: RunConfig, *given: Any, **more: Any) -> Engine:
    """The engine of a run, made as `Engine` is."""
    if run.parallel == "jit":
        from .engine.engine import Engine as Chosen
    elif run.parallel == "pmap":
        from .engine.pmap import PmapEngine as Chosen
    else:
        assert_never(run.parallel)
    return Chosen(run, *given, **more)


def environment_of(run: RunConfig, engine: Engine) -> dict[str, Any]:
    """What may change the last bits of results: versions, devices, and how the steps of a run are computed on them."""
    from ..models.lowering import rounds_factors

    parallel = run.parallel + (f", fsdp {run.fsdp}" if run.fsdp > 1 else "")
    parallel += (", scan" if run.scan else "") + (f", remat {run.remat}" if run.remat != "none" else "")
    parallel += ", fused attention" if engine.attention[0] else ""
    found = backend.environment() | {"parallel": parallel}
    if rounds_factors(run.compute_dtype):
        found["bfloat16"] = "factors of linear layers"
    found |= {"devices": len(engine.devices), "accumulate": engine.parts, "hosts": engine.hosts.count}
    return found | {"steps_per_dispatch": run.steps_per_dispatch, "async_save": run.async_save}


def engines_of(engine: Engine, run: RunConfig, steps: int) -> dict[int, Engine]:
    """The engines of the stages of a run -> {step after which a stage begins: its engine}, the first 0."""
    from ..models.build import definition

    found = {}
    for first, each in runs_in_stages(run, steps).items():
        define = partial(definition, each.model, run.compute_dtype, run.parameter_dtype)
        found[first] = engine if each.model == run.model else engine.in_stage(each.model, define)
    return found


def plan(run: RunConfig, dataset: Data) -> tuple[RunConfig, Order, int]:
    """(The run as it is trained, the order of its examples, its epochs).

    With overfit_batches it is trained without augmentation, dropout, decay, schedule and early stopping.
    """
    order = dataset.order(run.batch, run.seed, run.overfit_batches)
    if not run.overfit_batches:
        return run, order, run.epochs
    run = replace(
        run.without_randomness(),
        optim=replace(run.optim, schedule="constant", warmup=0.0, warmup_steps=0, weight_decay=0.0),
        patience=0,
    )
    return run, order, math.ceil((run.max_steps or OVERFIT_STEPS) / order.steps_per_epoch)
