"""How a run fits its devices: how the training step is divided, and the memory and the FLOPs that it takes.

A CPU becomes a device for each core, with a share of the batch in small parts. XLA multiplies on one device with all
cores, but they wait for each other between operations, and what a whole batch computes leaves the caches before it is
used again. Where small parts gain nothing, they are as large as memory allows.

Model FLOPs utilization (MFU) is what a network has to multiply, over what its devices could in the same time (Chowdhery
et al. 2022, arXiv 2204.02311, appendix B): the FLOPs are those of the network itself, so that work which is done twice
to save memory does not count. Importing this file loads no jax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from ..config.dotted import leaves, value_at
from ..config.groups import adapted_kernels, averaged_parameters, moments, trainable, trainable_table
from ..config.network import NetworkConfig, Teacher
from ..config.run import RunConfig
from ..errors import Field, UserError
from . import backend
from .limits import host_memory
from .targets import HERE, Target, published

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
        as_wanted = backend.made_devices() and wanted.devices == HERE.a_host
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
    kept = blocks * run.model.largest() * run.parameter_bytes
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
    width = run.parameter_bytes  # XLA computes bfloat16 in float32 on a CPU
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


def run_bytes(run: RunConfig, teacher: Teacher | None = None, division: Division | None = None) -> tuple[int, int]:
    """The least bytes of training: (of weights, gradients, moments and a teacher; of a batch)."""
    table, width = trainable_table(run), run.parameter_bytes
    gradients = trainable(run.optim, table)
    # Weights; with LoRA the merged kernels, for evaluations; gradients and average of those that train; moments.
    averages = averaged_parameters(run) if run.ema else ()
    kept = (table, adapted_kernels(run), gradients, averages, *moments(run.optim, table).values())
    numbers = sum(math.prod(table[name].shape) for names in kept for name in names)
    there = division or Division(1, run.accumulate or 1)
    activations = run.model.activations() * -(-run.batch // there.parts)
    activations *= 2 if run.compute_dtype == "bfloat16" else width
    if teacher:
        numbers += teacher.config.parameter_count() if teacher.config else teacher.arrays["logits"].size
    return numbers * width * there.devices // run.fsdp, activations + _example_bytes(run) * run.batch


def _example_bytes(run: RunConfig) -> int:
    """The bytes of a prepared example, as far as the network tells: of its image, or of its vector in float32."""
    first, *_ = run.model.with_data().inputs()
    if first.kind == "pixels":
        return math.prod(first.shape) * run.augment.pixel_bytes
    if first.kind == "vectors":
        return 4 * first.size
    if first.kind == "ids":
        return 0
    assert_never(first.kind)


def check_memory(run: RunConfig, teacher: Teacher | None = None, division: Division | None = None) -> None:
    """Raise UserError where a run needs more memory than is there, before its activations."""
    limit, devices = memory()
    weights, batch = run_bytes(run, teacher, division)
    both = f"{_sizes(run.model)}" + (f" and the teacher {run.teacher}" if teacher else "")
    needed, there = weights + batch // devices, f"but there are {_gigabytes(limit)} GB here"
    # A CPU that is several devices holds the weights once for each.
    undivided = ", or set accumulate to 1, which makes this CPU one device" if division and division.devices > 1 else ""
    lower = f"lower one of them{undivided}"
    if limit and weights > limit:
        raise UserError(
            f"{both} take at least {_gigabytes(weights)} GB for weights, gradients, average and moments "
            f"of {run.optim.name}, before activations, {there}",
            remedy=lower,
        )
    if limit and needed > limit:
        raise UserError(
            Field("batch"),
            f"{run.batch} and {both} take at least {_gigabytes(needed)} GB, {there}",
            f"{lower}, or split the batch into more microbatches with accumulate",
        )


def check_weights(config: NetworkConfig) -> None:
    """Raise UserError if a network's weights alone cannot fit into the memory of this machine."""
    limit, needed = memory()[0], 4 * config.parameter_count()
    if limit and needed > limit:
        raise UserError(
            f"{_sizes(config)} take {_gigabytes(needed)} GB for weights, but there are {_gigabytes(limit)} GB here",
            remedy="lower one of them",
        )


def _sizes(config: NetworkConfig) -> str:
    """The sizes of a network that weigh most, as fields and values."""
    wanted = ("width", *config.marked("counts_blocks"), "hidden", *config.marked("from_data"), "image")
    known = [n for each in wanted for n in leaves(type(config)) if n == each or n.endswith(f".{each}")]
    return ", ".join(f"model.{name} {value}" for name in known if (value := value_at(config, name)))


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:,.1f}" if number < 1e15 else f"{number / 1e9:.1e}"


def memory() -> tuple[int, int]:
    """(Bytes that one device has, or this process where devices share it, 0 if unknown; devices that do not share it).

    jax is started only where it may find an accelerator.
    """
    if backend.accelerators():
        backend.configure_jax()
        if limit := HERE.own_memory():
            return limit, HERE.a_host
    return host_memory(), 1


def step_flops(model: NetworkConfig, examples: float = 1) -> float:
    """FLOPs of a step: 3 times those forward, as the backward pass has two products for each; 0: by the data."""
    return 3 * model.training_flops() * examples


def most_examples(run: RunConfig, teacher: Teacher | None, device: str, devices: int) -> float:
    """Examples per second at which devices would work at their peak: an MFU of 1."""
    flops = 0.0 if run.optim.freeze or run.lora.rank else step_flops(run.model)
    if flops and teacher is not None and teacher.config is not None:
        of_teacher = teacher.config.flops()
        flops = flops + of_teacher if of_teacher else 0.0
    return devices * published(device).peak / flops if flops else 0.0
