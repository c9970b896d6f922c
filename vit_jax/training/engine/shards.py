"""Parameters of which each device holds a part (FSDP), made whole where a step computes with them.

Each device computes the gradients of its own rows of a batch, in a program of its own (jax.shard_map). So nothing but
parameters is exchanged, by construction: their parts are gathered, and the gradient of a gathered one, the transpose of
that, is summed and scattered. If XLA were left to divide the program of the whole batch, it would exchange activations
wherever it takes them for smaller.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from ...config.trees import Tree, combine, partition
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

    def gather(self, tree: Tree, path: str = "", half: bool = False) -> Tree:
        """The network's parameters, those outside of stacks whole; `gather_block` is for the others.

        Without remat the backward pass has what the forward pass gathered; with it, a block's are gathered again.
        """
        arrays = {name: x for name, x in sorted(tree.items()) if not isinstance(x, dict)}
        if half and "kernel" in arrays:  # a linear layer
            arrays |= {name: arrays[name].astype(jnp.bfloat16) for name in ("kernel", "bias") if name in arrays}
        parts = {
            name: part if name == "blocks" else self.gather(part, f"{path}{name}.", half)
            for name, part in sorted(tree.items())
            if name not in arrays
        }
        return parts | {name: self.whole(f"{path}{name}", x) for name, x in arrays.items()}

    def gather_block(self, stack: str, tree: Tree) -> Tree:
        """The parameters of a block of a stack, whole: all blocks are split as the first is."""
        return self.gather(tree, f"{stack}.0.", self.half)

    def mean(self, gradients: Tree) -> Tree:
        """The mean over all devices of gradients, of which those of gathered parameters are summed and scattered."""
        split, others = partition(gradients, self.axes)
        split = jax.tree.map(lambda x: x / self.devices.fsdp, jax.lax.pmean(split, "data"))
        return combine(split, jax.lax.pmean(others, self.devices.axes))
