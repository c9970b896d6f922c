"""Steps by the words of `vit-jax plan`, compiled in this process: what is changed here is compiled as changed."""

from __future__ import annotations

import shlex
from typing import Literal

from vit_jax.config.run import RunConfig
from vit_jax.extras.plan.command import Options, parse
from vit_jax.extras.plan.program import Program, read_program
from vit_jax.extras.plan.steps import Compiled, What
from vit_jax.machine.numerics import fixed_settings
from vit_jax.machine.targets import Target, prepare, read_target


def planned(words: str) -> tuple[Target, RunConfig, Options]:
    """What words ask for. Raises UserError, also where the compiler of the target is not installed."""
    options, _, run = parse(shlex.split(words))
    target = read_target(options.target)
    prepare(target)
    return target, run, options


def compile_step(words: str, what: What | Literal[""] = "") -> Program:
    """The program of a step.

    Args:
        words: PRESET and flags, as of `vit-jax plan`.
        what: which step; by default the last that the words ask for, as by --evaluate.

    Raises:
        UserError: as `planned`.
    """
    target, run, options = planned(words)
    what = what or ("decode" if options.decode else "evaluate" if options.evaluate else "train")
    with fixed_settings(run.compute_dtype):
        return read_program(target.compile(Compiled(run, target, options.length).trace(what)))
