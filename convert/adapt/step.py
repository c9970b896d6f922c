"""One adaptation: the config before and after, and the computation of parameters that change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.config.network import NetworkConfig

from ..layout import Facts
from ..operations import Arrays, Shape, contiguous


@dataclass(frozen=True)
class Step:
    """A computation that replaces some parameters by others. Parameters that no step takes stay as they are."""

    takes: tuple[str, ...]
    makes: Mapping[str, Shape]
    compute: Callable[[Arrays], Sequence[np.ndarray]]

    def apply(self, arrays: Arrays) -> Arrays:
        """The arrays of `makes`, in C order and in the dtype of the first array taken."""
        return [
            contiguous(np.asarray(array).astype(arrays[0].dtype))
            for array in self.compute([a.astype(np.float64) for a in arrays])
        ]


@dataclass(frozen=True)
class Adaptation:
    """What one --adapt does. `says` describes the change for the user and for the provenance of the output.

    `facts` maps the Facts of the source (preprocessing, class names) to those of the adapted network.
    """

    text: str
    config_before: NetworkConfig
    config: NetworkConfig
    steps: tuple[Step, ...]
    says: str
    facts: Callable[[Facts], Facts] = lambda facts: facts
    changes: bool = False  # whether outputs become others


def apply(adaptation: Adaptation, parameters: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parameters of an adapted network -> {dotted name: array} of the network `config`."""
    done = dict(parameters)
    for step in adaptation.steps:
        done |= zip(step.makes, step.apply([np.asarray(done.pop(name)) for name in step.takes]), strict=True)
    return done
