"""A program whose weights are smaller, and what that changes: outputs, size and time beside those of float32.

Both networks are compared on images as the network takes them, since pixels are prepared alike for both.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.errors import UserError

from ...layout import Json
from ...plan.plan import Plan
from .examples import Examples, measured, open_examples
from .interface import Interface, Wanted
from .network import Forward
from .onnx_file import save, trace
from .weights import compute_int8, store_float16

if TYPE_CHECKING:
    import onnx_ir as ir

AT_A_TIME = 64  # images that are computed at a time, for metrics
TIMED, TIMES = 8, 5  # images of a batch whose time is measured, and how often: the least counts
# How far outputs on noise may differ from ours, as a share of the largest: more is no rounding, but a broken program.
LIMITS = {"float16": 0.05, "int8": 0.5}


def examples_for(plan: Plan, wanted: Wanted) -> tuple[Examples | None, str]:
    """The images by which smaller programs are calibrated and measured, or why float16 goes without them."""
    if not wanted.smaller:
        return None, ""
    try:
        return open_examples(plan, wanted.run, wanted.calibrate), ""
    except UserError as error:
        if "int8" in wanted.weights or wanted.calibrate:
            raise
        return None, str(error)


def make_smaller(
    forward: Forward, interface: Interface, title: str, weights: str, examples: Examples | None
) -> tuple[ir.Model, Json]:
    """A network with smaller weights."""
    plain, model = trace(forward, interface), trace(forward, interface)
    if weights == "float16":
        store_float16(model, title)
    else:
        assert examples is not None
        model = compute_int8(model, forward.given(examples.images(examples.known)), title)
    with tempfile.TemporaryDirectory() as folder:
        sessions = [_session(each, Path(folder, f"{i}.onnx")) for i, each in enumerate((plain, model))]
        found: Json = {}
        if examples is not None:
            outputs = [_computed(session, forward, examples) for session in sessions]
            found = measured(examples, (outputs[0], outputs[1]), outputs[0].shape[-1])
        found["cpu_ms"] = _cpu_times(sessions, forward)
    return model, found


def _session(model: ir.Model, path: Path) -> Any:
    """A model as ONNX Runtime runs it, by one thread."""
    import onnxruntime

    save(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _run(session: Any, images: np.ndarray) -> np.ndarray:
    return np.asarray(session.run(None, {session.get_inputs()[0].name: images})[0])


def _computed(session: Any, forward: Forward, examples: Examples) -> np.ndarray:
    """The outputs [n, K] for the images that are measured."""
    split = examples.measured
    parts = (slice(i, i + AT_A_TIME) for i in range(0, len(split), AT_A_TIME))
    return np.concatenate([_run(session, forward.given(examples.images(split, part))) for part in parts])


def _cpu_times(sessions: list[Any], forward: Forward) -> list[float]:
    """Milliseconds of CPU time of an image, the least of some batches, which the programs compute in turn."""
    images, times = np.random.default_rng(0).standard_normal((TIMED, *forward.shape), np.float32), []
    for _ in range(TIMES):
        for session in sessions:
            began = time.process_time()
            _run(session, images)
            times.append(time.process_time() - began)
    return [float(f"{1e3 * min(times[i :: len(sessions)]) / TIMED:.3g}") for i in range(len(sessions))]


def describe(weights: str, found: Json, why_not: str = "") -> str:
    """A sentence for the user on what smaller weights change."""
    sizes = found["bytes"]
    size = f"{weights} weights: {sizes[1] / 1e6:.2f} MB in place of {sizes[0] / 1e6:.2f}"
    if "images" not in found:
        return f"{size}; not measured on data: {why_not}"
    told = [size, f"on {found['of']}"]
    if found.get("agreement") is not None:
        told.append(f"the same answer for {found['agreement']:.2%}")
    told.append(f"the largest change of an output value {found['largest_change']:.2g}")
    if metric := found.get("metrics", {}).get("accuracy") or found.get("metrics", {}).get(found.get("chosen_by")):
        name = "accuracy" if "accuracy" in found["metrics"] else found["chosen_by"]
        told.append(f"{name} {metric[0]:.4f} before and {metric[1]:.4f} after")
    return "; ".join(told)
