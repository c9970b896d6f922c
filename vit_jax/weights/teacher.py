"""The teacher of a run (`run.teacher`): a trained network from which another one learns, or its logits, opened."""

from __future__ import annotations

import zipfile
from typing import Any

import numpy as np

from ..config.network import Teacher
from ..config.run import RunConfig
from ..errors import UserError
from ..tasks.table import task_spec, untrained
from .interop import convert_first, stated_by, stating
from .start.opening import fault_of, place_of


def teacher_of(run: RunConfig, data: Any = None, *, values: bool = True) -> Teacher | None:
    """The teacher that a run names; None where it names none.

    `data` is the run's (a data.base.Data), where it is open; without `values` only the headers of weights are read.
    Raises UserError where the teacher cannot be opened, or cannot teach this run.
    """
    spec = task_spec(run.task)
    if not run.teacher or not spec.has_teacher:
        return None
    try:
        with convert_first(run.teacher):
            teacher = _opened(run.teacher, run.dir, values)
    except UserError as error:
        raise UserError(f"teacher {run.teacher}", fault_of(run.teacher, error), error.remedy) from error
    spec.check_teacher(teacher, run, data)
    return teacher


def says(teacher: Teacher) -> str:
    """What a teacher is, in a line."""
    if teacher.config is None:
        images, classes = teacher.arrays["logits"].shape
        return f"{teacher.path}: logits of {images:,} images, {classes} classes"
    what, cost = teacher.config.describe()
    size, seen = "x".join(map(str, teacher.config.pixels() or ())), teacher.metadata["preprocess"]
    how = ", ".join(f"{name} {' '.join(f'{each:g}' for each in seen[name])}" for name in ("mean", "std"))
    count = teacher.config.parameter_count()
    return f"{teacher.path}: {teacher.layout}, {what}, images {size}, {how}; {count:,} parameters, {cost}"


def _opened(path: str, folder: str, values: bool) -> Teacher:
    """What is at a path or address, or the run with this name in the folder of all runs. Raises UserError."""
    place = place_of(path, folder)
    if logits := _logits(place):
        return Teacher(path, "logits", None, {}, logits)
    with stating(place) as weights:
        arrays = dict(weights.arrays()) if values else {}
    metadata = stated_by(weights.facts, untrained(weights.config).task, weights.config)
    return Teacher(path, weights.layout, weights.config, metadata, arrays)


def _logits(path: str) -> dict[str, np.ndarray]:
    """{"logits", and "labels" if they are there} of FILE.npy or of a FILE.npz that has logits; else empty.

    Raises UserError where they cannot be read, or are not logits.
    """
    if not path.endswith((".npy", ".npz")):
        return {}
    try:
        if path.endswith(".npy"):
            arrays = {"logits": np.load(path, allow_pickle=False)}
        else:
            with np.load(path, allow_pickle=False) as found:
                arrays = {name: found[name] for name in ("logits", "labels") if name in found}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"is no readable file of numpy ({error}); give one that numpy.save or numpy.savez wrote"
        ) from error
    if "logits" not in arrays:
        return {}
    logits = arrays["logits"]
    if logits.ndim != 2 or logits.dtype.kind != "f" or not np.isfinite(logits).all():
        raise UserError(f"logits are {logits.dtype} {list(logits.shape)}; give finite floating-point numbers [n, K]")
    return arrays
