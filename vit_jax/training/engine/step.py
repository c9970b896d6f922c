"""The compiled training step, on one device or several.

It is a pure function. All randomness of training is folded from (seed, step, index of the example in the global
batch), so jit, pmap and gradient accumulation draw the same numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import PartitionSpec

from ...config.run import RunConfig
from ...config.trees import Tree, combine, flatten, partition, unflatten
from ...errors import Field, UserError
from ...files.metrics import RESERVED_METRICS
from ...machine.division import find_division
from ...machine.hosts.group import ALONE, Hosts
from ...machine.numerics import random_key
from ...machine.product_kinds import options
from ...machine.targets import HERE, Target
from ...models.stack import as_chosen, attention_plan
from ...models.state import merge
from ...tasks.base import Batch, Task
from ...weights.checkpoint import State
from .devices import Devices
from .evaluator import rows_of, with_auxiliary
from .kernels import FewKernels, Kernels
from .lora import Lora
from .optim import Optimizer, OptimizerState
from .shards import Shards


@partial(jax.tree_util.register_dataclass, data_fields=["step", "parameters", "moments", "ema"], meta_fields=[])
@dataclass
class TrainState:
    """What a training step changes; trees are nested dicts of arrays.

    Args:
        step: the number of updates done, int32 [].
        parameters: those of the network; with LoRA its kernels as they were given, and beside them the factors.
        moments: of the optimizer, {role: tree}.
        ema: the moving average of the parameters that train, or None.
    """

    step: Array
    parameters: Tree
    moments: Tree
    ema: Tree | None


def example_keys(seed: Array | int, step: Array, indices: Array) -> Array:
    """PRNG keys [B], one per example, folded from the seed, the step and the example's index in the global batch."""
    key = jax.random.fold_in(random_key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, indices)


def check_divisible(sizes: Mapping[str, int], devices: int, accumulate: int) -> None:
    """Raise UserError if a batch size, {name in the message: size}, is no multiple of devices * accumulate."""
    parts = devices * accumulate
    for name, size in sizes.items():
        if size % parts:
            by = f"{devices} devices" + (f" x accumulate {accumulate}" if accumulate > 1 else "")
            raise UserError(Field(name), f"is not divisible by {by}", f"choose a multiple of {parts}")


def check_together(sizes: Mapping[str, int], devices: int, together: int) -> None:
    """Raise UserError if the devices' shares of a batch, {name in the message: size}, cut examples that are mixed."""
    for name, size in sizes.items():
        if size % (devices * together):
            raise UserError(
                f"{name} on {devices} devices is {size // devices} each, but augmentation mixes {together} examples "
                "with each other",
                remedy=f"choose a multiple of {devices * together}",
            )


