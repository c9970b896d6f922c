"""What a preset is, and what several presets share."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.dotted import replace_fields
from ..config.run import Network, OfNetwork, OptimConfig, RunConfig


@dataclass(frozen=True)
class Preset(OfNetwork[Network]):
    """A named run."""

    run: RunConfig[Network]
    title: str  # a few words, for the list of all presets
    help: str = ""  # the whole text, if that is more


def on_other_data(run: RunConfig[Network]) -> RunConfig[Network]:
    """The run of a preset on other data than its own, which determines the sizes of its network, such as classes."""
    return replace_fields(run, {f"model.{name}": 0 for name in run.model.marked("from_data")})


# What learned most in a few epochs, from random weights: found for cifar10-stem on its validation images.
FEW_EPOCHS = OptimConfig(name="muon", lr=4e-3, muon_lr=0.02, beta2=0.99, weight_decay=0.2, schedule="one_cycle")
