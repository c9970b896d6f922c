"""How long a run will take, by a few of its steps: for --dry-run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .setup import Setup

if TYPE_CHECKING:
    from .engine.step import TrainState

STEPS = 5  # that are measured, after one that compiles
SECONDS = 20.0  # that they may take
SLOW = 2e11  # floating-point operations a second that a CPU has at least; steps of more than SECONDS are not tried


def estimate(setup: Setup, state: TrainState, done: int = 0) -> str:
    """A sentence on the minutes of the steps of a run from a state; empty where a step is too long to be tried.

    Args:
        setup: of the run.
        state: on the devices; it is used up.
        done: the steps that the run has done.
    """
    import jax

    from ..data.batches import batches

    run, order = setup.run, setup.order
    work = 3 * run.model.flops() * run.batch
    if not STEPS or work > SECONDS * SLOW:
        return f"not measured: a step takes {work / 1e12:,.1f} TFLOP" if STEPS else ""
    began, times = time.monotonic(), list[float]()
    stream = batches(setup.dataset.splits["train"], order, done, done + STEPS + 1, setup.engine.devices.rows)
    for batch in stream:
        state, metrics = setup.engine.train(state, batch)
        jax.block_until_ready(metrics)
        times.append(time.monotonic() - began - sum(times))
        if len(times) > 1 and time.monotonic() - began > SECONDS:
            break
    stream.close()
    first, rest = times[0], times[1:]
    if not rest:
        return ""
    each, left = min(rest), setup.stop - done
    minutes = (first + left * each) / 60
    text = f"{minutes:.0f} minutes" if minutes >= 10 else f"{minutes:.1f} minutes"
    text = f"{minutes / 60:.0f} hours" if minutes >= 600 else text
    return f"about {text} of training here: {first:.0f} s to compile, then {left:,} steps of {each * 1000:,.0f} ms"
