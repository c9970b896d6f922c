"""By which library XLA multiplies matrices on a CPU, of those that it has from jaxlib 0.11 on: measured, and kept.

Which is fastest depends on the CPU and on the version. The kinds differ in the last bits of a result, so a run records
its own and goes on with it. Importing this file loads no jax.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

from ..errors import UserError
from ..files.atomic import read_json, write_json
from ..files.digests import text_digest
from .backend import cache_folder, cores, cpu_name, few_rows
from .bfloat16 import cpu_flags, rounds_factors
from .targets import HERE, Target

FIRST = (0, 11)  # of jaxlib: 0.10 has no calls of oneDNN
_NO_PRODUCTS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION,LIBRARY_FUSION_TYPE_REDUCE"  # what else YNNPACK computes
# {kind: options of the compiler}; the first is what XLA does of itself.
KINDS: dict[str, dict[str, Any]] = {
    "ynnpack": {},
    "eigen": {"xla_cpu_experimental_ynn_fusion_type": _NO_PRODUCTS},
    "onednn": {
        "xla_cpu_experimental_onednn_custom_call": True,
        "xla_cpu_use_onednn": False,
        "xla_cpu_use_xnnpack": False,
        "xla_cpu_experimental_ynn_fusion_type": _NO_PRODUCTS,
    },
}
# How many times as fast as the best before it a kind has to be: more than two measurements differ. Programs with calls
# of oneDNN cannot be cached, so that each process compiles them.
GAIN = {"eigen": 1.05, "onednn": 1.15}
ROUNDS = 25
ROWS, WIDTH, HIDDEN = 1024, 256, 512  # of the products that are measured


def choose_kind(compute_dtype: str, recorded: str = "", target: Target = HERE) -> str:
    """The kind of products of a run. A key of KINDS: the recorded one if it works here, else the fastest; empty where
    there is no choice: on other devices than a CPU, in float64, before jaxlib 0.11, and where XLA_FLAGS has made it.
    """
    version = tuple(map(int, re.findall(r"\d+", importlib.metadata.version("jaxlib"))[:2]))
    chosen = re.search("ynn|xnn|onednn|eigen", os.environ.get("XLA_FLAGS", ""))
    if target.platform == "cpu" and version < FIRST and few_rows() and rounds_factors(compute_dtype, target):
        return "ynnpack"  # in place of Eigen, which multiplies in bfloat16 no faster than in float32
    if target.platform != "cpu" or compute_dtype == "float64" or version < FIRST or chosen:
        return ""
    kind = recorded if recorded in KINDS and measure(compute_dtype, (recorded,)) else _fastest(compute_dtype)
    if kind == "onednn":
        warnings.filterwarnings("ignore", "Error writing persistent compilation cache entry")
    return kind


def options(kind: str) -> dict[str, Any]:
    """The options of jax.jit for a program of a kind of products; empty: as XLA does of itself."""
    if kind == "ynnpack":
        return few_rows()
    return {"compiler_options": KINDS[kind]} if kind else {}


def _fastest(compute_dtype: str) -> str:
    """The fastest kind on this CPU with this jaxlib: from a file of the user's cache, or measured and kept there."""
    about = {
        "cpu": cpu_name(),
        "cores": cores(),
        "jaxlib": importlib.metadata.version("jaxlib"),
        "dtype": compute_dtype,
    }
    # One name may be that of several CPUs, as in virtual machines.
    path = cache_folder("products") / f"{text_digest(about | {'flags': sorted(cpu_flags())})}.json"
    with contextlib.suppress(OSError, UserError):  # there is none, or it is damaged
        if (kind := read_json(path).get("kind")) in [*KINDS]:
            return str(kind)
    kind = best(times := measure(compute_dtype))
    with contextlib.suppress(OSError):  # a cache that cannot be written means measuring again, not failing
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, about | {"kind": kind, "ms": {name: 1e3 * seconds for name, seconds in times.items()}})
    return kind


def best(times: dict[str, float]) -> str:
    """The kind of these seconds that gains enough over those before it."""
    kind = next(iter(KINDS))
    for name, gain in GAIN.items():
        if name in times and times[name] * gain <= times.get(kind, 0):
            kind = name
    return kind


def measure(compute_dtype: str, kinds: tuple[str, ...] = tuple(KINDS)) -> dict[str, float]:
    """Seconds of the three products of a linear layer in training, by each of the kinds that computes them rightly."""
    import numpy as np

    programs: dict[str, Callable[[], Any]] = {}
    for name in kinds:
        with contextlib.suppress(Exception):  # XLA does not know the options, or cannot compute what they ask for
            program, expected = _program(compute_dtype, KINDS[name])
            if all(np.allclose(x, y, atol=1e-3 * np.abs(y).max()) for x, y in zip(program(), expected, strict=True)):
                programs[name] = program
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS if len(programs) > 1 else 1):
        for name, program in programs.items():
            began = time.perf_counter()
            program()
            times[name].append(time.perf_counter() - began)
    return {name: min(each) for name, each in times.items()}


def _program(compute_dtype: str, compiler_options: dict[str, Any]) -> tuple[Callable[[], Any], list[Any]]:
    """A compiled program that computes y = x w and both gradients of it, and what they are, by numpy.

    In bfloat16 all factors lie row by row, as in `models.layers.rounded_product`.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    draw, narrow = np.random.default_rng(0), compute_dtype == "bfloat16"
    dtype = jnp.bfloat16 if narrow else jnp.float32
    x, w, d = (draw.standard_normal(shape).astype(dtype) for shape in ((ROWS, WIDTH), (WIDTH, HIDDEN), (ROWS, HIDDEN)))
    pairs = (x, w), (d, np.ascontiguousarray(w.T)), (np.ascontiguousarray(x.T), d)
    expected = [a.astype(np.float32) @ b.astype(np.float32) for a, b in pairs]
    if narrow:
        arguments: Any = jax.device_put(pairs)
        traced = jax.jit(lambda *pairs: [jnp.matmul(*pair, preferred_element_type=jnp.float32) for pair in pairs])
    else:
        arguments = jax.device_put((x, w, d))
        traced = jax.jit(lambda x, w, d: [x @ w, d @ w.T, x.T @ d])
    compiled = traced.lower(*arguments).compile(compiler_options or None)
    return lambda: jax.block_until_ready(compiled(*arguments)), expected
