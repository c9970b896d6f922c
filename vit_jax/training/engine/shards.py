"""Parameters of which each device holds a part (FSDP), made whole where a step computes with them.

Each device computes the gradients of its own rows of a batch, in a program of its own (jax.shard_map). So nothing but
parameters is exchanged, by construction: their parts are gathered, and the gradient of a gathered one, the transpose of
that, is summed and scattered. If XLA were left to divide the program of the whole batch, it would exchange activations
wherever it takes them for smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from ...config.trees import Tree, combine, partition
from ...models.layers import Linear
from ...models.stack import Stack
from .devices import Devices


class Shards:
    """How the parameters of a step are split. In bfloat16 half the bytes are exchanged: weights are cast before they
    are gathered, gradients after they are summed.
    """

    def __init__(self, devices: Devices, shapes: Mapping[str, tuple[int, ...]], half: bool):
        self.devices, self.half = devices, half
        axes = {name: devices.split_axis(shape) for name, shape in shapes.items()}
        self.axes = {name: axis for name, axis in axes.items() if axis is not None}

    def whole(self, name: str, x: Array) -> Array:
        """A parameter, of this device's part of it."""
        return jax.lax.all_gather(x, "fsdp", axis=self.axes[name], tiled=True) if name in self.axes else x

    def own_part(self, name: str, axis: int, x: Array) -> Array:
        """Of an array with as many values along an axis as a parameter has, those of this device's part of that."""
        if self.axes.get(name) != axis:
            return x
        size = x.shape[axis] // self.devices.fsdp
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("fsdp") * size, size, axis)

    def gather(self, network: Any) -> Any:
        """The network, in place: parameters outside of stacks whole, those of a stack to be so when its blocks run.

        Without remat the backward pass has what the forward pass gathered; with it, a block's are gathered again.
        """
        stacks = {path: module for path, module in nnx.iter_modules(network) if isinstance(module, Stack)}
        for path, stack in stacks.items():
            stack.gather = partial(self._gather_block, path=(*path, 0))  # all blocks are split as the first is
        for path, module in nnx.iter_modules(network):
            if not any(path[: len(each)] == each for each in stacks):
                self._gather_module(path, module)
        return network

    def _gather_block(self, block: Any, path: tuple[Any, ...]) -> None:
        for inner, module in nnx.iter_modules(block):
            if self.half and isinstance(module, Linear) and not module.rounded:
                for weights in (module.kernel, module.bias):
                    if weights is not None:
                        weights.set_value(weights[...].astype(jnp.bfloat16))
            self._gather_module((*path, *inner), module)

    def _gather_module(self, path: tuple[Any, ...], module: Any) -> None:
        for attribute, value in vars(module).items():
            if isinstance(value, nnx.Param):
                value.set_value(self.whole(".".join(map(str, (*path, attribute))), value[...]))

    def mean(self, gradients: Tree) -> Tree:
        """The mean over all devices of gradients, of which those of gathered parameters are summed and scattered."""
        split, others = partition(gradients, self.axes)
        split = jax.tree.map(lambda x: x / self.devices.fsdp, jax.lax.pmean(split, "data"))
        return combine(split, jax.lax.pmean(others, self.devices.axes))
