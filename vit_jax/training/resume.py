"""The start of a run that is set up: its state, new, of given weights or of the newest checkpoint, and its folder.

A run that is there goes on as it was, or to another length, as if that had been given at first.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import runs
from ..config.groups import averaged_parameters, factor_shapes, lora_names, moments, trainable_table
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
from .log import Log
from .progress import Progress
from .session import NOTED, Session
from .setup import data_difference, is_finished, parameter_dtype
from .stopping import Caught, Decision, Saver

if TYPE_CHECKING:
    from ..weights.checkpoint import Checkpoints, Saved
    from .engine.step import TrainState
    from .setup import Setup


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


WATCHED = ("train", "validation")


def resume(setup: Setup, folder: runs.Run, preset: str, caught: Caught) -> Session:
    """Restore or initialise the state of a run and create its folder if it is new."""
    import jax

    from ..weights.checkpoint import Checkpoints

    run, hosts = setup.run, setup.engine.hosts
    checkpoints = Checkpoints(folder, factor_shapes(run))
    state, notes, init = starting_state(setup, folder, checkpoints)
    step = int(jax.device_get(setup.engine.gather(state).step))
    hosts.heartbeat(step)
    _create_or_update(folder, setup, preset, init, checkpoints)
    log = _open_log(folder, setup, step, notes)
    progress = Progress(
        setup.epochs, setup.order.steps_per_epoch, step + 1, setup.order.batch, setup.stop, unit=setup.task.unit
    )
    deadline = time.monotonic() + run.max_minutes * 60 if run.max_minutes else math.inf
    after = f"; going on after step {step}" if step else ""
    print(f"run      {folder}: {setup.epochs} epochs of {setup.order.steps_per_epoch} steps{after}", flush=True)
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
        **{name: notes[name] for name in NOTED if name in notes},
    )


def starting_state(
    setup: Setup, folder: runs.Run, checkpoints: Checkpoints
) -> tuple[TrainState, dict[str, Any], dict[str, Any]]:
    """The state that a run goes on from, or begins with; the weights of `init` are opened for nothing else."""
    hosts = setup.engine.hosts
    saved = restore(setup, folder, checkpoints) if hosts.owner and folder.exists() else None
    notes = hosts.share(saved.notes if saved else None)
    if notes is not None:
        return setup.engine.put(setup.engine.restored(saved.state) if saved else None), notes, {}
    new, init = new_state(setup, folder) if hosts.owner else (None, {})
    return setup.engine.put(new), {}, hosts.share(init)


def new_state(setup: Setup, folder: runs.Run) -> tuple[TrainState, dict[str, Any]]:
    """The state before the first step, of weights that are given -> (the state, the entry `init` of config.json)."""
    from ..models.build import start

    given, init = dict[str, np.ndarray](), dict[str, Any]()
    if setup.run.init or setup.run.init_encoder:
        started = start_from(setup.run, setup.dataset.metadata())
        if folder.exists():
            check_same(folder, started.record)
        print(started.description)
        given, init = started.parameters, started.record
    with setup.engine.devices.apart():
        parameters = start(setup.run.model, random_key(setup.run.seed), parameter_dtype(setup.run), given)
        return setup.engine.initial_state(parameters), init


def _check_unchanged(folder: runs.Run, record: Mapping[str, Any], setup: Setup) -> None:
    """Raise UserError where the data, weights of classes or a teacher are not those that a run began with."""
    run = setup.run
    if clause := data_difference(record, setup.dataset):
        raise UserError(
            folder,
            f"data.source {run.data.source} is not the data that this run began with: {clause}",
            "restore it, or choose another `name`",
        )
    if record["config"]["data"].get("lanes") == 0 and getattr(setup.dataset, "blocks", None) is not None:
        raise UserError(
            folder,
            "its images came in blocks by several readers, and this version has one, which takes them in another order",
            f"start a new run with `init {folder}`",
        )
    now = setup.dataset.metadata()
    for name in (name for name, entry in task_spec(run.task).metadata.items() if entry.of_training):
        if record.get(name) != now.get(name):
            raise UserError(
                folder,
                f"its {name} are not those that this run began with",
                f"restore the file of loss.class_weights {run.loss.class_weights}, or choose another `name`",
            )
    if (frozen := record.get("frozen")) and frozen != setup.identity.get("frozen"):
        raise UserError(
            folder,
            "its frozen arrays (a teacher) are not those that this run began with",
            "restore them, or choose another `name`",
        )


def restore(setup: Setup, folder: runs.Run, checkpoints: Checkpoints) -> Saved | None:
    """The newest checkpoint of a run. None if it has saved none."""
    run = setup.run
    folder.check_paths()
    record = folder.record()
    _check_unchanged(folder, record, setup)
    checkpoints.clear()
    saved, skipped = checkpoints.restore(run.model.shapes())
    for reason in skipped:
        print(f"skipped  {printable(reason)}")
    if saved is not None:
        _check_continues(folder, saved, setup)
        saved.notes.update(noted_anew(folder, setup))
        compare_environments(setup.environment, saved.notes.get("environment", {}))
        # A process that was killed after saving may not have removed its old checkpoints.
        checkpoints.prune(saved.step, (saved.notes.get("best") or {}).get("step"), run.keep)
    return saved


def _check_continues(folder: runs.Run, saved: Saved, setup: Setup) -> None:
    """Raise UserError unless a checkpoint has what the run goes on with: its moments, its average, its best result."""
    run, best, state = setup.run, saved.notes.get("best"), saved.state
    kept = {role: flatten(tree).keys() for role, tree in state.moments.items()}
    beside = {role: flatten(tree).keys() for role, tree in (state.lora or {}).items()}
    if (
        kept != {role: {*names} for role, names in moments(run.optim, trainable_table(run)).items()}
        or flatten(state.ema or {}).keys() != {*(averaged_parameters(run) if run.ema else ())}
        or beside != lora_names(run)
        or (best is not None and not {setup.task.selection_metric[0], "loss"} <= best.keys())
    ):
        raise UserError(
            folder,
            f"the optimizer, the average or the best result of checkpoint {saved.step} is not that of this run",
            f"restore the folder, or start a new run with `init {folder}`",
        )


def _is_rewritten(row: dict[str, Any], step: int, notes: dict[str, Any], ends: bool) -> bool:
    """Whether a row of metrics.jsonl will be written again by a run that resumes from the checkpoint of `step`.

    Of the rows of that step (Log removes those of later steps) these are: evaluations at the end of a run, if it `ends`
    there (else they are of an end beyond which it goes on), the evaluation that the notes list as due, and the row that
    was written out of turn when a budget ended the process.
    """
    if row["step"] != step:
        return False
    if row["kind"] == "eval":
        return bool(notes.get("due")) if row.get("split") in WATCHED else ends
    return bool(notes.get("totals", {}).get("steps"))


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


def _create_or_update(
    folder: runs.Run, setup: Setup, preset: str, init: dict[str, Any], checkpoints: Checkpoints
) -> None:
    """Create a new run's folder, with config.json; bring that of one that is there to what holds now."""
    if not folder.exists():
        listings = {split: listing.parts for split, listing in setup.dataset.listings.items()}
        known = {name: x for name, x in (("listings", listings), ("init", init)) if x}
        entries = {**setup.dataset.metadata(), **setup.identity, **known, "environment": setup.environment}
        folder.create(runs.record_of(setup.as_given, preset, **entries))
        return
    record = folder.record()
    for name, (old, new) in changed_places(folder.config(), setup.as_given).items():
        print_note(f"{name} is {new} now, and was {old}: its content is the same")
    if remark := folder.remark():
        print_note(f"{remark}; the file is restored")
    now = {**record, "config": to_dict(setup.as_given)}
    if noted := noted_anew(folder, setup):
        now.pop("segments", None)  # of an older version
        print(f"goes on  {describe_rate(setup, folder)}")
    if now != record:  # budgets, places, and all else that may change
        folder.summary_file.unlink(missing_ok=True)  # of its end before
        checkpoints.record(now, noted)
    if now != record or remark:
        folder.write_record(now)


