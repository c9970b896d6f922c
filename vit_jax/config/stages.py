"""Training in stages: a run whose network drops at other rates for a share of its steps, such as most patches at first.

Shapes depend on some of these rates, so each stage has a program of its own, which is compiled once.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..errors import Field, UserError
from .dotted import replace_fields
from .hints import nearest
from .run import RunConfig

FORM = "write a stage as SHARE:FIELD=RATE,FIELD=RATE, such as 0.5:model.patch-dropout=0.75"


def stages_of(run: RunConfig) -> list[tuple[float, dict[str, float]]]:
    """The stages that a run states, in their order: (a share of its steps, {field of the run: rate} in them)."""
    stages = [_stage(text, run) for text in run.stages]
    if (whole := math.fsum(share for share, _ in stages)) > 1 + 1e-9:
        raise UserError(
            Field("stages"), f"has {whole:g} of the steps in all", "give shares whose sum is at most 1; the rest is one"
        )
    return stages


def _stage(text: str, run: RunConfig) -> tuple[float, dict[str, float]]:
    share, colon, rest = text.partition(":")
    known = [f"model.{name}" for name in run.model.marked("drops")]
    rates: dict[str, float] = {}
    for entry in rest.split(","):
        name, _, rate = entry.partition("=")
        field = name.strip().replace("-", "_")
        if colon and field and field not in known:
            raise UserError(
                Field("stages"), f"has {text!r}, but {name!r} is no dropout rate of the network{nearest(field, known)}"
            )
        if field in rates:
            raise UserError(Field("stages"), f"has {text!r}, which names {name} twice", "leave one out")
        rates[field] = _number(rate, text, 0, "a rate of 0 or more, below 1")
    return _number(share, text, 1, "a share of the steps above 0, at most 1"), rates


def _number(words: str, text: str, excluded: float, remedy: str) -> float:
    """The number that words say, within 0 and 1, of which the other end is not allowed."""
    try:
        found = float(words)
    except ValueError:
        raise UserError(Field("stages"), f"has {text!r}", FORM) from None
    if not 0 <= found <= 1 or found == 1 - excluded:
        raise UserError(Field("stages"), f"has {text!r} with {words}", f"give {remedy}")
    return found


def runs_in_stages(run: RunConfig, steps: int) -> dict[int, RunConfig]:
    """What is trained in each stage of a run of so many steps: {step after which it begins: the run, of one stage}.

    A share is rounded to whole steps. The last entry is the run as its fields say, even where stages cover all steps.
    """
    plain, found, done = replace(run, stages=()), dict[int, RunConfig](), 0.0
    for share, rates in stages_of(run):
        found[round(done * steps)] = replace_fields(plain, rates)
        done += share
    return {**found, round(done * steps): plain}
