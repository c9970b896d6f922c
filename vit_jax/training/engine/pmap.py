"""The step by jax.pmap: each device has a replica of the state, and computes its part of a prepared batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...config.trees import Tree
from ...tasks.base import Batch
from ...weights.checkpoint import SavedState
from .engine import Engine
from .step import TrainState, example_keys, rows_of, with_frozen_arrays


class PmapEngine(Engine):
    """The engine of a run whose field `parallel` is pmap, on one host; arrays of its state are [devices, ...]."""

    def compile(self) -> None:
        self.prepared = jax.jit(self.prepare_and_cut, out_shardings=self.devices.sharded)
        self.compiled = jax.pmap(self.pmap_step, axis_name="data", devices=self.devices.all, donate_argnums=0)

    def prepare_and_cut(self, step: Array, batch: Batch, seed: Array, frozen_arrays: Tree) -> Batch:
        """The batch after `Task.prepare`, cut for the devices: [B, ...] -> {name: [devices, B / devices, ...]}."""
        keys = example_keys(seed, step[0], jnp.arange(rows_of(batch)))
        batch = with_frozen_arrays(self.task, first(frozen_arrays)).prepare(batch, keys)
        return jax.tree.map(lambda x: x.reshape(len(self.devices), -1, *x.shape[1:]), batch)

    def pmap_step(
        self, state: TrainState, batch: Batch, seed: Array, frozen_arrays: Tree
    ) -> tuple[TrainState, dict[str, Array]]:
        """Do `jit_step` on one device, for its part of a prepared batch: seed int32 []."""
        task, rows = with_frozen_arrays(self.task, frozen_arrays), rows_of(batch)
        keys = example_keys(seed, state.step, jnp.arange(rows) + jax.lax.axis_index("data") * rows)
        return self.update(state, *self.mean_gradients(task, state.parameters, batch, keys))

    def train(
        self, state: TrainState, batch: Batch, votes: np.ndarray | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        pieces = self.prepared(state.step, self.devices.shard_batch(batch), self.seed, self.frozen_arrays)
        state, metrics = self.compiled(state, pieces, self.seeds, self.frozen_arrays)
        return state, first(metrics)

    @property
    def seeds(self) -> np.ndarray:
        """The seed for each device."""
        return np.repeat(self.seed, len(self.devices))

    def to_devices(self, tree: Any) -> Any:
        if not self.devices.target.present:
            return self.shapes_on_devices(tree)
        n = len(self.devices)
        replicas = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), tree)
        return jax.device_put(replicas, self.devices.sharded)

    def shapes_on_devices(self, tree: Any) -> Any:
        n = len(self.devices)
        replicas = jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *np.shape(x)), x.dtype), tree)
        return self.devices.shapes(replicas, self.devices.sharded)

    def gather(self, state: TrainState) -> SavedState:
        return super().gather(first(state))

    def trace(self, batch: Batch) -> Any:
        state = self.shapes_on_devices(self.state_shapes())
        batch, frozen_arrays = self.devices.shapes((batch, self.frozen_arrays), self.devices.sharded)
        pieces = jax.eval_shape(self.prepare_and_cut, state.step, batch, self.seed, frozen_arrays)
        arguments = state, pieces, self.seeds, frozen_arrays
        return SimpleNamespace(lower=lambda **_: self.compiled.lower(*arguments))  # its devices say for which platform

    def whole(self, state: TrainState, batch: Batch) -> tuple[TrainState, Batch, Any, Tree]:
        its = jax.device_put(first((state, self.frozen_arrays)), self.devices.replicated)
        return its[0], self.devices.shard_batch(batch), self.seed, its[1]


def first(tree: Any) -> Any:
    """The arrays of the first device."""
    return jax.tree.map(lambda x: x[0], tree)
