"""The state of a run in training beside its weights: what a run's folder or a file of torch_ref.train holds of it.

The average of the weights and the optimizer's moments have the weights' names, and are converted by the weights' rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.config.groups import roles
from vit_jax.config.run import NO_DATA, OptimConfig, RunConfig
from vit_jax.errors import UserError
from vit_jax.runs import Run
from vit_jax.runs.values import to_dict

from .. import optimizer
from ..containers.run_folder import run_of
from ..containers.source import Source, Spec, Tensor, leaves
from ..dialects.own import KEPT_FIELDS, own_record
from ..layout import Json
from ..operations import ghost
from ..optimizer import Moments
from ..plan.groups import stream
from ..plan.plan import Plan
from ..recognise.reading import Reading
from ..rules import Row

Named = Iterator[tuple[str, np.ndarray]]  # the target's name and the values of each tensor


@dataclass(frozen=True)
class Training:
    """A run in training: its config, moments and average; `beside` is what config.json states besides the config."""

    run: RunConfig
    beside: Json
    moments: Moments
    ema: dict[str, Tensor] | None  # {the source's name: Tensor}


def training(reading: Reading, run: RunConfig | None = None) -> Training | None:
    """The training state in a source. None where it has no optimizer's state, or the average was chosen as the
    weights.
    """
    tree, path = reading.source.tree, reading.path
    averaged = leaves(tree["ema"]) if isinstance(tree.get("ema"), Mapping) else {}
    saved = tree.get("optimizer")
    if not isinstance(saved, Mapping) or all(tensor is averaged.get(name) for name, tensor in reading.tensors.items()):
        return None
    stated = _run_config(reading.source)
    if stated is not None and run is not None and to_dict(stated.optim) != to_dict(run.optim):
        raise UserError(path, "states another config of its optimizer than the preset", "leave `preset` out")
    run = stated or run
    if run is None:
        raise UserError(
            path,
            "holds an optimizer's state and not the config that it belongs to",
            "name it with `preset`, or use `weights_only True`",
        )
    if run.data.source == NO_DATA:
        return None
    run = dataclasses.replace(run, model=reading.config)
    ema = averaged if run.ema and averaged else None
    if reading.source.container == "orbax":
        beside = {key: value for key, value in Run(path).record().items() if key in KEPT_FIELDS}
        return Training(run, beside, _our_moments(saved, run.optim, path), ema)
    # The step of another training loop may count anything; torch's Adam keeps its own.
    counted = bool(own_record(tree)) or run.optim.name in optimizer.COUNTLESS
    step = tree["step"] if counted and isinstance(tree.get("step"), int) else None
    table, grouped = run.model.parameters(), reading.layout.dialect == "torch-ref"
    moments = optimizer.from_torch(saved, reading.rows, reading.tensors, run.optim, table, path, step, grouped)
    return Training(run, {key: value for key, value in own_record(tree).items() if key in KEPT_FIELDS}, moments, ema)


def _run_config(source: Source) -> RunConfig | None:
    """The run that a source states, if it does: a run folder's, or torch_ref.train's `config`."""
    if source.container == "orbax":
        return run_of(Run(source.path).record()["config"], source.path)
    record = own_record(source.tree)
    return run_of(record["config"], source.path) if record else None


def _our_moments(saved: Mapping[str, Any], c: OptimConfig, path: str) -> Moments:
    """The moments in a run's optimizer item. Raises UserError where they are another optimizer's."""
    kept: dict[str, dict[str, Tensor]] = {role: {} for role in roles(c)}
    for name, tensor in saved.items():
        role, _, parameter = name.partition(".")
        if name != "step" and role not in kept:
            raise UserError(
                path, f"its optimizer's state holds {role}, which {c.name} does not keep", "restore config.json"
            )
        if parameter:
            kept[role][parameter] = tensor
    return Moments(int(saved["step"].read()), kept)


def moving_rows(plan: Plan) -> list[Row]:
    """The source's rows by which moments and averages are converted."""
    if plan.adaptations or plan.dtype is not None:
        raise UserError(
            plan.reading.path,
            "an optimizer's state does not follow `adapt` and `dtype`",
            "leave them out, or add `weights_only True`",
        )
    return optimizer.moving(plan.reading.rows, plan.reading.tensors)


def convert_tensors(plan: Plan, rows: list[Row], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Spec], Named]:
    """The tensors of a moment or an average as the target has them -> ({target name: Spec}, lazy (target name, array)
    pairs).
    """
    rows = [row for row in rows if row.theirs[0] in tensors]
    parameters: dict[str, np.ndarray] = {}
    for row in rows:
        given = [ghost(tensors[name].shape, tensors[name].dtype) for name in row.theirs]
        parameters.update(zip(row.ours, row.read(given), strict=True))
    targets = optimizer.rows_of(optimizer.moving(plan.rows, plan.specs), parameters)
    specs: dict[str, Spec] = {}
    for row in targets:
        made = row.write([parameters[name] for name in row.ours])
        specs |= {name: Spec(a.dtype, a.shape) for name, a in zip(row.theirs, made, strict=True)}
    reading = dataclasses.replace(plan.reading, tensors=dict(tensors), rows=rows)
    return specs, stream(dataclasses.replace(plan, reading=reading, rows=targets, specs=specs))
