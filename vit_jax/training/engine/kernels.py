"""How what a step computes of all parameters, their updates, norms and casts, is divided into kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import PartitionSpec

from ...config.trees import Tree, flatten, unflatten
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
