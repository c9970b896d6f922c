"""What is no bijection, and happens only by flag: `--adapt op=value`.

`plan(config, ["resize=384x384:timm", "head=drop"])` gives one Adaptation a text, in order; `apply` takes parameters
through one; `toward` finds the texts that make a network one that a layout can hold. What each computes is computed in
float64 and rounded once, to the dtype of the first tensor it took.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

from vit_jax.config import ModelConfig, TransformerConfig, ViTConfig, nearest
from vit_jax.errors import UserError

from .operations import ANY_NETWORK, OPERATIONS
from .step import Adaptation, Step, apply

__all__ = ["ANY_NETWORK", "OPERATIONS", "Adaptation", "Step", "apply", "plan", "toward"]

SAME_FUNCTION = ("fold=layer_scale", "fold=positions", "fold=cls_position", "unfold=cls_position", "unfold=qkv_bias")


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
        if isinstance(config, TransformerConfig) and name not in ANY_NETWORK:
            raise UserError(f"--adapt {text}: {name} is for a ViT and this is a Transformer, which can only have {' and '.join(ANY_NETWORK)} changed")
        out.append(OPERATIONS[name](config, text, value))
        config = out[-1].config
    return out


def toward(config: ModelConfig, more: Sequence[str], fits: Callable[[ModelConfig], bool]) -> list[str]:
    """The fewest of SAME_FUNCTION and, after them, of `more` that leave a network that fits; empty where none do."""
    known = [*(SAME_FUNCTION if isinstance(config, ViTConfig) else ()), *more]
    for count in range(1, len(known) + 1):
        for texts in itertools.combinations(known, count):
            with contextlib.suppress(UserError):  # not for this network
                if fits(plan(config, texts)[-1].config):
                    return list(texts)
    return []
