"""Runs in training that change their home: what a torch run's file or a run's folder holds beside its weights, and writing it.

Weights, their average and the optimizer's moments take the same road, one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.config import NO_DATA, OptimConfig, RunConfig, parameters, roles, task_row, to_dict, untrained
from vit_jax.config.formats import cannot_go_on
from vit_jax.errors import CheckFailed, UserError
from vit_jax.runs import Run, array_digest

from .. import optimizer
from ..containers import torch_writer
from ..containers.run_folder import run_of, write_run
from ..containers.source import Path, Source, Spec, Tensor, leaves
from ..containers.torch_file import open_file
from ..dialects.own import BESIDE, own_record
from ..layout import Facts, Json
from ..optimizer import Moments
from ..plan.groups import stream
from ..plan.plan import Plan
from ..recognise.preprocessing import unprepared
from ..recognise.reading import Reading
from ..rules import Row, ghost

Named = Iterator[tuple[str, np.ndarray]]  # the target's name and the values of each tensor


@dataclass(frozen=True)
class Training:
    """A run in training beside its weights: the config, what else config.json says, the moments and the average under the file's names."""

    run: RunConfig
    beside: Json
    moments: Moments
    ema: dict[str, Tensor] | None


def training(reading: Reading, run: RunConfig | None = None) -> Training | None:
    """The training state in a source whose weights were read, or None where it has no optimizer's or the average was chosen.

    `run` is what the user names where the file states no config. Raises UserError where the state is not that of the config's optimizer.
    """
    tree, what = reading.source.tree, reading.path
    averaged = leaves(tree["ema"]) if isinstance(tree.get("ema"), Mapping) else {}
    saved = tree.get("optimizer")
    if not isinstance(saved, Mapping) or any(tensor is averaged.get(name) for name, tensor in reading.tensors.items()):
        return None
    stated = run_config(reading.source)
    if stated is not None and run is not None and to_dict(stated.optim) != to_dict(run.optim):
        raise UserError(f"{what}: states another config of its optimizer than the preset; leave --preset out")
    run = stated or run
    if run is not None and run.data.source == NO_DATA:
        return None
    if run is None:
        raise UserError(
            f"{what}: holds an optimizer's state and not the config that it belongs to; name it with --preset, or use --weights-only"
        )
    run = dataclasses.replace(run, model=reading.config)
    ema = averaged if run.ema and averaged else None
    if reading.source.container == "orbax":
        beside = {key: value for key, value in Run(what).record().items() if key in BESIDE}
        return Training(run, beside, our_moments(saved, run.optim, what), ema)
    # Another loop's step may count anything; torch's Adam keeps its own.
    counted = bool(own_record(tree)) or run.optim.name in ("sgd", "momentum")
    step = tree["step"] if counted and isinstance(tree.get("step"), int) else None
    table, grouped = parameters(run.model), reading.layout.dialect == "torch-ref"
    moments = optimizer.from_torch(saved, reading.rows, reading.tensors, run.optim, table, what, step, grouped)
    return Training(run, {key: value for key, value in own_record(tree).items() if key in BESIDE}, moments, ema)


def run_config(source: Source) -> RunConfig | None:
    """The run that a source states: torch_ref.train's `config`, or a run folder's. Raises UserError where it is damaged."""
    if source.container == "orbax":
        return run_of(Run(source.path).record()["config"], source.path)
    record = own_record(source.tree)
    return run_of(record["config"], source.path) if record else None


def our_moments(saved: Mapping[str, Any], c: OptimConfig, what: str) -> Moments:
    """The moments in a run's optimizer item. Raises UserError where they are another optimizer's."""
    kept: dict[str, dict[str, Tensor]] = {role: {} for role in roles(c)}
    for path, tensor in saved.items():
        role, _, name = path.partition(".")
        if path != "step" and role not in kept:
            raise UserError(
                f"{what}: its optimizer's state holds {role}, which {c.name} does not keep; restore config.json"
            )
        if name:
            kept[role][name] = tensor
    return Moments(int(saved["step"].read()), kept)


# ------------------------------------------------------------------------------------------ writing


def along(plan: Plan) -> list[Row]:
    """The source's rows by which moments and averages go along with the weights. Raises UserError where they cannot."""
    if plan.adaptations or plan.dtype is not None:
        raise UserError(
            f"{plan.reading.path}: an optimizer's state does not follow --adapt and --dtype; leave them out, or add --weights-only"
        )
    return optimizer.moving(plan.reading.rows, plan.reading.tensors)


def beside_weights(plan: Plan, rows: list[Row], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Spec], Named]:
    """What has the weights' names in the source, by their rows: {the target's name: Spec}, and the arrays."""
    targets = optimizer.moving(plan.rows, plan.specs)
    ours = {
        n: a
        for r in rows
        for n, a in zip(r.ours, r.read([ghost(tensors[t].shape, tensors[t].dtype) for t in r.theirs]), strict=True)
    }
    made = {t: a for r in targets for t, a in zip(r.theirs, r.write([ours[n] for n in r.ours]), strict=True)}
    specs = {name: Spec(a.dtype, a.shape) for name, a in made.items()}
    reading = dataclasses.replace(plan.reading, tensors=dict(tensors), rows=rows)
    return specs, stream(dataclasses.replace(plan, reading=reading, rows=targets, specs=specs))


