"""Modes of fine-tuning (`tune`): what each sets of a run that starts from given weights."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...config.dotted import replace_fields
from ...config.groups import all_but
from ...config.run import RunConfig
from ...errors import Field, UserError
from ...runs.values import flat
from .opening import text

LAYER_DECAY, RATE, EXAMPLES = 0.75, 1e-3, 256  # of full: the rate is for so many examples a batch
HEAD_RATE = 1e-2  # of head, whatever the batch: see benchmarks/finetune.py


def apply_tuning(run: RunConfig, mode: str, stated: Collection[str] = ()) -> RunConfig:
    """A run with the fields that a mode of fine-tuning sets.

    full: all weights train, at rates that fall towards the input: layer decay 0.75 and the rate 1e-3 for each 256
    examples of a batch, as in He et al. 2022 (arXiv 2111.06377), table 9. head: all but the head is frozen, and nothing
    decays (a linear probe); the rate 1e-2 is ours. attention: attention, positions and the head train, as in Touvron et
    al. 2022 (arXiv 2203.09795); the rate stays that of the run.
    """
    if not run.init:
        raise UserError(Field("tune"), f"is {mode} but init is empty", "name the weights to start from")
    modes = run.model.tuning_modes
    if mode not in modes:
        known = f"choose one of {', '.join(modes)}" if modes else "give `optim.freeze` and `optim.lr`"
        raise UserError(Field("tune"), f"is {mode}, but a {run.model.name} has no such mode", known)
    fields: dict[str, Any] = {"optim.freeze": all_but(modes[mode], run.model.with_data().parameters())}
    if run.lora.rank and fields["optim.freeze"] and "optim.freeze" not in stated:
        raise UserError(
            Field("tune"),
            f"is {mode} and lora.rank is {run.lora.rank}, but each decides what trains",
            "leave one of them out",
        )
    if mode == "full":
        fields |= {"optim.layer_decay": LAYER_DECAY, "optim.lr": RATE * run.batch / EXAMPLES}
    if mode == "head":
        fields |= {"optim.lr": HEAD_RATE, "optim.weight_decay": 0.0}
    return replace_fields(run, {name: value for name, value in fields.items() if name not in stated})


def describe_tuning(run: RunConfig, mode: str) -> str:
    """A line for the user: the fields of a run that a mode sets, as they are."""
    names = ("optim.freeze", "optim.layer_decay", "optim.lr", "optim.weight_decay")
    values = {name: flat(run)[name][0] for name in names}
    return f"tune     {mode}: " + ", ".join(f"{name} {text(value)}" for name, value in values.items())
