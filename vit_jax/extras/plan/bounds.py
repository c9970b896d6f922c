"""Lower bounds of the time of a step: what its products, its memory and its exchanges take at the published figures.

They are bounds, never predictions: no device reaches all its figures at once, or any of them for a whole step.
Importing this file loads no jax.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...machine.targets import Target, published
from .program import Program


@dataclass(frozen=True)
class Bounds:
    """Seconds of a step that each would take alone; 0: nothing is published of it, or there is none."""

    products: float
    memory: float
    network: float

    @property
    def seconds(self) -> float:
        """No step is shorter; 0: not known."""
        return max(self.products, self.memory, self.network) if self.products and self.memory else 0.0

    @property
    def binds(self) -> str:
        """Which of them is the greatest; empty: not known."""
        found = vars(self)
        return max(found, key=lambda name: found[name]) if self.seconds else ""


def bounds_of(program: Program, target: Target) -> Bounds:
    """The bounds of a program on a target."""
    stated = published(target.kind)
    crossing = sum(each.times * each.crossing(target.a_host) for each in program.collectives)
    return Bounds(
        program.flops / stated.peak if stated.peak else 0.0,
        program.bytes / stated.bandwidth if stated.bandwidth else 0.0,
        max(
            program.sent / stated.link if stated.link else 0.0,
            crossing / stated.network if stated.network else 0.0,
        ),
    )
