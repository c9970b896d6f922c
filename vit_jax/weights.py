"""Trained weights: to a network that is ready for use, to a file, and as the start of another run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .checkpoint import Checkpoints
from .config import ModelConfig, RunConfig, function_fields, network_of, normal, shapes, task_row, to_dict, untrained
from .errors import UserError
from .interop import convert_first, converted
from .layers import merge
from .models import definition
from .runs import Run, find, flatten, is_foreign, unflatten
from .tasks import Ready, Record, task


@dataclass(frozen=True)
class BareNetwork:
    """A network from a file that does not say all that it takes to use it: `model` is called on normalised images, or on ids."""

    model: Any
    run: RunConfig
    lacks: tuple[str, ...]  # of what a run keeps beside its weights


def load(
    path: str | os.PathLike[str],
    which: str = "best",
    ema: bool | None = None,
    *,
    layout: str = "",
    model: str = "",
    key: str = "",
    fields: Mapping[str, Any] | None = None,
) -> Any:
    """A network with its weights and all that it takes to use it.

    `path` is a run's folder, or its name inside runs/: a Loaded where the run is on images, a Translator where it is on
    sentences. `which` is "best" (by validation; the last where nothing was chosen) or "last". `ema` asks for the averaged
    weights; None takes them where the run kept them.

    Or it is a file or folder of any layout that `python -m convert formats` lists, or hf://owner/name: the same where it
    says how images become inputs, else a BareNetwork. What its tensors cannot tell is said as to `python -m convert`:
    `layout` (--from), `model`, `key`, `fields` ({"heads": 12}, --set). Weights become float32; float64 ones stay, and
    turn jax_enable_x64 on. Raises UserError.
    """
    path = os.fspath(path)
    if is_foreign(path):
        return _foreign(path, layout=layout, model=model, key=key, sets=fields or {})
    folder = find(path)
    record, run = folder.record(), folder.config()
    step, tree = weights(folder, run.model, which, ema)
    return _ready(run, tree, record, step)


def _network(run: RunConfig, tree: dict[str, Any]) -> Any:
    """A run's network with these parameters (a nested dict of arrays)."""
    if run.compute_dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    return merge(definition(run.model, dtype=jnp.dtype(run.compute_dtype)), jax.tree.map(jnp.asarray, tree))


def _ready(run: RunConfig, tree: dict[str, Any], kept: Mapping[str, Any], step: int) -> Ready:
    return task(run, kept).ready(_network(run, tree), Record(run, kept, step))


def _foreign(path: str, **said: Any) -> Ready | BareNetwork:
    """A file of another layout as a network of ours."""
    config, facts, arrays = converted(path, **said)
    double = any(x.dtype == np.float64 for x in arrays.values())
    run, tree = replace(untrained(config), compute_dtype="float64" if double else "float32"), unflatten(arrays)
    row, kept = task_row(run.task), stated(run, facts)
    for name, thing in row.keeps.items():
        # What outputs are called may be numbers; how inputs are made has to be known.
        if name not in kept and thing.of_head and thing.made_up is not None:
            kept[name] = thing.made_up(config)[0]
    # Of texts, a file says neither how long they may be nor how they become words: a run does.
    lacks = tuple(name for name in row.keeps if name not in kept or row.takes == "texts")
    return BareNetwork(_network(run, tree), run, lacks) if lacks else _ready(run, tree, kept, 0)


def stated(run: RunConfig, facts: Any) -> dict[str, Any]:
    """Of what a run keeps beside its weights, what a file of another layout states and can be this network's."""
    keeps = task_row(run.task).keeps
    said = {name: getattr(facts, name, None) or facts.extra.get(name) for name in keeps}
    return {name: value for name, value in said.items() if value and keeps[name].fits(value, run.model)}


def weights(
    folder: Run, model: ModelConfig, which: str = "best", ema: bool | None = None
) -> tuple[int, dict[str, Any]]:
    """(step, parameters as a nested dict of numpy arrays), as `load` chooses them.

    Damaged checkpoints that were passed over are named on stderr. Raises UserError.
    """
    checkpoints, expected = Checkpoints(folder), shapes(model)
    saved, skipped = checkpoints.restore(expected)
    if saved is None:
        raise UserError(f"{folder}: nothing has been saved here yet; let it train until its first checkpoint")
    for reason in skipped:
        print(f"skipped  {reason}", file=sys.stderr)
    best = (saved.notes.get("best") or {}).get("step")
    if which == "best" and best is not None and best != saved.step:
        try:
            saved = checkpoints.read(best, expected)
        except UserError as error:
            raise UserError(
                f"{folder}: the best weights cannot be used, {error}; take the last with --weights last"
            ) from error
    averaged = saved.state.ema
    if ema and averaged is None:
        raise UserError(f"{folder}: keeps no averaged weights; train with --ema 0.999 to have them")
    chosen = averaged if averaged is not None and ema is not False else saved.state.parameters
    return saved.step, chosen


