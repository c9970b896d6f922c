"""A network's parameters in a compiled step: made whole of parts (FSDP), and kernels with LoRA's factors.

How what a step computes of all of them, updates, norms and casts, is divided into kernels of a GPU, `Kernels` says.

Where each device holds a part of a parameter, it computes the gradients of its own rows of a batch, in a program of its
own (jax.shard_map). So nothing but parameters is exchanged, by construction: their parts are gathered, and the gradient
of a gathered one, the transpose of that, is summed and scattered. If XLA were left to divide the program of the whole
batch, it would exchange activations wherever it takes them for smaller.

With LoRA kernels are W + alpha/rank A B (Hu et al. 2021, arXiv 2106.09685, section 4.1). Networks know nothing of it: a
step takes gradients of a tree of the kernels as they were given and the factors; `Lora.merge` makes the network's
parameters of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import PartitionSpec

from ...config.groups import adapted_kernels, factor_names, factors
from ...config.run import RunConfig
from ...config.trees import Tree, combine, flatten, partition, unflatten
from ...models.state import initial_values
from .devices import Devices

T = TypeVar("T")
READ = 64  # arrays that one kernel reads; XLA fuses at most 96 operands and results


class Kernels:
    """Kernels for each parameter, as XLA makes them of the plain formulas: best on a CPU."""

    def norm(self, tree: Any) -> Array:
        """The square root of the sum of all squares, []."""
        return optax.tree.norm(tree)

    def factor(self, value: Array | float) -> Callable[[Array], Array | float]:
        """A function of a parameter, or of what belongs to it, that gives what to multiply it with for a number."""
        return lambda x: value.astype(x.dtype) if isinstance(value, Array) else value

    def finished(self, trees: T) -> T:
        """The same arrays. What is computed of them later reads them, and does not compute them again."""
        return trees


class FewKernels(Kernels):
    """A few kernels for all parameters, for GPUs, which take some microseconds to start each.

    Numbers are the same as in the plain form, except that norms are summed in another order.
    """

    def __init__(self, devices: Devices):
        self.devices = devices

    def norm(self, tree: Any) -> Array:
        arrays = jax.tree.leaves(tree)
        if self.devices.fsdp == 1:
            return jnp.sqrt(sum_of_squares(arrays))
        shardings = self.devices.shardings_of(arrays)
        split = [not sharding.is_fully_replicated for sharding in shardings]

        def total(arrays: list[Array]) -> Array:
            """The sum over all devices, of what one of them has."""
            own = sum_of_squares([x for x, is_split in zip(arrays, split, strict=True) if is_split])
            whole = sum_of_squares([x for x, is_split in zip(arrays, split, strict=True) if not is_split])
            return jax.lax.psum(own, "fsdp") + whole

        specs = ([sharding.spec for sharding in shardings],)
        of_all = jax.shard_map(
            total, mesh=self.devices.mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
        )
        return jnp.sqrt(of_all(arrays))

    def factor(self, value: Array | float) -> Callable[[Array], Array | float]:
        # XLA makes one kernel of many that have the same shape and read the same array, which a single number is not.
        # So there is an array of it for each width, and the barrier keeps it one.
        rows: dict[Any, Array] = {}

        def row(x: Array) -> Array:
            key = x.shape[-1:], x.dtype
            if key not in rows:
                rows[key] = jax.lax.optimization_barrier(jnp.full(x.shape[-1:], value, x.dtype))
            return rows[key]

        return row

    def finished(self, trees: T) -> T:
        # XLA would rather compute updates twice than read them again; what they are made of, the old parameters and
        # moments, could then not be overwritten, and would be copied.
        return jax.lax.optimization_barrier(trees)


def sum_of_squares(arrays: list[Array]) -> Array:
    """The sum of the squares of all values, []. XLA fuses each concatenation into its sum, and stores none."""
    some = [arrays[i : i + READ] for i in range(0, len(arrays), READ)]
    sums = [jnp.sum(jnp.square(jnp.concatenate([x.reshape(-1) for x in each]))) for each in some]
    return sum(sums[1:], sums[0]) if sums else jnp.zeros(())


def cast_together(parameters: Tree, dtype: str) -> Tree:
    """The parameters, with the weights of all linear layers of blocks cast by few kernels of a GPU.

    XLA makes one kernel of many that have the same shape and read the same array: here one of ones, which changes no
    number, and which the barrier keeps.
    """
    flat, ones = flatten(parameters), dict[Any, Array]()
    layers = [name.removesuffix("kernel") for name in flat if re.search(r"\bblocks\.\d+\..*\.kernel$", name)]
    for layer in sorted(layers, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(4), name)):
        for name in [name for name in (f"{layer}kernel", f"{layer}bias") if name in flat]:
            x = flat[name]
            key = layer.partition("blocks.")[0], x.shape[-1:]
            if key not in ones:
                ones[key] = jax.lax.optimization_barrier(jnp.ones(x.shape[-1:], x.dtype))
            flat[name] = _times_one(x, ones[key]).astype(dtype)
    return unflatten(flat)


@jax.custom_jvp
def _times_one(x: Array, ones: Array) -> Array:
    return x * ones


@_times_one.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _times_one(*primals), tangents[0]


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
        """The network's parameters, whole but for blocks (see `gather_block`), which remat gathers twice."""
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


class Lora:
    """The kernels that a run with LoRA adapts, and their factors."""

    def __init__(self, run: RunConfig):
        self.scale = run.lora.alpha / run.lora.rank
        self.kernels, self.factors = adapted_kernels(run), factors(run)

    def initial_factors(self, parameters: Tree, key: Array) -> Tree:
        """The factors before the first step, in the dtype of the kernels."""
        dtype = flatten(parameters)[self.kernels[0]].dtype
        return unflatten(initial_values(self.factors, key, dtype))

    def merged_kernels(self, parameters: Tree, shards: Shards | None = None) -> Tree:
        """The kernels W + s A B, of parameters that have W, A and B."""
        flat, merged = flatten(parameters), {}
        for name in self.kernels:
            a, b = (flat[factor] for factor in factor_names(name))
            if shards is not None:
                a, b = (shards.whole(factor, flat[factor]) for factor in factor_names(name))
                a, b = shards.own_part(name, 0, a), shards.own_part(name, 1, b)
            # On a GPU or TPU the default precision would round the product, and with it the weights.
            merged[name] = flat[name] + self.scale * jnp.matmul(a, b, precision="highest")
        return unflatten(merged)

    def merge(self, parameters: Tree, shards: Shards | None = None) -> Tree:
        """The network's parameters, of those with factors; the arguments are those of `merged_kernels`."""
        return combine(partition(parameters, self.factors)[1], self.merged_kernels(parameters, shards))
