"""The training step, on one device or several.

It is a pure function. All randomness of training is folded from (seed, step, index of the example in the global
batch), so jit, pmap and gradient accumulation draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from jax.sharding import PartitionSpec

from ...config.network import NetworkConfig
from ...config.run import RunConfig
from ...config.trees import Tree, combine, flatten, unflatten
from ...files.metrics import RESERVED_METRICS
from ...machine.division import find_division
from ...machine.hosts import ALONE, Hosts
from ...machine.numerics import random_key
from ...machine.targets import HERE, Target
from ...models.attention import Attention, AttentionPool, why_plain
from ...models.lowering import Lowering, of_training
from ...models.state import merge
from ...tasks.base import Batch, Task
from ...tasks.can import Counts
from .devices import Devices
from .optim import Optimizer, OptimizerState
from .parameters import FewKernels, Kernels, Lora, Shards, cast_together


@partial(jax.tree_util.register_dataclass, data_fields=["step", "parameters", "moments", "ema"], meta_fields=[])
@dataclass
class TrainState:
    """What a training step changes; trees are nested dicts of arrays. Shapes: step int32 []."""

    step: Array
    parameters: Tree
    moments: Tree
    ema: Tree | None


def example_keys(seed: Array | int, step: Array, indices: Array) -> Array:
    """PRNG keys [B], one per example, folded from the seed, the step and the example's index in the global batch."""
    key = jax.random.fold_in(random_key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, indices)


