"""What every result is printed with: the machine, its load, and what a stretch of work cost."""

from __future__ import annotations

import importlib.util
import os
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from vit_jax import backend


def describe() -> dict[str, Any]:
    """The machine and the versions that a figure belongs to."""
    names = ["jax", "jaxlib", "flax", "optax", "tyro"] + ["torch"] * bool(importlib.util.find_spec("torch"))
    versions = {name: metadata.version(name) for name in names}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": backend.cpu_name(),
        "features": features(),
        "cores": backend.cores(),
        "load": load(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "versions": versions,
    }


def heading(machine: dict[str, Any]) -> str:
    """`describe` as lines to print."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    flags = machine["xla_flags"] or "none"
    return f"{machine['cpu']} ({machine['features']}), {machine['cores']} cores, load {machine['load']}, {machine['date']}\n{versions}; XLA flags: {flags}"


def features() -> str:
    """The widest vector instructions of the CPU: its name says nothing of them on a rented machine."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
    return next((name for name in ("amx_tile", "avx512_bf16", "avx512f", "avx2") if name in flags), "no AVX2")


def load() -> str:
    """Processes that want a core, over 1, 5 and 15 minutes: a ratio taken above the cores' number is rough."""
    return " ".join(f"{x:.1f}" for x in os.getloadavg())


@dataclass
class Cost:
    """Seconds of each repetition, and what the process paid in all."""

    seconds: list[float]
    cpu: float
    faults: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.cpu + other.cpu, self.faults + other.faults)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def summary(self) -> dict[str, float]:
        """Milliseconds, CPU milliseconds and page faults a repetition."""
        n = len(self.seconds)
        return {
            "median_ms": 1e3 * self.median, "min_ms": 1e3 * min(self.seconds),
            "cpu_ms": 1e3 * self.cpu / n, "faults": self.faults / n,
        }  # fmt: skip


def measure(work: Any, times: int) -> Cost:
    """Call `work`, which waits for its own end, so many times."""
    seconds, cpu, faults = [], time.process_time(), _faults()
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return Cost(seconds, time.process_time() - cpu, _faults() - faults)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """Median and the middle of all rounds: the best and the worst left out where there are more than two."""
    ordered = sorted(ratios)
    middle = ordered[1:-1] if len(ordered) > 2 else ordered
    return {"ratio": statistics.median(ordered), "low": middle[0], "high": middle[-1]}
