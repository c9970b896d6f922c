"""The compiled evaluation step, on one device or several, and what it gives of all examples of a split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...config.network import NetworkConfig
from ...config.trees import Tree
from ...data.batches import Outputs, evaluation_batches, in_order
from ...errors import UserError
from ...models.state import merge
from ...tasks.base import Batch, Evaluation, Task
from ...tasks.can import HasFrozen
from .devices import Devices
from .step import rows_of, with_frozen_arrays

Score = Callable[[Any, Any, dict[str, np.ndarray]], Evaluation]  # as Task.score


class Evaluator:
    """The compiled evaluation step of a network on a task, on all devices or those given; batches may have any size."""

    def __init__(self, config: NetworkConfig, definition: Any, task: Task, devices: Devices | None = None):
        self.config, self.definition, self.task, self.devices = config, definition, task, devices or Devices()
        self.frozen_arrays = self.to_devices(dict(task.frozen_arrays) if task.able(HasFrozen).in_outputs else {})
        compiled = jax.jit(
            lambda parameters, batch, frozen_arrays: with_frozen_arrays(task, frozen_arrays).outputs(
                merge(definition, self.devices.whole_on_each(parameters)), batch
            )
        )
        self.compiled = self.devices.compiled(compiled, batch_at=1)
        self.between: Callable[[], None] = lambda: None  # called after each batch; what it raises ends an evaluation

    def to_devices(self, parameters: Tree) -> Tree:
        """The parameters on the devices, as `Devices.shardings_of` says; their shapes if no devices are there."""
        if not self.devices.target.present:
            return self.devices.shapes(parameters, self.devices.shardings_of(parameters))
        if self.devices.hosts.several:
            return self.devices.put(parameters)
        return jax.device_put(parameters, self.devices.shardings_of(parameters))

    def outputs(self, parameters: Tree, batch: Batch) -> dict[str, np.ndarray]:
        """The task's outputs, of all hosts: batch [B, ...] -> {name: numpy array [B, ...]}, one row an example."""
        check_ids(self.config, batch)
        size = rows_of(batch)
        padding = -size % len(self.devices)
        if padding and not self.devices.hosts.several:
            batch = {k: np.concatenate([x, np.repeat(x[-1:], padding, 0)]) for k, x in batch.items()}
        out = self.compiled(parameters, self.devices.shard_batch(batch), self.frozen_arrays)
        return {k: self.devices.whole(v)[: None if self.devices.hosts.several else size] for k, v in out.items()}

    def measure(self, parameters: Tree, split: Any, batch: int, score: Score | None = None) -> Evaluation:
        """Evaluate parameters on all examples of a split, each once."""
        return (score or self.task.score)(self.config, split, self.outputs_of(parameters, split, batch))

    def outputs_of(self, parameters: Tree, split: Any, batch: int) -> dict[str, np.ndarray]:
        """The task's outputs of all n examples of a split, {name: [n, ...]}, in their order."""
        return in_order([self.outputs_in(parameters, split, batch)])

    def outputs_in(self, parameters: Tree, split: Any, batch: int, some: range | None = None) -> Outputs:
        """The outputs of the examples in some batches of a split, in its order -> ({name: [k, ...]}, k numbers)."""
        parts, order, rows = [], [], self.devices.rows
        size = batch + (-batch % len(self.devices) if rows else 0)
        for examples, indices in evaluation_batches(split, size, rows, some):
            parts.append({k: v[: len(indices)] for k, v in self.outputs(parameters, examples).items()})
            order.append(indices)
            self.devices.hosts.heartbeat()
            self.between()
        return {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}, np.concatenate(order)


def check_ids(config: NetworkConfig, batch: Batch) -> None:
    """Check that ids are inside the network's tables: on a device others would silently read another row."""
    for argument in config.inputs():
        ids = batch.get(argument.name)
        if argument.kind == "ids" and ids is not None and ids.size and not 0 <= ids.min() <= ids.max() < argument.size:
            raise UserError(
                f"{argument.name} has ids from {ids.min()} to {ids.max()}, but the network knows {argument.size}",
                remedy="give those of its vocabulary",
            )