@dataclass(eq=False)
class Step:
    """A training step as a pure function of state, batch and seed; `define` gives the network for a `lowering`."""

    run: InitVar[RunConfig]
    define: Callable[..., Any]
    task: Task
    optimizer: Optimizer
    hosts: Hosts = ALONE
    target: Target = HERE

    def __post_init__(self, run: RunConfig) -> None:
        self.model, self.compute_dtype = run.model, run.compute_dtype
        self.seed = np.uint32(run.seed)  # an argument of the step, so all seeds share one compiled program
        self.ema, self.ema_warmup = run.ema, run.ema_warmup
        self.lora = Lora(run) if run.lora.rank else None
        there = find_division(run, self.hosts.count, self.target)
        self.devices, self.parts = Devices(there.devices, run.fsdp, self.hosts, self.target), there.parts
        self.lowering, self.shards = of_training(run, self.target), None
        if run.fsdp > 1:
            half = run.compute_dtype == "bfloat16" and not self.lowering.rounds
            parameters = flatten(self.state_shapes().parameters)
            self.shards = Shards(self.devices, {name: x.shape for name, x in parameters.items()}, half)
            self.lowering = replace(self.lowering, gather=self.shards.gather_block)
        self.definition = self.define(lowering=self.lowering)
        self.kernels = FewKernels(self.devices) if self.devices.target.platform == "gpu" else Kernels()

    def initial_state(self, parameters: Tree) -> TrainState:
        """The state before the first step, of the network's parameters."""
        if self.lora:
            parameters = combine(parameters, self.lora.initial_factors(parameters, random_key(int(self.seed))))
        trainable, _ = self.optimizer.partition(parameters)
        step, moments = self.optimizer.init(trainable)
        return TrainState(step, parameters, moments, trainable if self.ema else None)

    def network_shapes(self) -> Tree:
        """The shapes of the network's parameters."""
        dtype = np.float64 if self.compute_dtype == "float64" else np.float32
        names = self.model.shapes().items()
        return unflatten({name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in names})

    def state_shapes(self) -> TrainState:
        """The shapes of a state's arrays."""
        return jax.eval_shape(self.initial_state, self.network_shapes())

    def merged_kernels(self, parameters: Tree) -> Tree:
        """The kernels that LoRA adapts, with its factors merged into them, split as all kernels are."""
        kernels = self.lora.merged_kernels(parameters) if self.lora else {}
        if self.devices.fsdp > 1:
            kernels = jax.lax.with_sharding_constraint(kernels, self.devices.shardings_of(kernels))
        return kernels

    def jit_steps(
        self,
        state: TrainState,
        batches: tuple[Batch, ...],
        seed: Array,
        frozen_arrays: Tree,
        votes: Array | None = None,
    ) -> tuple[TrainState, dict[str, Array]]:
        """`jit_step` for several batches: seed int32 [], votes int32 [devices, k] -> (last state, {metric: [n]})."""
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *batches)
        state, metrics = jax.lax.scan(
            lambda state, batch: self.jit_step(state, batch, seed, frozen_arrays), state, stacked
        )
        return state, with_votes(metrics, votes)

    def jit_step(
        self, state: TrainState, batch: Batch, seed: Array, frozen_arrays: Tree, votes: Array | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """One step, compiled: votes int32 [devices, k]."""
        state, metrics = self.update(state, *self.batch_gradients(state, batch, seed, frozen_arrays))
        return state, with_votes(metrics, votes)

    def batch_gradients(
        self, state: TrainState, batch: Batch, seed: Array, frozen_arrays: Tree
    ) -> tuple[Array, dict[str, Array], Tree]:
        """What `gradients` returns of a batch as it comes, on all devices: seed int32 []."""
        task, keys = (
            with_frozen_arrays(self.task, frozen_arrays),
            example_keys(seed, state.step, jnp.arange(rows_of(batch))),
        )
        batch = task.prepare(batch, keys)
        if len(self.devices) == 1:
            return self.gradients(task, state.parameters, batch, keys, task.able(Counts).denominator(batch))
        # Each device adds up the gradients of its own parts, so they are exchanged once a step.
        every, its_own = PartitionSpec(), self.devices.sharded.spec
        parameters, gradients = every, every
        if self.shards:  # gradients are split as what they are of
            parameters = self.devices.specs_of(state.parameters)
            gradients = self.devices.specs_of(self.optimizer.partition(state.parameters)[0])
        return jax.shard_map(
            lambda frozen_arrays, *its: self.mean_gradients(with_frozen_arrays(self.task, frozen_arrays), *its),
            mesh=self.devices.mesh,
            in_specs=(every, parameters, its_own, its_own),
            out_specs=(every, every, gradients),
            check_vma=False,  # a compiled loop over parts starts from zeros, which do not vary over devices
        )(frozen_arrays, state.parameters, batch, keys)

    def mean_gradients(
        self, task: Task, parameters: Tree, batch: Batch, keys: Array
    ) -> tuple[Array, dict[str, Array], Tree]:
        """What `gradients` returns of a whole batch, of which this device has a part: keys [B]."""
        denominator = task.able(Counts).denominator(batch)
        if denominator is not None:
            denominator = jax.lax.pmean(denominator, self.devices.axes)
        loss, metrics, gradients = self.gradients(task, parameters, batch, keys, denominator)
        if self.shards:
            return *jax.lax.pmean((loss, metrics), self.devices.axes), self.shards.mean(gradients)
        return jax.lax.pmean((loss, metrics, gradients), self.devices.axes)

    def update(
        self, state: TrainState, loss: Array, metrics: dict[str, Array], gradients: Tree
    ) -> tuple[TrainState, dict[str, Array]]:
        """The state after a step of the optimizer."""
        trainable, frozen = self.optimizer.partition(state.parameters)
        before = OptimizerState(state.step, state.moments)
        updates, (step, moments) = self.optimizer.update(gradients, before, trainable, self.kernels)
        trainable, ema = optax.apply_updates(trainable, updates), state.ema
        if ema is not None:
            ema = self.averaged(trainable, ema, step)
        updates, trainable, ema = self.kernels.finished((updates, trainable, ema))
        parameters = combine(frozen, trainable)
        if taken := sorted(metrics.keys() & RESERVED_METRICS):
            raise ValueError(
                f"a task's metric is called {taken[0]}, which a row of metrics has already: give it another name"
            )
        metrics |= {
            "loss": loss,
            "lr": self.optimizer.learning_rate(state.step),
            "grad_norm": self.kernels.norm(gradients),
            "param_norm": self.kernels.norm(self.network(parameters)),
            "update_norm": self.kernels.norm(updates),
        }
        return TrainState(step, parameters, moments, ema), metrics

    @cached_property
    def attention(self) -> tuple[bool, str]:
        """As `attention_plan` gives it."""
        shapes = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in self.model.shapes().items()}
        network = merge(self.definition, unflatten(shapes))
        return attention_plan(network, self.model, self.compute_dtype, self.lowering)

    def network(self, parameters: Tree) -> Tree:
        """The network's parameters, of those of a state."""
        return self.lora.merge(parameters) if self.lora else parameters

    def averaged(self, trainable: Tree, ema: Tree, step: Array) -> Tree:
        """The average of the parameters that train, with the newest: step int32 []."""
        weight: Any = 1 - self.ema  # of the newest
        if self.ema_warmup:
            weight = jnp.maximum(weight, 9 / (10 + step.astype(jax.tree.leaves(trainable)[0].dtype)))
        new, old = self.kernels.factor(weight), self.kernels.factor(1 - weight)
        return jax.tree.map(lambda x, average: new(x) * x + old(average) * average, trainable, ema)

    def gradients(
        self, task: Task, parameters: Tree, batch: Batch, keys: Array, denominator: Array | None
    ) -> tuple[Array, dict[str, Array], Tree]:
        """Means over a batch, computed in `parts` of it, one after the other: batch [B, ...], keys PRNG keys [B] ->
        (loss, metrics, gradients).

        Gradients are of those parameters that train, so the backward pass ends where only others would need it.
        """
        denominator = denominator if denominator is None else denominator / self.parts
        trainable, frozen = self.optimizer.partition(parameters)

        def loss(trainable: Tree, batch: Batch, keys: Array) -> tuple[Array, dict[str, Array]]:
            parameters = combine(frozen, trainable)
            parameters = self.lora.merge(parameters, self.shards) if self.lora else parameters
            if self.lowering.by_rows and self.compute_dtype == "bfloat16":
                parameters = cast_together(parameters, self.compute_dtype)
            parameters = self.shards.gather(parameters) if self.shards else parameters
            return task.loss(merge(self.definition, parameters), batch, keys, denominator)

        differentiate = partial(jax.value_and_grad(loss, has_aux=True), trainable)
        (value, metrics), gradients = mean_over_microbatches(differentiate, batch, keys, self.parts)
        return value, metrics, gradients