class Engine:
    """The compiled training step of a run, and its arrays on the devices."""

    def __init__(
        self,
        run: RunConfig,
        definition: Any,
        task: Task,
        optimizer: Optimizer,
        hosts: Hosts = ALONE,
        target: Target = HERE,
        products: str = "",  # as `product_kinds.choose_kind` gives it
    ):
        self.run, self.definition, self.task, self.optimizer = run, definition, task, optimizer
        self.lora = Lora(run) if run.lora.rank else None
        there = find_division(run, hosts.count, target)
        self.devices, self.parts = Devices(there.devices, run.fsdp, hosts, target), there.parts
        self.seed = np.uint32(run.seed)  # an argument of the step, so all seeds share one compiled program
        self.auxiliary = self.to_devices(dict(task.auxiliary))
        self.shards = None
        if run.fsdp > 1:
            self.shards = Shards(self.devices, self.parameter_shapes(), run.compute_dtype == "bfloat16")
        self.kernels = FewKernels(self.devices) if self.devices.target.platform == "gpu" else Kernels()
        self.merged = jax.jit(self.merged_kernels)
        self.compile(products)

    def compile(self, products: str) -> None:
        """Make the programs of the step, which are compiled at their first call."""
        run = self.run
        if run.parallel == "pmap":
            self.prepared = jax.jit(self.prepare_and_cut, out_shardings=self.devices.sharded)
            self.compiled: Any = jax.pmap(self.pmap_step, axis_name="data", devices=self.devices.all, donate_argnums=0)
        else:
            # With fixed shardings of the outputs, the second step does not compile again.
            shardings: Any = self.devices.replicated
            if run.fsdp > 1:
                shardings = (self.devices.shardings_of(self.state_shapes()), self.devices.replicated)
            how = options(products)
            compiled = jax.jit(self.jit_step, donate_argnums=0, out_shardings=shardings, **how)
            self.compiled = self.devices.compiled(compiled, batch_at=1)
            compiled = jax.jit(self.jit_steps, donate_argnums=0, out_shardings=shardings, **how)
            self.compiled_together = self.devices.compiled(compiled, batch_at=1)

    # Called on the host.

    def in_stage(self, run: RunConfig, definition: Any, products: str = "") -> Engine:
        """The step of a stage of the run, in which its network drops at other rates; states and devices are the same.

        Args:
            run: of the stage.
            definition: of its network.
            products: as of the class.
        """
        stage = copy.copy(self)
        vars(stage).pop("attention", None)
        stage.run, stage.definition = run, definition
        stage.compile(products)
        return stage

    def start(self, parameters: Tree) -> TrainState:
        """The state before the first step, on the devices."""
        return self.to_devices(self.initial_state(parameters))

    def initial_state(self, parameters: Tree) -> TrainState:
        """The state before the first step, of the network's parameters."""
        if self.lora:
            parameters = combine(parameters, self.lora.initial_factors(parameters, random_key(self.run.seed)))
        trainable, _ = self.optimizer.partition(parameters)
        step, moments = self.optimizer.init(trainable)
        return TrainState(step, parameters, moments, trainable if self.run.ema else None)

    def network_shapes(self) -> Tree:
        """The shapes of the network's parameters."""
        dtype = np.float64 if self.run.compute_dtype == "float64" else np.float32
        names = self.run.model.shapes().items()
        return unflatten({name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in names})

    def state_shapes(self) -> TrainState:
        """The shapes of a state's arrays."""
        return jax.eval_shape(self.initial_state, self.network_shapes())

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """{dotted name: shape} of a state's parameters."""
        return {name: x.shape for name, x in flatten(self.state_shapes().parameters).items()}

    def put(self, state: TrainState | None) -> TrainState:
        """A state that host 0 has, and the others as None, on the devices of all."""
        if self.devices.hosts.several:
            return self.devices.broadcast(state, self.state_shapes())
        return self.to_devices(state)

    def to_devices(self, tree: Any) -> Any:
        """A copy of a tree on the devices; the caller may go on using the given arrays.

        Args:
            tree: of arrays.

        Returns:
            The tree, divided as `Devices.shardings_of` says, or for pmap with a leading axis of replicas.
        """
        if not self.devices.target.present:
            return self.shapes_on_devices(tree)
        if self.devices.hosts.several:
            return self.devices.put(tree)
        if self.run.parallel != "pmap":
            # The step donates the state. device_put copies numpy arrays, but with several devices it reuses a jax array
            # on the device that has it, even with may_alias=False.
            copied = jax.tree.map(lambda x: jnp.copy(x) if isinstance(x, jax.Array) else x, tree)
            return jax.device_put(copied, self.devices.shardings_of(copied), may_alias=False)
        n = len(self.devices)
        return jax.device_put(
            jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), tree), self.devices.sharded
        )

    def gather(self, state: TrainState) -> State:
        """The state as a checkpoint holds it, on the devices: without replicas, LoRA's factors merged into kernels."""
        if self.run.parallel == "pmap":
            state = jax.tree.map(lambda x: x[0], state)
        if not self.lora:
            return State(state.step, state.parameters, state.moments, state.ema)
        factors, given = partition(state.parameters, self.lora.factors)
        apart = {"kernels": partition(given, self.lora.kernels)[0], "factors": factors}
        parameters, ema = combine(given, self.merged(state.parameters)), None
        if state.ema is not None:
            averages, others = partition(state.ema, self.lora.factors)
            apart["averages"] = averages
            ema = combine(others, self.merged(combine(state.parameters, averages)))
        return State(state.step, parameters, state.moments, ema, apart)

    def restored(self, state: State) -> TrainState:
        """The state of which `gather` made this one, as it was read from a checkpoint."""
        parameters, ema = state.parameters, state.ema
        if self.lora and state.lora:
            parameters = combine(combine(parameters, state.lora["kernels"]), state.lora["factors"])
            if ema is not None:
                ema = combine(partition(ema, self.lora.kernels)[1], state.lora.get("averages", {}))
        return TrainState(state.step, parameters, state.moments, ema)

    def to_host(self, state: TrainState) -> State:
        """`gather`; of several hosts as numpy arrays at the owner, and as None at the others."""
        gathered = self.gather(state)
        return self.devices.to_host(gathered) if self.devices.hosts.several else gathered

    def train(
        self, state: TrainState, batch: Batch, votes: np.ndarray | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """Do one step. The given state is donated.

        Args:
            state: on the devices.
            batch: {name: array [B, ...]}.
            votes: bool [k] of this host, where there are several.

        Returns:
            (the next state, {metric: scalar}), both on the devices. The metric "votes", int32 [k], is 1 where any host
                has one.
        """
        batch = self.devices.shard_batch(batch)
        if self.run.parallel == "pmap":
            pieces = self.prepared(state.step, batch, self.seed, self.auxiliary)
            state, metrics = self.compiled(state, pieces, np.repeat(self.seed, len(self.devices)), self.auxiliary)
            return state, {k: v[0] for k, v in metrics.items()}
        return self.compiled(state, batch, self.seed, self.auxiliary, self.devices.of_each(votes))

    def train_together(
        self, state: TrainState, batches: Sequence[Batch], votes: np.ndarray | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """Do `train` for several batches of the same shapes, one step after the other, by one call; not for pmap.

        Args:
            state: before the first step.
            batches: n.
            votes: of this host, as of `train`.

        Returns:
            (the state after the last step, metrics {name: [n]}).
        """
        batches = self.devices.shard_batch(tuple(batches))
        return self.compiled_together(state, batches, self.seed, self.auxiliary, self.devices.of_each(votes))

    def shapes_on_devices(self, tree: Any) -> Any:
        """The shapes of what `to_devices` makes of a tree of arrays, or of shapes."""
        if self.run.parallel != "pmap":
            return self.devices.shapes(tree, self.devices.shardings_of(tree))
        n = len(self.devices)
        replicas = jax.tree.map(lambda x: jax.ShapeDtypeStruct((n, *np.shape(x)), x.dtype), tree)
        return self.devices.shapes(replicas, self.devices.sharded)

    def trace(self, batch: Batch) -> Any:
        """The training step for a batch of these shapes, as jax.jit(...).trace gives it, without any array."""
        state = self.shapes_on_devices(self.state_shapes())
        batch = self.devices.shapes(batch, self.devices.sharded)
        auxiliary = self.shapes_on_devices(self.auxiliary)
        if self.run.parallel != "pmap":
            return self.compiled.trace(state, batch, self.seed, auxiliary)
        pieces = jax.eval_shape(self.prepare_and_cut, state.step, batch, self.seed, auxiliary)
        return Pmapped(self.compiled, (state, pieces, np.repeat(self.seed, len(self.devices)), auxiliary))

    def whole(self, state: TrainState, batch: Batch) -> tuple[TrainState, Batch, Any, Tree]:
        """The arguments of `batch_gradients`, on the devices, for what `train` is given.

        Args:
            state: of the run.
            batch: as the data gives it.
        """
        auxiliary = self.auxiliary
        if self.run.parallel == "pmap":
            its = jax.tree.map(lambda x: x[0], (state, auxiliary))
            state, auxiliary = jax.device_put(its, self.devices.replicated)
        return state, self.devices.shard_batch(batch), self.seed, auxiliary

    # Compiled.

    def merged_kernels(self, parameters: Tree) -> Tree:
        """The kernels that LoRA adapts, with its factors merged into them, split as all kernels are."""
        kernels = self.lora.merged_kernels(parameters) if self.lora else {}
        if self.run.fsdp > 1:
            kernels = jax.lax.with_sharding_constraint(kernels, self.devices.shardings_of(kernels))
        return kernels

    def jit_steps(
        self, state: TrainState, batches: tuple[Batch, ...], seed: Array, auxiliary: Tree, votes: Array | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """Do `jit_step` for several batches, one after the other.

        Args:
            state: before the first step.
            batches: n, of the same shapes.
            seed: int32 [].
            auxiliary: of the task.
            votes: bool [hosts, k], or None.

        Returns:
            (the last state, metrics {name: [n]}).
        """
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *batches)
        state, metrics = jax.lax.scan(lambda state, batch: self.jit_step(state, batch, seed, auxiliary), state, stacked)
        return state, with_votes(metrics, votes)

    def jit_step(
        self, state: TrainState, batch: Batch, seed: Array, auxiliary: Tree, votes: Array | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        """One step, compiled.

        Args:
            state: on the devices.
            batch: on the devices.
            seed: that of the run.
            auxiliary: the task's auxiliary arrays.
            votes: those of all devices, int32 [devices, k].

        Returns:
            (the next state, {metric: scalar}): loss, the task's metrics, lr, grad_norm, param_norm and update_norm.
        """
        state, metrics = self.update(state, *self.batch_gradients(state, batch, seed, auxiliary))
        return state, with_votes(metrics, votes)

    def batch_gradients(
        self, state: TrainState, batch: Batch, seed: Array, auxiliary: Tree
    ) -> tuple[Array, dict[str, Array], Tree]:
        """What `gradients` returns of a batch as it comes, on all devices.

        Args:
            state: before the step.
            batch: as it comes.
            seed: int32 [].
            auxiliary: of the task.
        """
        task, keys = with_auxiliary(self.task, auxiliary), example_keys(seed, state.step, jnp.arange(rows_of(batch)))
        batch = task.prepare(batch, keys, state.step // self.optimizer.steps_per_epoch)
        if len(self.devices) == 1:
            return self.gradients(task, state.parameters, batch, keys, task.denominator(batch))
        # Each device adds up the gradients of its own parts, so they are exchanged once a step.
        every, its_own = PartitionSpec(), self.devices.sharded.spec
        parameters, gradients = every, every
        if self.shards:  # gradients are split as what they are of
            parameters = self.devices.specs_of(state.parameters)
            gradients = self.devices.specs_of(self.optimizer.partition(state.parameters)[0])
        return jax.shard_map(
            lambda auxiliary, *its: self.mean_gradients(with_auxiliary(self.task, auxiliary), *its),
            mesh=self.devices.mesh,
            in_specs=(every, parameters, its_own, its_own),
            out_specs=(every, every, gradients),
            check_vma=False,  # a compiled loop over parts starts from zeros, which do not vary over devices
        )(auxiliary, state.parameters, batch, keys)

    def prepare_and_cut(self, step: Array, batch: Batch, seed: Array, auxiliary: Tree) -> Batch:
        """The batch after `Task.prepare`, cut for the devices.

        Args:
            step, auxiliary: with a leading axis of replicas.
            batch: {name: [B, ...]}.
            seed: that of the run.

        Returns:
            {name: [devices, B / devices, ...]}.
        """
        keys = example_keys(seed, step[0], jnp.arange(rows_of(batch)))
        task = with_auxiliary(self.task, jax.tree.map(lambda x: x[0], auxiliary))
        batch = task.prepare(batch, keys, step[0] // self.optimizer.steps_per_epoch)
        return jax.tree.map(lambda x: x.reshape(len(self.devices), -1, *x.shape[1:]), batch)

    def pmap_step(
        self, state: TrainState, batch: Batch, seed: Array, auxiliary: Tree
    ) -> tuple[TrainState, dict[str, Array]]:
        """Do `jit_step` on one device, for its part of a prepared batch.

        Args:
            state: of this device.
            batch: its part.
            seed: int32 [].
            auxiliary: of the task.
        """
        task, rows = with_auxiliary(self.task, auxiliary), rows_of(batch)
        keys = example_keys(seed, state.step, jnp.arange(rows) + jax.lax.axis_index("data") * rows)
        return self.update(state, *self.mean_gradients(task, state.parameters, batch, keys))

    def mean_gradients(
        self, task: Task, parameters: Tree, batch: Batch, keys: Array
    ) -> tuple[Array, dict[str, Array], Tree]:
        """What `gradients` returns of a whole batch, of which this device has a part.

        Args:
            task: with its auxiliary arrays.
            parameters: as of a state, of split ones the parts of this device; the gradients are split alike.
            batch: this device's part of it, prepared.
            keys: its part of them, [B].
        """
        denominator = task.denominator(batch)
        if denominator is not None:
            denominator = jax.lax.pmean(denominator, self.devices.axes)
        loss, metrics, gradients = self.gradients(task, parameters, batch, keys, denominator)
        if self.shards:
            return *jax.lax.pmean((loss, metrics), self.devices.axes), self.shards.mean(gradients)
        return jax.lax.pmean((loss, metrics, gradients), self.devices.axes)

    def update(
        self, state: TrainState, loss: Array, metrics: dict[str, Array], gradients: Tree
    ) -> tuple[TrainState, dict[str, Array]]:
        """The state after a step of the optimizer.

        Args:
            state: before it.
            loss: [].
            metrics: {name: []}, the task's.
            gradients: of the parameters that train.

        Returns:
            (the state, all metrics); norms of gradients and updates are over the parameters that train, that of
            parameters over all.

        Raises:
            ValueError: a metric has a name of `RESERVED_METRICS`.
        """
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
        shapes = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in self.run.model.shapes().items()}
        return attention_plan(merge(self.definition, unflatten(shapes)), self.run, self.devices.target)

    def network(self, parameters: Tree) -> Tree:
        """The network's parameters, of those of a state."""
        return self.lora.merge(parameters) if self.lora else parameters

    def averaged(self, trainable: Tree, ema: Tree, step: Array) -> Tree:
        """The average of the parameters that train, with the newest.

        Args:
            trainable: the newest.
            ema: their average before.
            step: int32 [], the steps done: 1, 2, ...
        """
        weight: Any = 1 - self.run.ema  # of the newest
        if self.run.ema_warmup:
            weight = jnp.maximum(weight, 9 / (10 + step.astype(jax.tree.leaves(trainable)[0].dtype)))
        new, old = self.kernels.factor(weight), self.kernels.factor(1 - weight)
        return jax.tree.map(lambda x, average: new(x) * x + old(average) * average, trainable, ema)

    def gradients(
        self, task: Task, parameters: Tree, batch: Batch, keys: Array, denominator: Array | None
    ) -> tuple[Array, dict[str, Array], Tree]:
        """Means over a batch, computed in `parts` of it, one after the other.

        Gradients are of those parameters that train, so the backward pass ends where only others would need it.

        Args:
            task: computes the loss.
            parameters: those of a state.
            batch: prepared, [B, ...].
            keys: PRNG keys [B].
            denominator: that of the batch as `Task.denominator` gives it, or None. Parts may differ in theirs, so each
                is divided by the mean over the parts.

        Returns:
            (loss, metrics, gradients).
        """
        denominator = denominator if denominator is None else denominator / self.parts
        trainable, frozen = self.optimizer.partition(parameters)

        def loss(trainable: Tree, batch: Batch, keys: Array) -> tuple[Array, dict[str, Array]]:
            parameters = combine(frozen, trainable)
            parameters = self.lora.merge(parameters, self.shards) if self.lora else parameters
            network = as_chosen(merge(self.definition, parameters), self.run, self.devices.target.capability)
            network = self.shards.gather(network) if self.shards else network
            return task.loss(network, batch, keys, denominator)

        differentiate = partial(jax.value_and_grad(loss, has_aux=True), trainable)
        (value, metrics), gradients = mean_over_parts(differentiate, batch, keys, self.parts)
        return value, metrics, gradients


@dataclass(frozen=True)
class Pmapped:
    """A function of jax.pmap with its arguments, in place of what jax.jit(...).trace gives."""

    program: Any
    arguments: tuple[Any, ...]

    def lower(self, lowering_platforms: tuple[str, ...] = ()) -> Any:
        """The lowered function; its devices say for which platform."""
        return self.program.lower(*self.arguments)


def mean_over_parts(function: Callable[[Batch, Array], Any], batch: Batch, keys: Array, parts: int) -> Any:
    """The mean of a function over parts of a batch, computed one after the other.

    Args:
        function: of a part and its keys.
        batch: {name: [B, ...]}.
        keys: [B].
        parts: how many; part a has the rows a, a + parts, ...
    """
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


def with_votes(metrics: dict[str, Array], votes: Array | None) -> dict[str, Array]:
    """Metrics with the "votes" of any device, int32 [k], if there are some, int32 [devices, k]."""
    return metrics if votes is None else {**metrics, "votes": jnp.max(votes, axis=0)}
