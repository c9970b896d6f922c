"""What data has, for the loop and the evaluation step: they know no kind of data by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np


class Split(Protocol):
    """The examples of one split."""

    def __len__(self) -> int: ...

    def part(self, indices: np.ndarray) -> Split:
        """The split that holds only these examples."""

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """What a training step sees of these examples."""

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """What an evaluation step sees of them."""


class Order(Protocol):
    """Which examples a step sees: a function of the seed and the step alone."""

    n: int
    steps_per_epoch: int

    @property
    def batch(self) -> float:
        """Examples a step, on average."""

    def indices(self, step: int) -> np.ndarray:
        """int64 [k]."""


class Data(Protocol):
    """What a run learns from. `identity` is JSON, and equal exactly where the data is."""

    @property
    def name(self) -> str: ...

    @property
    def splits(self) -> Mapping[str, Any]:
        """Split by name: train, then validation, test and others where there are any."""

    @property
    def identity(self) -> dict[str, Any]: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth printing once."""

    @property
    def contents(self) -> str:
        """What there is, in a few words."""

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of a network that the data decides, by their fields."""

    def record(self) -> dict[str, Any]:
        """What config.json keeps of it, as the task's row says."""

    def step_sizes(self, batch: int) -> dict[str, int]:
        """{what a user calls it: examples of a step}."""

    def order(self, batch: int, seed: int, batches: int = 0) -> Order:
        """The order of training, over the examples of the first batches (0: all). Raises UserError."""