def noted_anew(folder: runs.Run, setup: Setup) -> dict[str, Any]:
    """What checkpoints note of a run whose length changes: its patience begins anew; empty of another."""
    now = folder.config()
    return {"stale": 0} if any(getattr(now, name) != getattr(setup.as_given, name) for name in LENGTH) else {}


def describe_rate(setup: Setup, folder: runs.Run) -> str:
    """What the learning rate does in a run that goes on to another length, in a clause."""
    steps = (folder.complete_steps() or [0])[0], setup.steps - 1
    first, end = (float(setup.engine.optimizer.learning_rate(step)) for step in steps)
    rates = [row["lr"] for row in folder.metrics() if row.get("lr") is not None]
    before = f"{rates[-1]:.3g}, then " if rates else ""
    return f"to epoch {setup.epochs}, as if given at first; the learning rate: {before}{first:.3g}, at last {end:.3g}"


def _open_log(folder: runs.Run, setup: Setup, step: int, notes: dict[str, Any]) -> Log:
    """The log of a run that goes on after `step`, without the rows that will be written again."""
    if remark := folder.log_remark(step):
        print_note(remark)
    ends = setup.is_end(step, notes.get("stale", 0))
    folder.drop_metrics(lambda row: _is_rewritten(row, step, notes, ends))
    try:
        setup.hooks.each("begin", folder, setup.as_given, step)
        return Log(folder.metrics_file, step, setup.hooks)
    except BaseException:
        setup.hooks.each("close")
        raise
