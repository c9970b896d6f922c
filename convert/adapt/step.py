"""One adaptation: the config before and after, and what becomes of which parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.config import ModelConfig

from ..layout import Facts
from ..rules import Arrays, Shape, contiguous


@dataclass(frozen=True)
class Step:
    """Some of our parameters that become others; those that no step takes stay as they are.

    `compute` gets float64 arrays, in the order of `takes`, and gives those of `makes` in its order.
    """

    takes: tuple[str, ...]
    makes: Mapping[str, Shape]
    compute: Callable[[Arrays], Sequence[np.ndarray]]

    def apply(self, arrays: Arrays) -> Arrays:
        """The parameters made, in C order and in the dtype of the first one taken."""
        return [
            contiguous(np.asarray(array).astype(arrays[0].dtype))
            for array in self.compute([a.astype(np.float64) for a in arrays])
        ]


@dataclass(frozen=True)
class Adaptation:
    """What one --adapt does. `says` is the change in words, for the user and for the output's provenance.

    `facts` is what becomes of the preprocessing and the class names beside the tensors.
    """

    text: str
    config_before: ModelConfig
    config: ModelConfig
    steps: tuple[Step, ...]
    says: str
    facts: Callable[[Facts], Facts] = lambda facts: facts


def apply(adaptation: Adaptation, parameters: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Our parameters {dotted name: array} of `config_before` as those of `config`."""
    done = dict(parameters)
    for step in adaptation.steps:
        done |= zip(step.makes, step.apply([np.asarray(done.pop(name)) for name in step.takes]), strict=True)
    return done
