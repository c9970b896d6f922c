"""How far a program's outputs are from ours, and how far they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.errors import CheckFailed

from ...layout import Json

# How far they may differ, as a share of the largest output: correct programs stay below 3e-6 in float32, and tanh for
# erf GELU is 1e-4. A network that float32 rounds by more may differ by a few times that.
LIMIT, ROUNDINGS = 1e-5, 4


@dataclass
class Difference:
    """The largest difference of outputs, as a share of the largest output."""

    allowed: float = LIMIT
    apart: float = 0.0

    def add(self, found: np.ndarray, expected: np.ndarray, exact: Callable[[], np.ndarray]) -> None:
        """Take the outputs of a batch."""
        self.apart = max(self.apart, relative(found, expected))
        if not self.apart <= self.allowed:
            self.allowed = max(self.allowed, ROUNDINGS * relative(expected.astype(np.float64), exact()))

    def check(self, name: str) -> Json:
        """What a program's JSON says of it."""
        if not self.apart <= self.allowed:
            raise CheckFailed(
                f"{name}: the program that was written computes other outputs than ours, by {self.apart:.1e} of the "
                f"largest (allowed {self.allowed:.0e}); the target is untouched: use weights in place of a program, "
                "and report this"
            )
        return {"difference": self.apart, "allowed": self.allowed}


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest |found - expected| as a share of the largest |expected|; infinite where they cannot be compared."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return np.inf
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return np.inf
    return float(np.abs(found - expected).max() / (np.abs(expected).max() or 1.0))


def describe_comparison(comparison: Mapping[str, Any]) -> str:
    """A sentence for the user on how a program was compared."""
    batches = " and ".join(map(str, comparison["batches"]))
    how = f"opened again and run on batches of {batches}, it differs from ours"
    return f"{how} by {comparison['difference']:.1e} of the largest output (allowed {comparison['allowed']:.0e})"
