"""Conversions that compute values and are done only if asked for: `--adapt OPERATION=VALUE`.

`adaptations(config, ["resize=384x384:timm", "head=drop"])` gives one Adaptation for each text, in order; `apply` takes
parameters through one of them; `texts_to_fit` searches for texts after which a layout can hold the network. Values are
computed in float64 and rounded once, to the dtype of the first tensor that a step takes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from vit_jax.config.hints import nearest
from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError

from . import lora, operations, vit
from .step import Adaptation, Step, apply

__all__ = ["ANY_NETWORK", "OPERATIONS", "Adaptation", "Step", "adaptations", "apply", "operation", "texts_to_fit"]

Operation = Callable[[Any, str, str], Adaptation]  # (config, text, value)

OPERATIONS: dict[str, Operation] = {f.__name__: f for f in (*vit.OPERATIONS, *operations.OPERATIONS, *lora.OPERATIONS)}
ANY_NETWORK = tuple(f.__name__ for f in operations.OPERATIONS)  # for networks with a config field of the name
# The network that each of the other operations is for.
NETWORK: dict[str, type[NetworkConfig]] = {
    **{f.__name__: vit.NETWORK for f in vit.OPERATIONS},
    **{f.__name__: NetworkConfig for f in lora.OPERATIONS},
}


def adaptations(config: NetworkConfig, texts: Sequence[str]) -> list[Adaptation]:
    """What texts of --adapt ask for. Reads no values yet."""
    out: list[Adaptation] = []
    for text in texts:
        name, value = operation(text)
        possible = [
            each
            for each in OPERATIONS
            if (isinstance(config, NETWORK[each]) if each in NETWORK else hasattr(config, each))
        ]
        if name not in possible:
            whose = f"a {NETWORK[name].name}" if name in NETWORK else f"networks with a field {name}"
            can = f"can only have {', '.join(possible)} changed" if possible else "can have nothing changed"
            raise UserError(f"adapt {text}", f"{name} is for {whose} and this is a {config.name}, which {can}")
        out.append(OPERATIONS[name](config, text, value))
        _check_size(out[-1])
        config = out[-1].config
    return out


def _check_size(adaptation: Adaptation) -> None:
    """Raise UserError where an adaptation makes a parameter that is large, and larger than all of the network was."""
    for name, shape in (each for step in adaptation.steps for each in step.makes.items()):
        if math.prod(shape) > operations.LARGEST:
            before = adaptation.config_before.parameter_count()
            if math.prod(shape) > before:
                most = max(before, operations.LARGEST)
                says = f"{name} {list(shape)} would have more than {most:,} numbers"
                raise UserError(f"adapt {adaptation.text}", says, "give less")


def operation(text: str) -> tuple[str, str]:
    """The operation of a text of --adapt -> (its name, its value)."""
    name, equals, value = text.partition("=")
    if name not in OPERATIONS:
        raise UserError(f"adapt {text}", f"there is no operation {name!r}{nearest(name, list(OPERATIONS))}")
    if not equals or not value:
        example = (OPERATIONS[name].__doc__ or "").partition("\n")[0].rstrip(".")
        raise UserError(f"adapt {text}", f"{name} needs a value, as in {example}")
    return name, value


def texts_to_fit(config: NetworkConfig, more: Sequence[str], fits: Callable[[NetworkConfig], bool]) -> list[str]:
    """The fewest texts of --adapt after which a network fits."""
    known = [*vit.SAME_FUNCTION, *more]
    for count in range(1, len(known) + 1):
        for texts in itertools.combinations(known, count):
            with contextlib.suppress(UserError):  # an operation that this network cannot have
                if fits(adaptations(config, texts)[-1].config):
                    return list(texts)
    return []
