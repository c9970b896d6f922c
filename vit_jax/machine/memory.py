"""What a run takes: the memory, of which a network that cannot fit is refused at once, and the FLOPs of its steps.

Model FLOPs utilization (MFU) is what a network has to multiply, over what its devices could in the same time (Chowdhery
et al. 2022, arXiv 2204.02311, appendix B): the FLOPs are those of the network itself, so that work which is done twice
to save memory does not count. Importing this file loads no jax.
"""

from __future__ import annotations

import math
from typing import assert_never

from ..config.dotted import leaves, value_at
from ..config.groups import adapted_kernels, averaged_parameters, moments, trainable, trainable_table
from ..config.network import NetworkConfig, Teacher
from ..config.run import RunConfig
from ..errors import Field, UserError
from .backend import accelerators, configure_jax
from .division import Division
from .limits import host_memory
from .targets import HERE, published


def run_bytes(run: RunConfig, teacher: Teacher | None = None, division: Division | None = None) -> tuple[int, int]:
    """The bytes that training takes at least."""
    table, width = trainable_table(run), 8 if run.compute_dtype == "float64" else 4
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


def check_memory(run: RunConfig, teacher: Teacher | None = None, division: Division | None = None) -> RunConfig:
    """The run, unchanged."""
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
    return run


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
    if accelerators():
        configure_jax()
        if limit := HERE.own_memory():
            return limit, HERE.local_count
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
