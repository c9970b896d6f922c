"""A run's compiled training step, and its arrays on the devices; beside it a program for histograms."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...config.network import NetworkConfig
from ...config.run import RunConfig
from ...config.trees import Tree, combine, flatten, partition
from ...models.lowering import options
from ...tasks.base import Batch
from ...weights.checkpoint import SavedState
from .step import Step, TrainState


@dataclass(eq=False)
class Engine(Step):
    """The compiled training step of a run, and its arrays on the devices."""

    def __post_init__(self, run: RunConfig) -> None:
        super().__post_init__(run)
        self.frozen_arrays = self.to_devices(dict(self.task.frozen_arrays))
        self.merged = jax.jit(self.merged_kernels)
        self.compile()

    def compile(self) -> None:
        """Make the programs of the step, which are compiled at their first call."""
        # With fixed shardings of the outputs, the second step does not compile again.
        shardings: Any = self.devices.replicated
        if self.devices.fsdp > 1:
            shardings = (self.devices.shardings_of(self.state_shapes()), self.devices.replicated)
        how = {} if self.hosts.several else options(self.compute_dtype, self.target)  # hosts would have to agree
        compiled = jax.jit(self.jit_step, donate_argnums=0, out_shardings=shardings, **how)
        self.compiled = self.devices.compiled(compiled, batch_at=1)
        compiled = jax.jit(self.jit_steps, donate_argnums=0, out_shardings=shardings, **how)
        self.compiled_together = self.devices.compiled(compiled, batch_at=1)

    def in_stage(self, model: NetworkConfig, define: Callable[..., Any]) -> Engine:
        """The step of a stage of the run, whose network drops at other rates; states and devices are the same."""
        stage = copy.copy(self)
        for of_network in ("attention", "compiled_histograms"):
            vars(stage).pop(of_network, None)
        stage.model, stage.define, stage.definition = model, define, define(lowering=self.lowering)
        stage.compile()
        return stage

    def start(self, parameters: Tree) -> TrainState:
        """The state before the first step, on the devices."""
        return self.to_devices(self.initial_state(parameters))

    def put(self, state: TrainState | None) -> TrainState:
        """A state that host 0 has, and the others as None, on the devices of all."""
        if self.devices.hosts.several:
            return self.devices.broadcast(state, self.state_shapes())
        return self.to_devices(state)

    def to_devices(self, tree: Any) -> Any:
        """A copy of a tree on the devices; the caller may go on using the given arrays."""
        if not self.devices.target.present:
            return self.shapes_on_devices(tree)
        if self.devices.hosts.several:
            return self.devices.put(tree)
        # The step donates the state. device_put copies numpy arrays, but with several devices it reuses a jax array on
        # the device that has it, even with may_alias=False.
        copied = jax.tree.map(lambda x: jnp.copy(x) if isinstance(x, jax.Array) else x, tree)
        return jax.device_put(copied, self.devices.shardings_of(copied), may_alias=False)

    def gather(self, state: TrainState) -> SavedState:
        """The state as a checkpoint holds it, on the devices: without replicas, LoRA's factors merged into kernels."""
        if not self.lora:
            return SavedState(state.step, state.parameters, state.moments, state.ema)
        factors, given = partition(state.parameters, self.lora.factors)
        apart = {"kernels": partition(given, self.lora.kernels)[0], "factors": factors}
        parameters, ema = combine(given, self.merged(state.parameters)), None
        if state.ema is not None:
            averages, others = partition(state.ema, self.lora.factors)
            apart["averages"] = averages
            ema = combine(others, self.merged(combine(state.parameters, averages)))
        return SavedState(state.step, parameters, state.moments, ema, apart)

    def restored(self, state: SavedState) -> TrainState:
        """The state of which `gather` made this one, as it was read from a checkpoint."""
        parameters, ema = state.parameters, state.ema
        if self.lora and state.lora:
            parameters = combine(combine(parameters, state.lora["kernels"]), state.lora["factors"])
            if ema is not None:
                ema = combine(partition(ema, self.lora.kernels)[1], state.lora.get("averages", {}))
        return TrainState(state.step, parameters, state.moments, ema)

    def to_host(self, state: TrainState) -> SavedState:
        """`gather`; of several hosts as numpy arrays at the owner, and as None at the others."""
        gathered = self.gather(state)
        return self.devices.to_host(gathered) if self.devices.hosts.several else gathered

    def train(
        self, state: TrainState, batch: Batch, votes: np.ndarray | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """Do one step. The given state is donated. Shapes: batch [B, ...], votes bool [k]."""
        batch = self.devices.shard_batch(batch)
        return self.compiled(state, batch, self.seed, self.frozen_arrays, self.devices.of_each(votes))

    def train_together(
        self, state: TrainState, batches: Sequence[Batch], votes: np.ndarray | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """`train` for several batches of equal shapes by one call -> (last state, {metric: [n]})."""
        batches = self.devices.shard_batch(tuple(batches))
        return self.compiled_together(state, batches, self.seed, self.frozen_arrays, self.devices.of_each(votes))

    def shapes_on_devices(self, tree: Any) -> Any:
        """The shapes of what `to_devices` makes of a tree of arrays, or of shapes."""
        return self.devices.shapes(tree, self.devices.shardings_of(tree))

    def trace(self, batch: Batch) -> Any:
        """The training step for a batch of these shapes, as jax.jit(...).trace gives it, without any array."""
        state = self.shapes_on_devices(self.state_shapes())
        batch = self.devices.shapes(batch, self.devices.sharded)
        return self.compiled.trace(state, batch, self.seed, self.shapes_on_devices(self.frozen_arrays))

    def histograms(self, state: TrainState, batch: Batch) -> dict[str, dict[str, dict[str, Any]]]:
        """{"parameters", "gradients": {name: histogram}} of what a step finds, before it is done.

        The gradients of its batch are those that the step itself computes, before clipping, of the parameters that
        train; they are computed again, so the step is the same whether histograms are made or not.
        """
        return jax.device_get(self.compiled_histograms(*self.gradient_arguments(state, batch)))

    @functools.cached_property
    def compiled_histograms(self) -> Any:
        """The program of `histograms`, beside that of the step."""

        def groups(state: TrainState, *rest: Any) -> dict[str, dict[str, dict[str, Array]]]:
            _, _, gradients = self.batch_gradients(state, *rest)
            trees = {"parameters": self.network(state.parameters), "gradients": gradients}
            return {name: {k: histogram(x) for k, x in flatten(tree).items()} for name, tree in trees.items()}

        return self.devices.compiled(jax.jit(groups, out_shardings=self.devices.replicated), batch_at=1)

    def gradient_arguments(self, state: TrainState, batch: Batch) -> tuple[TrainState, Batch, Any, Tree]:
        """The arguments of `batch_gradients`, on the devices, for what `train` is given."""
        return state, self.devices.shard_batch(batch), self.seed, self.frozen_arrays


BINS = 30  # as TensorBoard shows


def histogram(x: Array) -> dict[str, Array]:
    """{"min", "max", "mean", "std": scalars, "counts": int32 [BINS]} of all values of an array.

    Bins have equal width; each holds its left end, the last its right end too.
    """
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    low, high = x.min(), x.max()
    edges = low + (high - low) * (jnp.arange(1, BINS) / BINS).astype(x.dtype)
    # One after the other: a comparison with all of them at once would be BINS times as large as the array.
    below = jax.lax.map(lambda edge: jnp.sum(x < edge, dtype=jnp.int32), edges)
    bounds = jnp.concatenate([jnp.zeros(1, jnp.int32), below, jnp.full(1, x.size, jnp.int32)])
    return {"min": low, "max": high, "mean": x.mean(), "std": x.std(), "counts": jnp.diff(bounds)}
