"""How the program of a network is written for the devices that run it, which a training step chooses.

None of it is a part of the function that a network computes: results differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax.numpy as jnp

from ..config.run import RunConfig
from ..machine.targets import HERE, Target
from .kernels.rounded import rounds_factors

Gather = Callable[[str, Any], Any]  # of the name of a stack and the tree of one of its blocks


@dataclass(frozen=True)
class Lowering:
    """What a network is built with besides its dtypes; as it is by default, programs are for any device.

    GPUs and TPUs are limited by the bytes that they move. On a GPU activations lie row by row, and less of them is
    kept; on a TPU no array is copied to be given another shape.
    """

    platform: str = ""  # cpu, gpu or tpu; empty: any
    capability: tuple[int, int] = (0, 0)  # compute capability of the GPU that it is for; (0, 0): no such GPU
    attention: Literal["plain", "auto", "fused"] = "plain"  # as `attention_kernel` in RunConfig
    remat: Literal["none", "dots", "full"] = "none"  # this and `scan`: as in RunConfig
    scan: bool = False
    rounds: bool = False  # whether the factors of linear layers are rounded to bfloat16, where all else is in float32
    gather: Gather | None = None  # makes the weights of a block whole where they are split, of one engine

    @property
    def tiled(self) -> bool:
        """Whether matrices lie in memory as tiles, so that another shape of the same values is a copy."""
        return self.platform == "tpu"

    @property
    def by_rows(self) -> bool:
        """Whether XLA is told to keep the values of a token together in memory."""
        return self.capability > (0, 0)

    @property
    def recompute(self) -> bool:
        """Whether the backward pass computes an mlp's hidden layer again, from what enters its activation."""
        return self.by_rows and self.remat == "none"

    def within(self, part: str) -> Lowering:
        """That of a network which is a part of another one."""
        if (gather := self.gather) is None:
            return self
        return replace(self, gather=lambda name, tree: gather(f"{part}.{name}", tree))


PLAIN = Lowering()


def of_evaluation(dtype: Any, target: Target = HERE) -> Lowering:
    """How a network that computes in this dtype is lowered wherever it is not trained."""
    return Lowering(rounds=rounds_factors(jnp.dtype(dtype).name, target))


def of_training(run: RunConfig, target: Target = HERE) -> Lowering:
    """How the training step of a run is lowered; of one that splits parameters, without `gather`."""
    rounds, there = rounds_factors(run.compute_dtype, target), (target.platform, target.capability)
    return Lowering(*there, run.attention_kernel, run.remat, run.scan, rounds)
