"""What is printed before training: the network, data, memory, device and versions of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..config.groups import frozen_at_first, muon_kernels, trainable
from ..config.lora import adapted_kernels, trainable_table
from ..config.run import RunConfig
from ..errors import install
from ..files.terminal import print_wrapped, printable
from ..machine import backend
from ..machine.division import Division
from ..machine.memory import run_bytes
from ..weights.teacher import describe_teacher

if TYPE_CHECKING:
    from .setup import Setup


def _by_rule(run: RunConfig) -> str:
    """How many parameters Muon updates, in a run whose optimizer is muon, and AdamW, and at which rates."""
    table, c = run.model.parameters(), run.optim
    kernels, names = muon_kernels(c, table), trainable(c, table)
    by_muon, by_adam = (
        sum(math.prod(table[name].shape) for name in names if (name in kernels) is on) for on in (True, False)
    )
    return (
        f"Muon updates {by_muon:,} of them, in {len(kernels)} hidden kernels, at rate {c.muon_lr:g}; "
        f"AdamW {by_adam:,}, in {len(names) - len(kernels)} tensors, at rate {c.lr:g}"
    )


def announce(setup: Setup) -> None:
    """Print the network, data, memory, device and versions of a run."""
    run, environment = setup.run, setup.environment
    what, cost = run.model.describe()
    table = trainable_table(run)
    count = run.model.parameter_count()
    training = sum(math.prod(table[name].shape) for name in trainable(run.optim, table))
    copies = len(setup.engine.devices) if setup.engine.devices.share_a_cpu else 1
    weights, _ = run_bytes(run, setup.teacher, Division(copies, setup.engine.parts))
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in setup.dataset.splits.items())
    versions = environment["versions"]
    print(f"model    {what}")
    print(f"         {count:,} parameters, {cost}")
    if late := frozen_at_first(run.optim, table):
        first = setup.engine.optimizer.release + 1
        size = sum(math.prod(table[name].shape) for name in late)
        print(f"         {size:,} of them train from step {first} on, in {len(late)} of {len(table)} tensors")
    elif run.lora.rank:
        of = f"LoRA of rank {run.lora.rank} on {len(adapted_kernels(run))} kernels"
        print(f"         {of}: {training:,} numbers train, in {len(trainable(run.optim, table))} tensors with the head")
    elif run.optim.freeze:
        print(f"         {training:,} of them train, in {len(trainable(run.optim, table))} of {len(table)} tensors")
    if run.optim.name == "muon":
        print(f"         {_by_rule(run)}")
    if setup.teacher:
        print(printable(f"teacher  {describe_teacher(setup.teacher)}"))
    print_wrapped(printable(f"data     {setup.dataset.name}: {setup.dataset.contents}; {sizes}"))
    for remark in setup.dataset.remarks:
        print_wrapped(printable(f"         {remark}"))
    of = "weights, gradients, optimizer and teacher" if setup.teacher else "weights, gradients and optimizer"
    of += " on each device" if run.fsdp > 1 and copies == 1 else ""
    print(f"memory   {weights / 1e6:,.1f} MB for {of}, before activations")
    devices = f"{environment['devices']} x {environment['device']}, {environment['cores']} cores"
    cut = environment["accumulate"]
    parts = f"; each computes its share of a batch in {cut} parts" if cut > 1 else ""
    print(f"device   {devices}; {environment['parallel']}, {run.compute_dtype}{parts}")
    print("versions " + ", ".join(f"{name} {versions[name]}" for name in ("python", "jax", "flax", "optax")))
    if backend.unused_gpu():
        print(
            "warning  there is an NVIDIA GPU but jax runs on the CPU: "
            f"{install('cuda12')}, or with cuda13 in place of cuda12 if PyTorch is installed"
        )
