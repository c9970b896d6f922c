"""One training step and one evaluation step, compiled, on one device or many.

The step is a pure function of (state, batch): all randomness is folded from (seed, step, the
example's place in the global batch), so jit, pmap and accumulation draw the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .config import RunConfig
from .errors import UserError
from .layers import merge
from .optim import Optimizer
from .tasks import Batch, Task

Tree = dict[str, Any]


@partial(jax.tree_util.register_dataclass, data_fields=["step", "parameters", "moments", "ema"], meta_fields=[])
@dataclass
class State:
    """All that training changes. `step` counts updates done; `ema` is None where there is none."""

    step: Array  # int32 []
    parameters: Tree
    moments: Tree
    ema: Tree | None


def example_keys(seed: Array | int, step: Array, places: Array) -> Array:
    """One key for each example: folded from the seed, the step and its place in the global batch."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, places)


class Engine:
    """The compiled steps of a run, and where their arrays live."""

    def __init__(self, run: RunConfig, definition: Any, task: Task, optimizer: Optimizer):
        self.run, self.definition, self.task, self.optimizer = run, definition, task, optimizer
        self.devices = jax.devices()
        self.seed = np.uint32(run.seed)  # an argument of the step, so that runs of other seeds share its program
        per_step = len(self.devices) * run.accumulate
        for name, size in task.batches(run).items():
            if size % per_step:
                raise UserError(f"{name} is not divisible by {len(self.devices)} devices x accumulate {run.accumulate}: choose a multiple of {per_step}")
        mesh = jax.make_mesh((len(self.devices),), ("data",), axis_types=(AxisType.Auto,))
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.sharded = NamedSharding(mesh, PartitionSpec("data"))
        if run.parallel == "pmap":
            self.compiled: Any = jax.pmap(self.train_step, axis_name="data", donate_argnums=0)
        else:
            # Outputs are pinned to the same sharding, so the second step finds the state as the first did.
            self.compiled = jax.jit(self.train_step, donate_argnums=0, out_shardings=self.replicated)
        self._outputs = jax.jit(lambda parameters, batch: task.outputs(merge(definition, parameters), batch))

    # What the host calls.

    def start(self, parameters: Tree) -> State:
        """A state before the first step."""
        moments = self.optimizer.init(parameters)
        ema = jax.tree.map(jnp.copy, parameters) if self.run.ema else None
        return self.place(State(jnp.zeros((), jnp.int32), parameters, moments, ema))

    def place(self, state: State) -> State:
        """A host state on the devices: replicated, or with a leading axis of replicas for pmap."""
        if self.run.parallel != "pmap":
            # may_alias=False: the state is donated, and the arrays given may be the caller's own.
            return jax.device_put(state, self.replicated, may_alias=False)
        n = len(self.devices)
        return jax.device_put(jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), state), self.sharded)

    def gather(self, state: State) -> State:
        """The state without the replicas' axis."""
        return jax.tree.map(lambda x: x[0], state) if self.run.parallel == "pmap" else state

    def train(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """Do one step; the given state is used up. Metrics stay on the device until they are read."""
        if self.run.parallel == "pmap":
            n = len(self.devices)
            batch = {k: x.reshape(n, -1, *x.shape[1:]) for k, x in batch.items()}
            state, metrics = self.compiled(state, batch, np.repeat(self.seed, n))
            return state, {k: v[0] for k, v in metrics.items()}
        return self.compiled(state, jax.device_put(batch, self.sharded), self.seed)

    def outputs(self, parameters: Tree, batch: Batch) -> dict[str, np.ndarray]:
        """The task's per-example outputs for a batch of any size."""
        size = _rows(batch)
        padding = -size % len(self.devices)
        if padding:
            batch = {k: np.concatenate([x, np.repeat(x[-1:], padding, 0)]) for k, x in batch.items()}
        out = self._outputs(parameters, jax.device_put(batch, self.sharded))
        return {k: np.asarray(v)[:size] for k, v in out.items()}

    # What is compiled.

    def train_step(self, state: State, batch: Batch, seed: Array) -> tuple[State, dict[str, Array]]:
        """state, batch, seed -> the next state and {loss, accuracy, lr, *_norm}, all scalars."""
        rows = _rows(batch)
        pmap = self.run.parallel == "pmap"
        places = jnp.arange(rows) + (jax.lax.axis_index("data") * rows if pmap else 0)
        keys = example_keys(seed, state.step, places)
        size = self.task.size(batch)
        if pmap and size is not None:
            size = jax.lax.pmean(size, "data")
        loss, metrics, gradients = self.gradients(state.parameters, batch, keys, size)
        if pmap:
            loss, metrics, gradients = jax.lax.pmean((loss, metrics, gradients), "data")
        updates, moments = self.optimizer.update(gradients, state.moments, state.parameters, state.step)
        parameters = optax.apply_updates(state.parameters, updates)
        ema = state.ema
        if ema is not None:
            ema = optax.incremental_update(parameters, ema, 1 - self.run.ema)
        metrics |= {
            "loss": loss,
            "lr": self.optimizer.rate(state.step),
            "grad_norm": optax.tree.norm(gradients),
            "param_norm": optax.tree.norm(parameters),
            "update_norm": optax.tree.norm(updates),
        }
        return State(state.step + 1, parameters, moments, ema), metrics

    def gradients(self, parameters: Tree, batch: Batch, keys: Array, size: Array | None) -> tuple[Array, dict[str, Array], Tree]:
        """(loss, metrics, gradients), each a mean over the batch, taken in `accumulate` parts.

        `size` is that of the batch where its parts may differ in theirs: each is divided by the mean size of a part.
        """
        parts = self.run.accumulate
        size = size if size is None else size / parts

        def loss(parameters: Tree, batch: Batch, keys: Array) -> tuple[Array, dict[str, Array]]:
            return self.task.loss(merge(self.definition, parameters), batch, keys, size)  # type: ignore[arg-type]  # the task's own

        differentiate = jax.value_and_grad(loss, has_aux=True)
        if parts == 1:
            (value, metrics), gradients = differentiate(parameters, batch, keys)
            return value, metrics, gradients

        # Part a takes rows a, a + parts, ...: where the batch is spread over devices, every part is.
        def cut(x: Array) -> Array:
            return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

        def add(total: Any, part: tuple[Batch, Array]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, differentiate(parameters, *part)), None

        pieces = jax.tree.map(cut, (batch, keys))
        shapes = jax.eval_shape(differentiate, parameters, *jax.tree.map(lambda x: x[0], pieces))
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        (value, metrics), gradients = jax.tree.map(lambda x: x / parts, jax.lax.scan(add, zero, pieces)[0])
        return value, metrics, gradients


def _rows(batch: Batch) -> int:
    """Examples of a batch."""
    return len(next(iter(batch.values())))
