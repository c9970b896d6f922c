"""The weights that a run names (`init`, `teacher`), opened; errors of `convert` in the words of who asked."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..config.dotted import value_at
from ..config.network import NetworkConfig, Teacher
from ..config.run import RunConfig
from ..errors import UserError
from ..files.arrays import read_array, read_arrays
from ..files.digests import array_digest, text_digest
from ..files.places import join, local_copy
from ..runs import Run, find, is_foreign
from ..runs.check import is_name
from ..runs.several import members
from ..runs.values import other_identity
from ..tasks.table import task_spec, untrained_run
from .interop import Start, Unstated, Weights, open_weights, task_metadata

RULES = {"image": "init_resize", "channels": "init_channels"}
FEW = 8  # fields that a message lists; a file that lacks more states none

# Options of convert that choose what is read of a source, and those that change what is written.
READING = {"accept", "layout", "key", "model", "fields", "step"}
WRITING = {"adapt", "dtype", "weights_only"}
LOADS = {"layout", "model", "key", "fields"}  # arguments of `load`, and of `export`:
EXPORTS = {"to", "fields", "dtype", "shard_size", "takes", "opset", "onnxruntime_web", "weights", "calibrate"}
EXPORTED = " of `python -m convert X.safetensors`, where X.safetensors is what vit_jax.export(network, X) writes"


class Unfit(UserError):
    """Weights that cannot be opened, or that are not those of the run's network."""


@contextlib.contextmanager
def opened_for(run: RunConfig, otherwise: Mapping[str, Any]) -> Iterator[Weights]:
    """A context with the weights of run.init, opened."""
    rest = {name: value for name, value in otherwise.items() if getattr(run, RULES.get(name, ""), "none") == "none"}
    with contextlib.ExitStack() as stack:
        with errors_about(run.init):
            place = place_of(run.init, run.dir)
            start = Start(type(run.model), rest, run.new_head, square=run.init_resize != "none")
            weights = stack.enter_context(open_weights(place, start))
        yield weights


def options_in(text: str) -> set[str]:
    """The names of the fields and options that a message names for its user to give."""
    return {*re.findall(r"`([a-z][a-z0-9_.]*)[ `]", text)}


@contextlib.contextmanager
def convert_first(path: str, own: Collection[str] = ()) -> Iterator[None]:
    """A context in which an error that only convert can help about has as remedy to convert the weights first.

    `own`: the options of convert that the caller's user has, too.
    """
    try:
        yield
    except UserError as error:
        lacking = options_in(f"{error.what}; {error.remedy}") - {*own}
        if "allow_nonfinite" in lacking:  # converted, they would still not be weights to use
            error.remedy = "take other weights"
        elif path and "file" in lacking:
            error.remedy = f"give {path}/NAME with one of these names"
        elif path and lacking & (READING | {"adapt"}):
            error.add(f" to `python -m convert {shlex.quote(path)} X.safetensors`, then give X.safetensors here")
        elif lacking & WRITING:
            error.add(EXPORTED)
        raise


@contextlib.contextmanager
def errors_about(init: str, field: str = "init", part: str = "") -> Iterator[None]:
    """A context in which errors are about the weights that a field of a run names, as training names them."""
    try:
        with convert_first(init):
            yield
    except Unstated as error:
        untold = _explain_missing(init, [f"{part}{name}" for name in error.fields], error.published)
        raise Unfit(f"{field} {init}", *untold) from error
    except UserError as error:
        raise Unfit(f"{field} {init}", fault_of(init, error), error.remedy) from error


def fault_of(path: str, error: UserError) -> str:
    """What is wrong with the weights at a path, without the path, and without an option that the user has not given."""
    is_place = error.subject == path or os.path.exists(error.subject)
    known = is_place or error.subject.partition(" ")[0] in READING | WRITING
    return error.what if known and error.what else error.fault


def place_of(init: str, folder: str) -> str:
    """The path or address of weights: of a run, inside the folder of all runs or not, its folder."""
    return init if is_foreign(init, folder) else str(find(init, folder, weights=True))


def _explain_missing(init: str, fields: Sequence[str], published: bool) -> tuple[str, str]:
    """(a clause naming fields that weights do not tell, how to state them).

    `published`: whether there are presets and published names of such networks.
    """
    if len(fields) > FEW:
        return "states no config", "name the preset whose network it holds, beside `init`"
    asked = " and ".join(stated_by(name, "...") for name in fields)
    command = f"python -m convert {shlex.quote(init)} X.safetensors --model NAME"
    named = (
        f", or a preset with its network (vit-s16, ...), or its published name to `{command}` and X.safetensors here"
    )
    return f"its tensors cannot tell {', '.join(fields)}", f"give {asked}{named if published else ''}"


def differences(names: Iterable[str], given: NetworkConfig, wanted: NetworkConfig) -> str:
    """The values of some fields of the network of weights and of a run's, in words."""
    pairs = ((name, text(value_at(given, name)), text(value_at(wanted, name))) for name in names)
    return ", ".join(f"its model.{name} is {its}, here it is {own}" for name, its, own in pairs)


def digest(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """A digest of all given tensors, under our names and in the file's dtype."""
    return text_digest({name: array_digest(array) for name, array in arrays})


def text(value: Any) -> str:
    """The value of a field as a flag takes it; "none" for an empty list."""
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple | list) else str(value)


def stated_by(name: str, value: Any) -> str:
    """A field of the network with a value, as a message names it."""
    return f"`model.{name}{f' {text(value)}' if value != () else ''}`"


def known_fields(model: NetworkConfig) -> dict[str, Any]:
    """The fields of a network that decide its function, without sizes that its data has yet to determine."""
    known = {name: value_at(model, name) for name in model.function_fields()}
    return {name: value for name, value in known.items() if value or name not in model.marked("from_data")}


