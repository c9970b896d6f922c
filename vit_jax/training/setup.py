"""The second step of setting up a run: the network, the compiled steps and the order of examples, by its data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..config.groups import trainable_table
from ..config.network import Teacher
from ..config.run import RunConfig
from ..config.stages import runs_in_stages
from ..files.digests import text_digest
from ..machine import backend
from ..machine.division import check_shares
from ..machine.hosts import ALONE, Hosts
from ..tasks.table import task_spec
from .hooks import Hooks
from .preflight import CheckedRun, frozen_digest, with_data

if TYPE_CHECKING:
    from ..data.base import Data, Order
    from ..tasks.base import Task
    from .engine.engine import Engine
    from .engine.evaluator import Evaluator


OVERFIT_STEPS = 100  # steps of a run with overfit_batches and no max_steps


@dataclass(frozen=True)
class Setup:
    """What is determined by a run's config and its data."""

    as_given: RunConfig  # by the user, with the sizes that the data determines
    run: RunConfig  # as it is trained: the same without overfit_batches, else changed by `plan`
    dataset: Data
    order: Order
    epochs: int
    teacher: Teacher | None  # without the arrays of its network
    task: Task
    engine: Engine  # of the run as its fields say, without stages
    evaluator: Evaluator
    environment: dict[str, Any]
    hooks: Hooks
    stages: Mapping[int, Engine]  # {step after which it begins: its engine}, the first 0

    @property
    def identity(self) -> dict[str, Any]:
        """JSON values of config.json by which a run resumes only with the data and the teacher that it began with."""
        frozen = frozen_digest(self.task)
        return {"data": self.dataset.identity, **({"frozen": frozen} if frozen else {})}

    @property
    def steps(self) -> int:
        """Training steps of the run."""
        return self.epochs * self.order.steps_per_epoch

    def engine_at(self, step: int) -> Engine:
        """The engine of the step that is done next after so many."""
        return engine_at(self.stages, step)

    def is_end(self, step: int, stale: int) -> bool:
        """Whether the run ends after this step, with so many epochs since the best validation."""
        return step >= self.steps or bool(self.run.patience and stale >= self.run.patience)

    @property
    def stop(self) -> int:
        """The step after which this process ends, because of the budget max_steps or the end of the run."""
        return min(self.steps, self.run.max_steps or self.steps)


def set_up(checked: CheckedRun, dataset: Data, hosts: Hosts = ALONE) -> Setup:
    """Build the network, the training step and the evaluation step of a run with its data."""
    from ..models.build import definition
    from ..models.kernels.rounded import rounds_factors
    from ..tasks.computed import task_of
    from .engine.engine import Engine
    from .engine.evaluator import Evaluator
    from .engine.optim import Optimizer

    as_given = with_data(checked.run, dataset)
    run, order, epochs = plan(as_given, dataset)
    if (teacher := checked.teacher) is not None:
        task_spec(run.task).check_teacher(teacher, run, dataset)
    task = task_of(run, dataset.metadata()).load_frozen_arrays(teacher)
    if teacher and teacher.config:
        teacher = replace(teacher, arrays={})  # the task has them
    define = partial(definition, run.model, run.compute_dtype, parameter_dtype(run))
    # The schedule spans the run with all its resumptions, whatever the budget of this process is.
    steps = epochs * order.steps_per_epoch
    optimizer = Optimizer(run.optim, steps, order.steps_per_epoch, trainable_table(run))
    engine = Engine(run, define, task, optimizer, hosts)
    stages = engines_of(engine, run, steps)
    check_shares(dataset.step_sizes(run.batch), len(engine.devices), engine.parts, run.augment.together)
    parallel = run.parallel + (f", fsdp {run.fsdp}" if run.fsdp > 1 else "")
    parallel += (", scan" if run.scan else "") + (f", remat {run.remat}" if run.remat != "none" else "")
    parallel += ", fused attention" if engine.attention[0] else ""
    environment = backend.environment() | {"parallel": parallel}
    if rounds_factors(run.compute_dtype):
        environment["bfloat16"] = "factors of linear layers"
    environment |= {"devices": len(engine.devices), "accumulate": engine.parts, "hosts": hosts.count}
    environment |= {"steps_per_dispatch": run.steps_per_dispatch, "async_save": run.async_save}
    evaluator = Evaluator(run.model, define(), task, engine.devices)
    setup = Setup(
        as_given, run, dataset, order, epochs, teacher, task, engine, evaluator, environment, checked.hooks, stages
    )
    hosts.compare({"data": text_digest(setup.identity)} | environment["versions"])
    return setup


def engines_of(engine: Engine, run: RunConfig, steps: int) -> dict[int, Engine]:
    """The engines of the stages of a run -> {step after which a stage begins: its engine}, the first 0."""
    from ..models.build import definition

    def of_stage(each: RunConfig) -> Engine:
        if each.model == run.model:
            return engine
        return engine.in_stage(each, partial(definition, each.model, run.compute_dtype, parameter_dtype(run)))

    return {first: of_stage(each) for first, each in runs_in_stages(run, steps).items()}


def engine_at(engines: Mapping[int, Engine], step: int) -> Engine:
    """That of `engines_of` which does the next step after so many."""
    return engines[max(first for first in engines if first <= step)]


def parameter_dtype(run: RunConfig) -> str:
    """The dtype of a run's parameters: float64 if its compute_dtype is, else float32."""
    return "float64" if run.compute_dtype == "float64" else "float32"


def plan(run: RunConfig, dataset: Data) -> tuple[RunConfig, Order, int]:
    """How a run is trained: with overfit_batches without augmentation, dropout, decay, schedule and early stopping.
    Returns (the run as it is trained, the order of its examples, its epochs).
    """
    order = dataset.order(run.batch, run.seed, run.overfit_batches)
    if not run.overfit_batches:
        return run, order, run.epochs
    deterministic = task_spec(run.task).without_randomness(run)
    run = replace(
        deterministic,
        optim=replace(run.optim, schedule="constant", warmup=0.0, warmup_steps=0, weight_decay=0.0),
        patience=0,
    )
    return run, order, math.ceil((run.max_steps or OVERFIT_STEPS) / order.steps_per_epoch)