def into_run(plan: Plan, state: Training | None, facts: Facts, path: str, weights: Named) -> list[str]:
    """Write a run's folder at `path` from a plan whose target is our layout; what the user is to know of it, a clause each.

    `weights` are the plan's. Without a state the run is one that has not begun. Raises UserError.
    """
    if state and plan.reading.source.container == "orbax" and (reason := cannot_go_on(Run(plan.reading.path).record())):
        raise UserError(f"{plan.reading.path}: {reason}, so its optimizer's state cannot go along; add --weights-only")
    rows = along(plan) if state else []
    told = (
        [f"the optimizer's state goes along, at step {state.moments.step}; the best step so far and the log start anew"]
        if state
        else []
    )
    state = state or Training(untrained(plan.config), {}, Moments(0, {}), None)
    needs, made_up = needed(state.run, facts, plan.reading.path)
    step = state.moments.step
    parts = {role: beside_weights(plan, rows, tensors) for role, tensors in state.moments.roles.items()}
    specs = {
        "step": Spec(np.dtype(np.int32), ()),
        **{f"{role}.{name}": spec for role, (its, _) in parts.items() for name, spec in its.items()},
    }

    def arrays() -> Named:
        yield "step", np.asarray(step, np.int32)
        for role, (_, values) in parts.items():
            yield from ((f"{role}.{name}", array) for name, array in values)

    items = {"model": (plan.specs, weights), "optimizer": (specs, arrays())}
    if state.run.ema:
        items["ema"] = beside_weights(
            plan, rows, state.ema or {name: plan.reading.tensors[name] for r in rows for name in r.theirs}
        )
        told += [] if state.ema else ["the average of the weights starts anew"]
    write_run(
        path,
        state.run,
        {"preset": state.beside.get("preset", "converted"), "data": state.beside.get("data"), **needs},
        step,
        items,
    )
    return [*made_up, *told]


def into_torch(plan: Plan, state: Training, path: str, weights: Named) -> list[str]:
    """Write the file that `torch_ref.train --resume` takes, from a plan whose target is torch_ref's layout; what is to be known of it.

    `weights` are the plan's. Raises UserError.
    """
    rows = along(plan)
    table = parameters(state.run.model)
    saved, places = optimizer.to_torch(plan.rows, plan.specs, state.run.optim, table, state.moments.step)
    parts = {
        role: beside_weights(plan, rows, tensors) for role, tensors in state.moments.roles.items() if state.moments.step
    }
    for (role, name), place in places.items():
        if role in parts:
            saved["state"][place[1]][place[2]] = parts[role][0][name]
    order = optimizer.registered(list(plan.specs))
    tree: Json = {
        "model": {name: plan.specs[name] for name in order}, "optimizer": saved, "step": state.moments.step, "config": to_dict(state.run), **state.beside,
    }  # fmt: skip
    ema = beside_weights(plan, rows, state.ema) if state.ema else None
    if ema:
        tree["ema"] = {name: ema[0][name] for name in order}

    def arrays() -> Iterator[tuple[Path, np.ndarray]]:
        yield from ((("model", name), array) for name, array in weights)
        yield from (
            (("optimizer", *place), np.asarray(state.moments.step, np.float32))
            for (role, _), place in places.items()
            if role == "step"
        )
        for role, (_, values) in parts.items():
            yield from ((("optimizer", *places[role, name]), array) for name, array in values)
        yield from ((("ema", name), array) for name, array in (ema[1] if ema else ()))

    digests: dict[Path, str] = {}

    def noted() -> Iterator[tuple[Path, np.ndarray]]:
        for place, array in arrays():
            digests[place] = array_digest(array)
            yield place, array

    torch_writer.write(path, tree, noted(), {})
    with open_file(path) as written:
        for place, digest in digests.items():
            value: Any = written.tree
            for key in place:
                value = value[key]
            if array_digest(value.read()) != digest:
                raise CheckFailed(
                    f"{path}: {place} did not come back from the disk as it was written; check the disk and try again"
                )
    return [
        f"the optimizer's state goes along, at step {state.moments.step}; the best step so far and the log stay behind"
    ]


def needed(run: RunConfig, facts: Facts, path: str) -> tuple[Json, list[str]]:
    """(what config.json must hold for the network to be used, what of it is made up).

    Raises UserError on what nobody can make up.
    """
    said = {**facts.extra, "preprocess": facts.preprocess, "class_names": facts.class_names}
    out: Json = {}
    made_up = []
    for name, kept in task_row(run.task).keeps.items():
        if said.get(name) and kept.fits(said[name], run.model):
            out[name] = said[name]
        elif kept.made_up is not None:
            try:
                out[name], note = kept.made_up(run.model)
            except UserError as error:
                raise UserError(f"{path}: {error}") from error
            made_up.append(note)
        elif name == "preprocess":
            raise unprepared(path, facts, "write FILE.safetensors with --weights-only")
        else:
            what = f"does not say its {name}, which a run of the task {run.task} keeps"
            raise UserError(f"{path}: {what}; write FILE.safetensors with --weights-only")
    return out, made_up