# --------------------------------------------------------------------------------------------- the same command again


def check_unchanged(run: RunConfig, name: str) -> None:
    """Check that the weights are still those that the run of the same command began with."""
    same = (
        folder
        for folder in _runs_begun_from(run.init, run.dir, name)
        if other_identity(replace(folder.config(), seed=run.seed), run).keys()
        <= _init_of(folder).get("filled", {}).keys()
    )
    if folder := _first_changed(same, run.dir):
        raise UserError(
            f"init {run.init}",
            f"is no longer what {folder} began from",
            f"go on with that run by `resume {shlex.quote(str(folder))}`, or start another with `name`",
        )


@contextlib.contextmanager
def resumable(init: str, folder: str, name: str) -> Iterator[None]:
    """A context in which errors of weights that are gone or have changed name the run that began from them."""
    try:
        yield
    except Unfit as error:
        if found := _first_changed(_runs_begun_from(init, folder, name), folder):
            go_on = f"go on with that by `resume {shlex.quote(str(found))}`"
            error.add(f"; {found}, which began from it, no longer needs it: {go_on}")
        raise


def check_same(folder: Run, record: dict[str, Any]) -> None:
    """Check that a run that has saved nothing yet began from the same weights."""
    then = _init_of(folder).get("digest", record["digest"])
    if then != record["digest"]:
        began = folder.config()
        raise UserError(
            folder,
            f"its init {began.init or began.init_encoder} has changed since it began",
            "restore that, or start anew under another `name`",
        )


def _first_changed(runs: Iterable[Run], folder: str) -> Run | None:
    """The first of runs with the same `init` that began from other weights than that holds now."""
    now = None
    for run in runs:
        if now is None:
            then = replace(run.config(), dir=folder)
            try:
                with opened_for(then, known_fields(then.model)) as weights, errors_about(then.init):
                    now = digest(weights.arrays())
            except UserError:
                now = ""  # it is gone, or another network
        if now != _init_of(run)["digest"]:
            return run
    return None


def _runs_begun_from(init: str, folder: str, name: str) -> Iterator[Run]:
    """The runs that began from `init` in folders of this name, with or without a number, also those of groups of seeds.

    Those that have saved no step are left out: they cannot go on without their weights.
    """
    for run in _numbered_runs(folder, name) if is_name(name) else ():
        try:
            began = run.config().init == init and "digest" in _init_of(run) and run.complete_steps()
        except UserError:  # whoever needs that record says what is wrong with it
            continue
        if began:
            yield run


def _init_of(folder: Run) -> dict[str, Any]:
    """The entry `init` of a run's config.json; empty where there is none."""
    found = folder.record().get("init")
    return found if isinstance(found, dict) and isinstance(found.get("filled", {}), dict) else {}


def _numbered_runs(place: str, name: str) -> Iterator[Run]:
    """The runs in a folder of this name, or with a number appended, also those of a group of seeds."""
    for number in itertools.count(1):
        folder = Path(local_copy(join(place, name if number == 1 else f"{name}-{number}")))
        if not folder.exists():
            return
        yield from (Run(path) for path in (folder, *members(folder)) if (path / "config.json").is_file())


# -------------------------------------------------------------------------------------------------------- the teacher


def open_teacher(run: RunConfig, before_reading: Callable[[Teacher], object] | None = None) -> Teacher | None:
    """The teacher that a run names. None where the run names none."""
    spec = task_spec(run.task)
    if not run.teacher or not spec.has_teacher:
        return None
    with contextlib.ExitStack() as stack:
        with errors_about(run.teacher, "teacher"):
            place = place_of(run.teacher, run.dir)
            if logits := _logits(place):
                teacher = Teacher(run.teacher, "logits", None, {}, logits)
            else:
                weights = stack.enter_context(open_weights(place))
                metadata = task_metadata(weights.facts, untrained_run(weights.config).task, weights.config)
                teacher = Teacher(run.teacher, weights.layout, weights.config, metadata, {})
        spec.check_teacher(teacher, run, None)
        if before_reading is not None:
            before_reading(teacher)
        with errors_about(run.teacher, "teacher"):
            return teacher if logits else replace(teacher, arrays=dict(weights.arrays()))


def describe_teacher(teacher: Teacher) -> str:
    """What a teacher is, in a line."""
    if teacher.config is None:
        images, classes = teacher.arrays["logits"].shape
        return f"{teacher.path}: logits of {images:,} images, {classes} classes"
    what, cost = teacher.config.describe()
    size, seen = "x".join(map(str, teacher.config.pixels() or ())), teacher.metadata["preprocess"]
    how = ", ".join(f"{name} {' '.join(f'{each:g}' for each in seen[name])}" for name in ("mean", "std"))
    count = teacher.config.parameter_count()
    return f"{teacher.path}: {teacher.layout}, {what}, images {size}, {how}; {count:,} parameters, {cost}"


def _logits(path: str) -> dict[str, np.ndarray]:
    """{"logits", and "labels" if they are there} of FILE.npy or of a FILE.npz that has logits; else empty."""
    if not path.endswith((".npy", ".npz")):
        return {}
    try:
        if path.endswith(".npy"):
            arrays = {"logits": read_array(path)}
        else:
            arrays = read_arrays(path, ("logits", "labels"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"is no readable file of numpy ({error})", remedy="give one that numpy.save or numpy.savez wrote"
        ) from error
    if "logits" not in arrays:
        return {}
    logits = arrays["logits"]
    if logits.ndim != 2 or logits.dtype.kind != "f" or not np.isfinite(logits).all():
        raise UserError(
            f"logits are {logits.dtype} {list(logits.shape)}", remedy="give finite floating-point numbers [n, K]"
        )
    return arrays
