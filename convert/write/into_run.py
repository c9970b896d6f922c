"""A plan whose target is our own layout, written as a run's folder: one that goes on, or one that has not begun."""

from __future__ import annotations

import numpy as np

from vit_jax.config.groups import trainable
from vit_jax.config.run import RunConfig
from vit_jax.errors import UserError
from vit_jax.tasks.table import task_spec, untrained_run

from .. import optimizer
from ..containers.run_folder import write_run
from ..containers.source import Spec
from ..layout import Facts, Json
from ..optimizer import Moments
from ..plan.plan import Plan
from ..recognise.preprocessing import missing_preprocessing
from .training import Named, Training, convert_tensors, moving_rows


def into_run(plan: Plan, state: Training | None, path: str, weights: Named) -> list[str]:
    """Write a run's folder."""
    source = plan.reading.source
    rows, notes = (moving_rows(plan), []) if state else ([], [])
    if state:
        step = f"at step {state.moments.step}"
        notes.append(f"the optimizer's state is converted, {step}; the best step so far and the log start anew")
    state = state or Training(untrained_run(plan.config), {}, Moments(0, {}), None)
    files = source.beside()
    stated, defaults = _task_metadata(state.run, plan.facts, plan.reading.path, bool(files))
    stated |= {"files": files} if files else {}
    items = {"model": (plan.specs, weights), "optimizer": _optimizer_item(plan, state)}
    if state.run.ema:
        notes += [] if state.ema else ["the average of the weights starts anew"]
        averaged = optimizer.rows_of(rows, trainable(state.run.optim, state.run.model.parameters()))
        tensors = state.ema or plan.reading.tensors
        items["ema"] = convert_tensors(plan, rows, {name: tensors[name] for row in averaged for name in row.theirs})
    beside = {"preset": state.beside.get("preset", "converted"), "data": state.beside.get("data"), **stated}
    write_run(path, state.run, beside, state.moments.step, items)
    return [*defaults, *notes]


def _optimizer_item(plan: Plan, state: Training) -> tuple[dict[str, Spec], Named]:
    """({name: Spec}, the arrays) of a run's optimizer: its step, and each role's moments under ROLE.NAME."""
    rows = moving_rows(plan) if state.moments.roles else []
    moments = {role: convert_tensors(plan, rows, tensors) for role, tensors in state.moments.roles.items()}
    specs = {"step": Spec(np.dtype(np.int32), ())}
    specs |= {f"{role}.{name}": spec for role, (found, _) in moments.items() for name, spec in found.items()}

    def arrays() -> Named:
        yield "step", np.asarray(state.moments.step, np.int32)
        for role, (_, values) in moments.items():
            yield from ((f"{role}.{name}", array) for name, array in values)

    return specs, arrays()


def _task_metadata(run: RunConfig, facts: Facts, path: str, files: bool) -> tuple[Json, list[str]]:
    """({key: value} that config.json has to hold so that the network can be used, notes on defaults)."""
    stated = {**facts.extra, "preprocess": facts.preprocess, **facts.outputs.to_metadata()}
    out: Json = {}
    notes = []
    for name, entry in task_spec(run.task).needed(stated).items():
        usable = (
            stated.get(name) and entry.fits(stated[name], run.model) and (files or not entry.in_files(stated[name]))
        )
        if usable:
            out[name] = stated[name]
            continue
        try:
            default = entry.default(run.model)
        except UserError as error:
            raise UserError(path, str(error)) from error
        if default is not None:
            out[name], note = default
            notes.append(note)
        elif name == "preprocess":
            raise missing_preprocessing(path, facts)
        else:
            what = f"does not state its {name}, which a run of the task {run.task} keeps"
            raise UserError(path, what, "write FILE.safetensors with `weights_only True`")
    return out, notes
