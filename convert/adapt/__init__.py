"""What is no bijection, and happens only by flag: `--adapt op=value`.

`plan(config, ["resize=384x384:timm", "head=drop"])` gives one Adaptation a text, in order; `apply` takes parameters
through one. What each computes is computed in float64 and rounded once, to the dtype of the first tensor it took.
"""

from __future__ import annotations

from collections.abc import Sequence

from vit_jax.config import ModelConfig, TransformerConfig, nearest
from vit_jax.errors import UserError

from .operations import ANY_NETWORK, OPERATIONS
from .step import Adaptation, Step, apply

__all__ = ["OPERATIONS", "Adaptation", "Step", "apply", "plan"]


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
