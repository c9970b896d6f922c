"""What is printed before training: the network, data, memory, device and versions of a run; and its minutes."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ..config.groups import adapted_kernels, frozen_at_first, muon_kernels, trainable, trainable_table
from ..config.run import RunConfig
from ..errors import install
from ..files.terminal import print_wrapped, printable
from ..machine import backend
from ..machine.division import Division, run_bytes, step_flops
from ..runs.values import differences
from ..weights.opening import describe_teacher
from .job import Job

if TYPE_CHECKING:
    from .engine.engine import Engine
    from .engine.step import TrainState


STEPS = 5  # that are measured, after one that compiles
SECONDS = 20.0  # that they may take
SLOW = 2e11  # floating-point operations a second that a CPU has at least; steps of more than SECONDS are not tried


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


def _stages(job: Job) -> str:
    """The steps of each stage, counted from 1, with its dropout rates where they are not those of the run."""
    words = []
    for (first, engine), last in zip(job.stages.items(), [*job.stages, job.steps][1:], strict=True):
        changed = differences(job.run, replace(job.run, model=engine.model)).items()
        rates = (f"{name} {new:g}" for name, (_, new) in changed)
        words += [f"{first + 1} to {last}: {', '.join(rates) or 'as the fields say'}"] if last > first else []
    return "; ".join(words)


def announce(job: Job) -> None:
    """Print the network, data, memory, device and versions of a run."""
    run, environment = job.run, job.environment
    what, cost = run.model.describe()
    copies = len(job.engine.devices) if job.engine.devices.share_a_cpu else 1
    weights, _ = run_bytes(run, job.teacher, Division(copies, job.engine.parts))
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in job.data.splits.items())
    versions = environment["versions"]
    print(f"model    {what}")
    print(f"         {run.model.parameter_count():,} parameters, {cost}")
    _announce_training(job)
    if run.optim.name == "muon":
        print(f"         {_by_rule(run)}")
    if run.stages:
        print_wrapped(f"stages   {_stages(job)}")
    if job.teacher:
        print(printable(f"teacher  {describe_teacher(job.teacher)}"))
    print_wrapped(printable(f"data     {job.data.name}: {job.data.contents}; {sizes}"))
    for remark in job.data.remarks:
        print_wrapped(printable(f"         {remark}"))
    of = "weights, gradients, optimizer and teacher" if job.teacher else "weights, gradients and optimizer"
    of += " on each device" if run.fsdp > 1 and copies == 1 else ""
    print(f"memory   {weights / 1e6:,.1f} MB for {of}, before activations")
    devices = f"{environment['devices']} x {environment['device']}, {environment['cores']} cores"
    cut = environment["accumulate"]
    parts = f"; each computes its share of a batch in {cut} microbatches" if cut > 1 else ""
    rounded = f" in {environment['bfloat16']}" if "bfloat16" in environment else ""
    print(f"device   {devices}; {environment['parallel']}, {run.compute_dtype}{rounded}{parts}")
    if remark := job.engine.attention[1]:
        print_wrapped(f"         {remark}")
    print("versions " + ", ".join(f"{name} {versions[name]}" for name in ("python", "jax", "flax", "optax")))
    if backend.unused_gpu():
        print(
            "warning  there is an NVIDIA GPU but jax runs on the CPU: "
            f"{install('cuda12')}, or with cuda13 in place of cuda12 if PyTorch is installed"
        )


def _announce_training(job: Job) -> None:
    """Print which parameters train, where not all do from the first step on."""
    run, table = job.run, trainable_table(job.run)
    training = sum(math.prod(table[name].shape) for name in trainable(run.optim, table))
    if late := frozen_at_first(run.optim, table):
        first = job.engine.optimizer.release + 1
        size = sum(math.prod(table[name].shape) for name in late)
        print(f"         {size:,} of them train from step {first} on, in {len(late)} of {len(table)} tensors")
    elif run.lora.rank:
        of = f"LoRA of rank {run.lora.rank} on {len(adapted_kernels(run))} kernels"
        print(f"         {of}: {training:,} numbers train, in {len(trainable(run.optim, table))} tensors with the head")
    elif run.optim.freeze:
        print(f"         {training:,} of them train, in {len(trainable(run.optim, table))} of {len(table)} tensors")


def _times(job: Job, engine: Engine, state: TrainState, begin: int) -> tuple[TrainState, list[float]]:
    """The state after some steps, and the seconds of each, of which the first compiles."""
    import jax

    began, times = time.monotonic(), list[float]()
    with job.batches(begin, begin + STEPS + 1) as stream:
        for batch in stream:
            state, metrics = engine.train(state, batch)
            jax.block_until_ready(metrics)
            times.append(time.monotonic() - began - sum(times))
            if len(times) > 1 and time.monotonic() - began > SECONDS:
                break
    return state, times


def estimate(job: Job, state: TrainState) -> str:
    """A sentence on the minutes of the steps of a run; empty where a step is too long to be tried."""
    work = step_flops(job.run.model, job.run.batch)
    if work > SECONDS * SLOW:
        return f"not measured: a step takes {work / 1e12:,.1f} TFLOP"
    first, spent, left = 0.0, 0.0, job.stop
    for (begin, engine), end in zip(job.stages.items(), [*job.stages, job.stop][1:], strict=True):
        if (count := min(end, job.stop) - begin) > 0:
            state, times = _times(job, engine, state, begin)
            if len(times) < 2:
                return ""
            first, spent = first + times[0], spent + count * min(times[1:])
    each, minutes = spent / max(left, 1), (first + spent) / 60
    text = f"{minutes:.0f} minutes" if minutes >= 10 else f"{minutes:.1f} minutes"
    text = f"{minutes / 60:.0f} hours" if minutes >= 600 else text
    text = f"about {text}" if minutes >= 0.1 else "a few seconds"
    steps = f"{left:,} steps" if left != 1 else "1 step"
    return f"{text} of training here: {first:.0f} s to compile, then {steps} of {each * 1000:,.0f} ms"
