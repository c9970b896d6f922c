"""The state of a job: new, of given weights, or that of the newest checkpoint; and its folder, made or brought up.

A run that is there goes on as it was, or to another length, as if that had been given at first.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import runs
from ..config.groups import averaged_parameters, lora_names, moments, trainable_table
from ..config.run import RunConfig
from ..config.trees import flatten
from ..errors import Field, UserError
from ..files.terminal import print_note, printable
from ..machine.numerics import random_key
from ..runs.record import own_schedule
from ..runs.values import LENGTH, changed_places, other_identity, to_dict
from ..tasks.table import task_spec
from ..weights.opening import check_same
from ..weights.start import start as start_from
from .job import Job, is_finished

if TYPE_CHECKING:
    from ..weights.checkpoint import Checkpoints, Saved
    from .engine.step import TrainState


def run_now(folder: runs.Run, run: RunConfig, resumed: bool) -> tuple[RunConfig, bool]:
    """(The run to train now in a folder, whether it goes on beyond the end that it had there); writes nothing."""
    if not folder.exists():
        if resumed:
            raise UserError(folder, "no run here", "leave resume out to begin one")
        return run, False
    now = folder.config()
    changed = other_identity(now, run)
    if changed.keys() - ({*LENGTH} if resumed else {}):
        raise runs.other_run(folder, changed)
    done, finished = (folder.complete_steps() or [0])[0], is_finished(folder)
    if not changed and not (resumed and finished and run.overfit_batches and run.max_steps != now.max_steps):
        if not finished:
            _check_schedule(folder)
        return run, False
    if _steps(folder, run.epochs, done) < done:
        has = done / _steps(folder, 1, done)
        raise UserError(Field("epochs"), f"is {run.epochs}, but {folder} has done {has:g}", "give more than that")
    if run.max_steps == now.max_steps and 0 < run.max_steps <= done:
        run = replace(run, max_steps=0)  # the budget of before is spent
    return run, True


def _steps(folder: runs.Run, epochs: int, done: int) -> int:
    """The steps of so many epochs, by the log of a run; at least `done` where the log does not tell."""
    known = [row for row in folder.metrics() if row["step"] and row.get("epoch")]
    return round(epochs * known[-1]["step"] / known[-1]["epoch"]) if known else max(done, 1)


def _check_schedule(folder: runs.Run) -> None:
    """Raise UserError where an older version trains the run on by a schedule that begins anew, or by a fixed rate."""
    if way := own_schedule(folder.record()):
        path = shlex.quote(str(folder))
        raise UserError(
            folder,
            f"is being trained on by continue {way}, which is gone",
            f"give `resume {path}` more `epochs`, as if they had been given at first, or begin a new run from its "
            f"weights with `init {path}`",
        )


@dataclass
class State:
    """What steps change: the tree of arrays on the devices, and what checkpoints note beside it."""

    tree: TrainState
    step: int = 0  # steps done
    # {"step", the selection metric, "loss", "weights": "raw" or "ema"} of the best validation so far.
    best: dict[str, Any] | None = None
    stale: int = 0  # epochs since the best validation
    due: bool = False  # the evaluation after this step has not been done yet
    # {"steps": number of steps, metric: its sum over them} since the last row of metrics.jsonl.
    totals: dict[str, float] = field(default_factory=lambda: {"steps": 0})
    seconds: float = 0.0  # spent on the run up to the newest checkpoint, by all processes
    # Of the training steps alone, by all processes: without compilation (first steps), evaluations and saving.
    cpu_seconds: float = 0.0

    def notes(self, job: Job) -> dict[str, Any]:
        """The JSON part of a checkpoint: all but the arrays that a run needs to resume as if it had never stopped."""
        noted = {name: getattr(self, name) for name in NOTED}
        beside = {"data": job.data.identity, "environment": job.environment}
        return {"optimizer": job.run.optim.name, **noted, **beside}


NOTED = ("best", "stale", "due", "totals", "seconds", "cpu_seconds")


def first_state(job: Job, checkpoints: Checkpoints) -> tuple[State, bool, dict[str, Any]]:
    """The state that a job goes on from, or begins with; whether that is of a checkpoint; the entry `init` of
    config.json. The weights of `init` are opened for nothing else.
    """
    import jax

    saved = restore(job, checkpoints) if job.hosts.owner and job.folder.exists() else None
    notes = job.hosts.share(saved.notes if saved else None)
    if notes is not None:
        tree, init = job.engine.put(job.engine.restored(saved.state) if saved else None), {}
    else:
        new, init = new_state(job) if job.hosts.owner else (None, {})
        tree, init = job.engine.put(new), job.hosts.share(init)
    step = int(jax.device_get(job.engine.gather(tree).step))
    job.hosts.heartbeat(step)
    return State(tree, step, **{k: x for k, x in (notes or {}).items() if k in NOTED}), notes is not None, init


def new_state(job: Job) -> tuple[TrainState, dict[str, Any]]:
    """The state before the first step, of weights that are given -> (the state, the entry `init` of config.json)."""
    from ..models.build import start

    run, given, init = job.run, dict[str, np.ndarray](), dict[str, Any]()
    if run.init or run.init_encoder:
        started = start_from(run, job.data.metadata())
        if job.folder.exists():
            check_same(job.folder, started.record)
        print(started.description)
        given, init = started.parameters, started.record
    with job.engine.devices.apart():
        parameters = start(run.model, random_key(run.seed), run.parameter_dtype, given)
        return job.engine.initial_state(parameters), init


def _check_unchanged(job: Job, record: Mapping[str, Any]) -> None:
    """Raise UserError where the data, weights of classes or a teacher are not those that a run began with."""
    run, folder = job.run, job.folder
    if clause := job.data.difference(record):
        raise UserError(
            folder,
            f"data.source {run.data.source} is not the data that this run began with: {clause}",
            "restore it, or choose another `name`",
        )
    if record["config"]["data"].get("lanes") == 0 and getattr(job.data, "blocks", None) is not None:
        raise UserError(
            folder,
            "its images came in blocks by several readers, and this version has one, which takes them in another order",
            f"start a new run with `init {folder}`",
        )
    now = job.data.metadata()
    for name in (name for name, entry in task_spec(run.task).metadata.items() if entry.of_training):
        if record.get(name) != now.get(name):
            raise UserError(
                folder,
                f"its {name} are not those that this run began with",
                f"restore the file of loss.class_weights {run.loss.class_weights}, or choose another `name`",
            )
    if (frozen := record.get("frozen")) and frozen != job.identity.get("frozen"):
        raise UserError(
            folder,
            "its frozen arrays (a teacher) are not those that this run began with",
            "restore them, or choose another `name`",
        )


def restore(job: Job, checkpoints: Checkpoints) -> Saved | None:
    """The newest checkpoint of a job. None if it has saved none."""
    run = job.run
    job.folder.check_paths()
    _check_unchanged(job, job.folder.record())
    checkpoints.clear()
    saved, skipped = checkpoints.restore(run.model.shapes())
    for reason in skipped:
        print(f"skipped  {printable(reason)}")
    if saved is not None:
        _check_continues(job, saved)
        saved.notes.update(noted_anew(job))
        compare_environments(job.environment, saved.notes.get("environment", {}))
        # A process that was killed after saving may not have removed its old checkpoints.
        checkpoints.prune(saved.step, (saved.notes.get("best") or {}).get("step"), run.keep)
    return saved


def _check_continues(job: Job, saved: Saved) -> None:
    """Raise UserError unless a checkpoint has what the run goes on with: its moments, its average, its best result."""
    run, best, state = job.run, saved.notes.get("best"), saved.state
    kept = {role: flatten(tree).keys() for role, tree in state.moments.items()}
    beside = {role: flatten(tree).keys() for role, tree in (state.lora or {}).items()}
    if (
        kept != {role: {*names} for role, names in moments(run.optim, trainable_table(run)).items()}
        or flatten(state.ema or {}).keys() != {*(averaged_parameters(run) if run.ema else ())}
        or beside != lora_names(run)
        or (best is not None and not {job.task.selection_metric[0], "loss"} <= best.keys())
    ):
        raise UserError(
            job.folder,
            f"the optimizer, the average or the best result of checkpoint {saved.step} is not that of this run",
            f"restore the folder, or start a new run with `init {job.folder}`",
        )


# {entry that an environment need not have: what that means}; earlier versions chose between kinds of `products`.
OPTIONAL = {"jax_variables": "", "bfloat16": "", "products": "ynnpack"}


def compare_environments(now: dict[str, Any], then: dict[str, Any]) -> None:
    """Print the changes since a checkpoint was written (unless it is a converted one) that may change the last bits."""
    versions = then.get("versions", {})
    was = {**OPTIONAL, **then, **versions} if versions else {}
    changed = [
        f"{k} {was.get(k)} -> {v}"
        for k, v in {**OPTIONAL, **now, **now["versions"]}.items()
        if was and k != "versions" and v != was.get(k)
    ]
    if changed:
        print(
            "note     results may differ in their last bits from an uninterrupted run, because of: "
            + printable(", ".join(changed))
        )


def write_folder(job: Job, init: Mapping[str, Any], checkpoints: Checkpoints) -> None:
    """Create a new run's folder, with config.json; bring that of one that is there to what holds now."""
    folder = job.folder
    if not folder.exists():
        checkpoints.clear()  # of a process that was killed as it began the run
        listings = {split: listing.parts for split, listing in job.data.listings.items()}
        known = {name: x for name, x in (("listings", listings), ("init", init)) if x}
        entries = {**job.data.metadata(), **job.identity, **known, "environment": job.environment}
        folder.create(runs.record_of(job.stated, job.preset, **entries))
        return
    record = folder.record()
    for name, (old, new) in changed_places(folder.config(), job.stated).items():
        print_note(f"{name} is {new} now, and was {old}: its content is the same")
    if remark := folder.remark():
        print_note(f"{remark}; the file is restored")
    now = {**record, "config": to_dict(job.stated)}
    if noted := noted_anew(job):
        now.pop("segments", None)  # of an older version
        print(f"goes on  {describe_rate(job)}")
    if now != record:  # budgets, places, and all else that may change
        folder.summary_file.unlink(missing_ok=True)  # of its end before
        checkpoints.record(now, noted)
    if now != record or remark:
        folder.write_record(now)


def noted_anew(job: Job) -> dict[str, Any]:
    """What checkpoints note of a run whose length changes: its patience begins anew; empty of another."""
    now = job.folder.config()
    return {"stale": 0} if any(getattr(now, name) != getattr(job.stated, name) for name in LENGTH) else {}


def describe_rate(job: Job) -> str:
    """What the learning rate does in a run that goes on to another length, in a clause."""
    steps = (job.folder.complete_steps() or [0])[0], job.steps - 1
    first, end = (float(job.engine.optimizer.learning_rate(step)) for step in steps)
    rates = [row["lr"] for row in job.folder.metrics() if row.get("lr") is not None]
    before = f"{rates[-1]:.3g}, then " if rates else ""
    return f"to epoch {job.epochs}, as if given at first; the learning rate: {before}{first:.3g}, at last {end:.3g}"