def mean_over_microbatches(function: Callable[[Batch, Array], Any], batch: Batch, keys: Array, parts: int) -> Any:
    """The mean of a function over parts of a batch, computed one after the other: batch [B, ...], keys [B]."""
    if parts == 1:
        return function(batch, keys)

    def cut(x: Array) -> Array:
        return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

    def add(total: Any, part: tuple[Batch, Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*part)), None

    pieces = jax.tree.map(cut, (batch, keys))
    sums = jax.eval_shape(function, *jax.tree.map(lambda x: x[0], pieces))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sums)
    return jax.tree.map(lambda x: x / parts, jax.lax.scan(add, zero, pieces)[0])


def attention_plan(network: Any, config: NetworkConfig, compute_dtype: str, lowering: Lowering) -> tuple[bool, str]:
    """How a training step computes attention. Returns (whether some of it is fused, a sentence on that which is not:
    empty if there is none, if it was not asked for, and of a CPU where nobody expects it).
    """
    found = [module for _, module in nnx.iter_modules(network) if isinstance(module, Attention)]
    dtypes = ["float32" if isinstance(each, AttentionPool) else compute_dtype for each in found]
    reasons = [why for why in map(why_plain, found, dtypes) if why]
    fused = len(reasons) < len(found)
    if lowering.attention == "plain" or (lowering.attention == "auto" and lowering.platform == "cpu"):
        return fused, ""
    if reasons:
        some = f" in {len(reasons)} of {len(found)} layers" if fused else ""
        return fused, f"attention is plain{some}: {' or '.join(dict.fromkeys(reasons))}"
    padded = fused and any(argument.padding for argument in config.inputs())
    return fused, "attention is plain where padding is masked" if padded else ""


def with_votes(metrics: dict[str, Array], votes: Array | None) -> dict[str, Array]:
    """Metrics with the "votes" of any device, int32 [k], if there are some, int32 [devices, k]."""
    return metrics if votes is None else {**metrics, "votes": jnp.max(votes, axis=0)}


def with_frozen_arrays(task: Task, frozen_arrays: Mapping[str, Any]) -> Task:
    """The task with the auxiliary arrays that a compiled step was given as an argument."""
    return replace(task, frozen_arrays=frozen_arrays) if frozen_arrays else task


def rows_of(batch: Batch) -> int:
    """The number of examples in a batch."""
    return len(next(iter(batch.values())))
