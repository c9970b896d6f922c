"""How the training step of a run is divided on a CPU: a device for each core, with a share of the batch in small parts.

XLA multiplies on one device with all cores, but they wait for each other between operations, and what a whole batch
computes leaves the caches before it is used again. Where small parts gain nothing, they are as large as memory allows.
Importing this file loads no jax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..config.dotted import value_at
from ..config.run import RunConfig
from ..errors import Field, UserError
from . import backend
from .limits import host_memory
from .targets import HERE, Target

# All measured on two cores of an Intel Xeon; benchmarks.step measures it elsewhere.
# Bytes of the largest activation of a part: a core's second-level cache has 1 to 2 MB, and several are in use at once.
CACHED = 550_000
SMALLEST = 100_000  # bytes of it of a device's whole share: below, devices cost more than they gain
FEWEST = 8  # examples of a device's share: each device updates all weights, whatever its share
# Bytes of all weights: they and their gradients pass through the cache for each part. Gains were seen up to 3.3 MB (1.4
# times the speed), a loss at 14 MB (0.95).
MOST_WEIGHTS = 5_000_000
# What a step keeps of an example for its backward pass, in largest activations of each block: 16 to 20 were seen in
# float32, 28 in bfloat16, whose factors are kept beside it (cifar10-256x6 and cifar100-256x24).
KEPT = 20
KEPT_IN_BFLOAT16 = 30


@dataclass(frozen=True)
class Division:
    """A batch is shared by `devices`; each computes its share in `parts`, one after the other."""

    devices: int
    parts: int


def plan_division(run: RunConfig, hosts: int = 1) -> Division:
    """What is fastest for a run on this machine, of whose accelerators nothing is known before jax starts."""
    run = replace(run, batch=max(1, run.batch // hosts))
    return Division(1, run.accumulate or 1) if backend.accelerators() else _on_cpu(run, backend.cores())


def find_division(run: RunConfig, hosts: int = 1, target: Target = HERE) -> Division:
    """How the steps of a run are divided on devices; it starts jax."""
    count = target.count
    if target.platform != "cpu":
        return Division(count, run.accumulate or 1)
    if hosts > 1:
        wanted = plan_division(run, hosts)
        as_wanted = backend.made_devices() and wanted.devices == HERE.local_count
        return Division(count, wanted.parts if as_wanted else run.accumulate or 1)
    wanted = _on_cpu(run, backend.cores())
    if count == 1 or backend.made_devices():  # for this run, or for one before it in this process
        return wanted if wanted.devices in (1, count) else Division(1, 1)
    return Division(count, run.accumulate or (1 if run.batch % count else _parts(run, count)))  # the user's devices


def _on_cpu(run: RunConfig, cores: int) -> Division:
    """What is fastest on a CPU with so many cores, all free."""
    if run.accumulate:
        return Division(1, run.accumulate)
    if run.teacher:  # which may be any network, and nothing is known of it here
        return Division(1, 1)
    share = run.batch // cores
    if share < FEWEST or _largest(run) * share < SMALLEST or run.batch % (cores * run.augment.together):
        return Division(1, _fitting(run))
    return Division(cores, _parts(run, cores))


def _fitting(run: RunConfig) -> int:
    """Into how few equal parts a batch has to be cut for a step to take about half of the memory at most."""
    blocks = sum(value_at(run.model, name) for name in run.model.marked("counts_blocks"))
    kept = blocks * run.model.largest() * (8 if run.compute_dtype == "float64" else 4)
    kept *= KEPT_IN_BFLOAT16 if run.compute_dtype == "bfloat16" else KEPT
    there = host_memory() // 2
    if not there or run.remat != "none":  # which keeps little
        return 1
    divisors = (parts for parts in range(1, run.batch + 1) if run.batch % parts == 0)
    return next(parts for parts in divisors if run.batch // parts * kept <= there or parts == run.batch)


def _parts(run: RunConfig, devices: int) -> int:
    """Into how many equal parts to cut a device's share: more than half of what fits into a core's cache is in each."""
    share, fits = run.batch // devices, CACHED / max(1, _largest(run))
    divisors = (rows for rows in range(1, share + 1) if share % rows == 0)
    return share // next(rows for rows in divisors if 2 * rows > fits or rows == share)


def _largest(run: RunConfig) -> int:
    """The bytes of the largest activation of an example; 0: unknown, or the weights are too many for small parts."""
    width = 8 if run.compute_dtype == "float64" else 4  # XLA computes bfloat16 in float32 on a CPU
    few = run.model.with_data().parameter_count() * width <= MOST_WEIGHTS
    return run.model.largest() * width if few else 0


def check_shares(sizes: Mapping[str, int], devices: int, parts: int, together: int = 1) -> None:
    """Check that batches can be shared by devices."""
    for name, size in sizes.items():
        if size % (devices * parts):
            by = f"{devices} devices" + (f" x accumulate {parts}" if parts > 1 else "")
            raise UserError(Field(name), f"is not divisible by {by}", f"choose a multiple of {devices * parts}")
        if size % (devices * together):
            raise UserError(
                f"{name} on {devices} devices is {size // devices} each, but augmentation mixes {together} examples "
                "with each other",
                remedy=f"choose a multiple of {devices * together}",
            )


def check_groups(fsdp: int, devices: int, target: Target) -> None:
    """Raise UserError if devices, of a target, make no groups of `fsdp`."""
    if devices % fsdp:
        divisors = ", ".join(str(k) for k in range(1, devices + 1) if devices % k == 0)
        raise UserError(
            Field("fsdp"),
            f"is {fsdp}, which does not divide the {devices} devices {'' if target.present else 'of '}{target.name}",
            f"give one of {divisors}",
        )
