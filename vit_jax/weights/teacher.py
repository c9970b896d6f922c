"""The teacher of a run (`run.teacher`): a trained network from which another one learns, or its logits, opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ..config.network import Teacher
from ..config.run import RunConfig
from ..errors import UserError
from ..files.arrays import read_array, read_arrays
from ..tasks.table import task_spec, untrained_run
from .interop import convert_first, open_complete, task_metadata
from .start.opening import fault_of, place_of


def open_teacher(run: RunConfig, before_reading: Callable[[Teacher], object] | None = None) -> Teacher | None:
    """The teacher that a run names. None where the run names none."""
    spec = task_spec(run.task)
    if not run.teacher or not spec.has_teacher:
        return None
    with contextlib.ExitStack() as stack:
        with _naming(run.teacher):
            place = place_of(run.teacher, run.dir)
            if logits := _logits(place):
                teacher = Teacher(run.teacher, "logits", None, {}, logits)
            else:
                weights = stack.enter_context(open_complete(place))
                metadata = task_metadata(weights.facts, untrained_run(weights.config).task, weights.config)
                teacher = Teacher(run.teacher, weights.layout, weights.config, metadata, {})
        spec.check_teacher(teacher, run, None)
        if before_reading is not None:
            before_reading(teacher)
        with _naming(run.teacher):
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


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Let errors within the block say that they are about the teacher."""
    try:
        with convert_first(path):
            yield
    except UserError as error:
        raise UserError(f"teacher {path}", fault_of(path, error), error.remedy) from error
