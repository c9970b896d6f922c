"""What the outputs of a head still have to go through before they are what a user is told, folded into the head itself.

Our own files state it beside the weights (config/outputs.py): a temperature that logits are divided by, and the mean
and std by which numbers were normalised. Files of others cannot, so a network that is written as one takes it in.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from vit_jax.config.outputs import Outputs
from vit_jax.errors import UserError

from ..layout import Facts
from ..operations import Arrays
from .operations import need
from .step import Adaptation, Step

TEMPERATURE, NUMBERS = "temperature:", "numbers:"  # begin such values of --adapt fold


def texts_to_fold(outputs: Outputs) -> list[str]:
    """The texts of --adapt after which nothing is left to be stated of how outputs are read, but thresholds."""
    texts = [f"fold={TEMPERATURE}{outputs.temperature!r}"] if outputs.temperature != 1 else []
    if outputs.mean:
        pairs = zip(outputs.std, outputs.mean, strict=True)
        texts.append(f"fold={NUMBERS}" + ",".join(f"{std!r}*x+{mean!r}" for std, mean in pairs))
    return texts


def fold_temperature(c: Any, text: str, value: str) -> Adaptation:
    """W / T and b / T: the softmax or sigmoid of the new logits is that of the old ones divided by T."""
    (temperature,) = _numbers(text, [value.removeprefix(TEMPERATURE)])
    need(temperature > 0, text, "a temperature is greater than 0")
    need(c.classes > 0, text, "this network has no head")

    def facts(found: Facts) -> Facts:
        left = found.outputs.temperature / temperature
        return replace(found, outputs=replace(found.outputs, temperature=left))

    says = f"the temperature {temperature:.6g} of its calibration is folded into the head, W / T and b / T"
    steps = [
        Step((name,), {name: shape}, lambda arrays: [arrays[0] / temperature]) for name, shape in _heads(c).items()
    ]
    return Adaptation(text, c, c, tuple(steps), says, facts)


def fold_numbers(c: Any, text: str, value: str) -> Adaptation:
    """W std and b std + mean: the outputs are the numbers in the units of the data, and not normalised ones."""
    parts = [each.partition("*x+") for each in value.removeprefix(NUMBERS).split(",")]
    std, mean = (np.array(_numbers(text, [part[i] for part in parts])) for i in (0, 2))
    need(len(std) == c.classes, text, f"has {len(std)} numbers for {c.classes} outputs")
    after = replace(c, head_bias=True)
    steps = []
    for name in {name.rpartition(".")[0] for name in _heads(c)}:
        takes = tuple(each for each in (f"{name}.kernel", f"{name}.bias") if each in c.shapes())
        makes = {f"{name}.kernel": c.shapes()[f"{name}.kernel"], f"{name}.bias": (c.classes,)}

        def compute(arrays: Arrays) -> list[np.ndarray]:
            bias = arrays[1] if len(arrays) > 1 else np.zeros(c.classes)
            return [arrays[0] * std, bias * std + mean]

        steps.append(Step(takes, makes, compute))
    says = "the mean and std of the training split are folded into the head, W std and b std + mean"
    return Adaptation(
        text, c, after, tuple(steps), says, lambda f: replace(f, outputs=replace(f.outputs, mean=(), std=()))
    )


def _heads(c: Any) -> dict[str, tuple[int, ...]]:
    """{name: shape} of the parameters of the last layer, or of both of two."""
    return {name: shape for name, shape in c.shapes().items() if name.startswith(("head.", "distill_head."))}


def _numbers(text: str, values: list[str]) -> list[float]:
    """Finite numbers from their texts. Raises UserError."""
    try:
        found = [float(value) for value in values]
    except ValueError:
        found = [math.nan]
    if not all(map(math.isfinite, found)):
        raise UserError(
            f"adapt {text[:60]}",
            "it is not made of numbers",
            f"give fold={TEMPERATURE}1.5, or fold={NUMBERS}STD*x+MEAN, one for each output with commas between",
        )
    return found