def export(
    path: str | os.PathLike[str], file: str | os.PathLike[str], which: str = "best", ema: bool | None = None
) -> None:
    """Write a run's weights, chosen as in `load`, to FILE.safetensors under our dotted names, whole or not at all.

    Its metadata has the run's config and what it keeps of its data. `--init FILE` takes it here and in torch_ref.
    Raises UserError, also where the file exists.
    """
    from safetensors.numpy import save_file

    file, folder = Path(file), find(os.fspath(path))
    if file.suffix != ".safetensors" or file.exists():
        raise UserError(
            f"{file}: {'exists; choose another name' if file.exists() else 'is not named .safetensors; name it so'}"
        )
    run, record = folder.config(), folder.record()
    _, tree = weights(folder, run.model, which, ema)
    tensors = {name: np.ascontiguousarray(x) for name, x in flatten(tree).items()}
    partial = file.with_name(file.name + ".tmp")
    kept = {name: record[name] for name in task_row(run.task).keeps}
    save_file(
        tensors, partial, metadata={"format": "vit-jax", "config": json.dumps(to_dict(run)), "kept": json.dumps(kept)}
    )
    os.replace(partial, file)


def read(path: str, runs_dir: str = "runs") -> tuple[ModelConfig, dict[str, Any]]:
    """(config, {dotted name: array}) of a run's best weights, or of a file of any layout: for tasks that bring a teacher. Raises UserError."""
    if is_foreign(path, runs_dir):
        config, _, arrays = converted(path)
        return config, arrays
    folder = find(path, runs_dir)
    model = folder.config().model
    return model, flatten(weights(folder, model)[1])


def starting_weights(run: RunConfig, fresh: dict[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for a run with `init`: another run's or a file's, over the random ones in `fresh` (flat).

    Everything must be there with the same shape, and what they were trained on must have the meaning that it has here:
    `kept` is what this run keeps of its data. Only the head may be left out, with `new_head`. Raises UserError naming
    the first parameter or meaning that does not fit.
    """
    source, given, theirs = _given(run)
    heads = network_of(run.model).heads
    given = {name: x for name, x in given.items() if not (run.new_head and name.startswith(heads))}
    for name, array in fresh.items():
        if name in given and given[name].shape != array.shape:
            hint = (
                "add --new-head to start the head anew"
                if name.startswith(heads)
                else f"give the model fields of {source}"
            )
            raise UserError(
                f"init {run.init}: {name} is {list(given[name].shape)} there and {list(array.shape)} here; {hint}"
            )
        if name not in given and not (run.new_head and name.startswith(heads)):
            raise UserError(f"init {run.init}: has no {name}; give the model fields of {source}")
    if unclaimed := sorted(given.keys() - fresh.keys()):
        raise UserError(
            f"init {run.init}: its {unclaimed[0]} has no place in this network; give the model fields of {source}"
        )
    for name, thing in task_row(run.task).keeps.items():
        clause = thing.clash(theirs[name], kept[name]) if name in theirs and name in kept else ""
        if clause and not (run.new_head and thing.of_head):
            remedy = (
                "add --new-head to start the head anew"
                if thing.of_head
                else "start from weights that were trained with the same ones"
            )
            raise UserError(f"init {run.init}: {clause}; {remedy}")
    return {**fresh, **given}


def _given(run: RunConfig) -> tuple[str, dict[str, Any], Mapping[str, Any]]:
    """(where a run's starting weights come from, {dotted name: array}, what is kept beside them): another run, or a file of any layout."""
    if not is_foreign(run.init, run.dir):
        source = find(run.init, run.dir)
        return str(source), flatten(weights(source, source.config().model)[1]), source.record()
    # What neither the file nor its side files tell is as this run has it; what they tell must not differ.
    try:
        config, facts, arrays = converted(
            run.init,
            otherwise=run.model,
            unfit="give this run the fields of the file, as in --model.image 32 --model.patch 4",
        )
    except UserError as error:
        raise UserError(f"init {convert_first(error, run.init)}") from error
    theirs, mine, row = normal(config), normal(run.model), network_of(run.model)
    other = [
        n
        for n in function_fields(mine)
        if getattr(theirs, n) != getattr(mine, n) and not (run.new_head and n in row.head_fields)
    ]
    if other:
        said = ", ".join(f"its {n} is {getattr(theirs, n)!r}, here it is {getattr(mine, n)!r}" for n in other)
        of_data = {*row.from_data} & {*row.head_fields}
        flags = [_flag(n, getattr(theirs, n)) for n in other if n not in of_data]
        hints = [f"give {' '.join(flags)}"] * bool(flags) + ["add --new-head to start the head anew"] * bool(
            of_data & {*other}
        )
        raise UserError(f"init {run.init}: {said}; {' and '.join(hints)}")
    return run.init, arrays, stated(run, facts)


def _flag(name: str, value: Any) -> str:
    """How the command of training is told a field of its network."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--model.{'' if value else 'no-'}{name}"
    return f"--model.{name} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
