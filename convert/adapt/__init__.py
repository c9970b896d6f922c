"""What is no bijection, and happens only by flag: `--adapt op=value`.

`plan(config, ["resize=384x384:timm", "head=drop"])` gives one Adaptation a text, in order; `apply` takes parameters
through one; `toward` finds the texts that make a network one that a layout can hold. What each computes is computed in
float64 and rounded once, to the dtype of the first tensor it took.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from vit_jax.config import ModelConfig, NetworkRow, nearest, network_of
from vit_jax.errors import UserError

from . import operations, vit
from .step import Adaptation, Step, apply

__all__ = ["ANY_NETWORK", "OPERATIONS", "Adaptation", "Step", "apply", "plan", "toward"]

Operation = Callable[[Any, str, str], Adaptation]  # (config, text, value)

OPERATIONS: dict[str, Operation] = {f.__name__: f for f in (*vit.OPERATIONS, *operations.OPERATIONS)}
ANY_NETWORK = tuple(f.__name__ for f in operations.OPERATIONS)  # with a field of the name
# Of the others, the network that each is for.
NETWORK: dict[str, NetworkRow] = {f.__name__: vit.NETWORK for f in vit.OPERATIONS}


def plan(config: ModelConfig, texts: Sequence[str]) -> list[Adaptation]:
    """The adaptations that texts name, each of the network that the one before it leaves; nothing is read yet.

    Raises UserError on an operation or value that is not known, or that this network cannot have.
    """
    out: list[Adaptation] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in OPERATIONS:
            raise UserError(f"--adapt {text}: there is no operation {name!r}{nearest(name, list(OPERATIONS))}")
        if not equals or not value:
            raise UserError(f"--adapt {text}: {name} needs a value, as in {OPERATIONS[name].__doc__}")
        row = network_of(config)
        possible = [each for each in OPERATIONS if (NETWORK[each] is row if each in NETWORK else hasattr(config, each))]
        if name not in possible:
            whose = f"a {NETWORK[name].name}" if name in NETWORK else f"networks with a field {name}"
            can = f"can only have {' and '.join(possible)} changed" if possible else "can have nothing changed"
            raise UserError(f"--adapt {text}: {name} is for {whose} and this is a {row.name}, which {can}")
        out.append(OPERATIONS[name](config, text, value))
        config = out[-1].config
    return out


def toward(config: ModelConfig, more: Sequence[str], fits: Callable[[ModelConfig], bool]) -> list[str]:
    """The fewest texts that leave a network that fits: of those that keep the function and, after them, of `more`; else none."""
    known = [*vit.SAME_FUNCTION, *more]
    for count in range(1, len(known) + 1):
        for texts in itertools.combinations(known, count):
            with contextlib.suppress(UserError):  # not for this network
                if fits(plan(config, texts)[-1].config):
                    return list(texts)
    return []
