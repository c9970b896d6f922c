"""The machine, its load, and the cost of repeated work, which every benchmark prints."""

from __future__ import annotations

import importlib.util
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from vit_jax.machine import backend


def describe() -> dict[str, Any]:
    """The machine, its load and the versions of the packages, with which a result is stated."""
    names = ["jax", "jaxlib", "flax", "optax", "tyro"]
    if importlib.util.find_spec("torch"):
        names.append("torch")
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
    hardware = f"{machine['cpu']} ({machine['features']}), {machine['cores']} cores, load {machine['load']}"
    return f"{hardware}, {machine['date']}\n{versions}; XLA flags: {flags}"


def features() -> str:
    """The widest vector instructions of the CPU, which the name of a virtual machine's CPU often does not tell."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
    return next((name for name in ("amx_tile", "avx512_bf16", "avx512f", "avx2") if name in flags), "no AVX2")


def load() -> str:
    """The system's load over 1, 5 and 15 minutes; ratios are rough if it exceeds the number of cores."""
    return " ".join(f"{x:.1f}" for x in os.getloadavg())


@dataclass
class Cost:
    """The cost of repeated work."""

    seconds: list[float]  # wall time of each repetition
    cpu: float  # seconds of CPU time of the process, over all repetitions
    faults: int  # minor page faults, over all repetitions

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.cpu + other.cpu, self.faults + other.faults)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def summary(self) -> dict[str, float]:
        """Milliseconds (median, fastest, mean), CPU milliseconds and page faults per repetition."""
        n = len(self.seconds)
        return {
            "median_ms": 1e3 * self.median,
            "min_ms": 1e3 * min(self.seconds),
            "wall_ms": 1e3 * statistics.fmean(self.seconds),
            "cpu_ms": 1e3 * self.cpu / n,
            "faults": self.faults / n,
        }


def measure(work: Any, times: int) -> Cost:
    """Call `work`, which must return only when it is done, `times` times."""
    seconds, cpu, faults = [], time.process_time(), _faults()
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return Cost(seconds, time.process_time() - cpu, _faults() - faults)


def interleave(works: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, list[Cost]]:
    """{name: cost in each round}: every round calls each function for about `seconds`, in alternating order."""
    for work in works.values():  # the first call compiled; a second one shows no special costs any more
        work()
    slowest = max(measure(work, 1).median for work in works.values())
    times = max(2, round(seconds / slowest))
    costs: dict[str, list[Cost]] = {name: [] for name in works}
    for i in range(rounds):
        for name in list(works)[:: 1 if i % 2 else -1]:
            works[name]()  # not counted: the caches still hold the data of the one before
            costs[name].append(measure(works[name], times))
    return costs


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """The median of the rounds' ratios and their range; of more than two rounds without the lowest and the highest."""
    ordered = sorted(ratios)
    middle = ordered[1:-1] if len(ordered) > 2 else ordered
    return {"ratio": statistics.median(ordered), "low": middle[0], "high": middle[-1]}
