"""Histograms of a run's parameters and of their gradients, by a compiled program beside that of the training step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ...config.trees import Tree, flatten
from ...tasks.base import Batch
from .engine import Engine
from .step import TrainState

BINS = 30  # as TensorBoard shows


class Histograms:
    """The histograms of what a step finds, before it is done: its parameters, and the gradients of its batch.

    The gradients are those that the step itself computes, before clipping, of the parameters that train; they are
    computed again, so the step is the same whether histograms are made or not.
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        compiled = jax.jit(self.groups, out_shardings=engine.devices.replicated)
        self.compiled = engine.devices.compiled(compiled, batch_at=1)

    def by(self, engine: Engine) -> Histograms:
        """Those of the step of another stage of the run."""
        return self if engine is self.engine else Histograms(engine)

    def of(self, state: TrainState, batch: Batch) -> dict[str, dict[str, dict[str, Any]]]:
        """The histograms of a step. Bins have equal width; each holds its left end, the last its right end too."""
        return jax.device_get(self.compiled(*self.engine.whole(state, batch)))

    def groups(
        self, state: TrainState, batch: Batch, seed: Array, frozen_arrays: Tree
    ) -> dict[str, dict[str, dict[str, Array]]]:
        """What `of` returns, traced: seed int32 [] -> {"parameters", "gradients": {name: histogram}}."""
        _, _, gradients = self.engine.batch_gradients(state, batch, seed, frozen_arrays)
        trees = {"parameters": self.engine.network(state.parameters), "gradients": gradients}
        return {name: {k: histogram(x) for k, x in flatten(tree).items()} for name, tree in trees.items()}


def histogram(x: Array) -> dict[str, Array]:
    """{"min", "max", "mean", "std": scalars, "counts": int32 [BINS]} of all values of an array."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    low, high = x.min(), x.max()
    edges = low + (high - low) * (jnp.arange(1, BINS) / BINS).astype(x.dtype)
    # One after the other: a comparison with all of them at once would be BINS times as large as the array.
    below = jax.lax.map(lambda edge: jnp.sum(x < edge, dtype=jnp.int32), edges)
    bounds = jnp.concatenate([jnp.zeros(1, jnp.int32), below, jnp.full(1, x.size, jnp.int32)])
    return {"min": low, "max": high, "mean": x.mean(), "std": x.std(), "counts": jnp.diff(bounds)}
