"""The devices of a run, of one host or several, and how its arrays lie on them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ...machine.division import check_groups
from ...machine.hosts import ALONE, Hosts
from ...machine.targets import HERE, Target

# Arrays of fewer numbers stay whole: splitting them saves little, and gathering each takes time.
SMALL = 4096


class Devices:
    """Devices as a mesh: the examples of a batch are shared by all of them.

    Parameters, and what belongs to them, are on each device, or split among several (FSDP; Zhao et al. 2023, arXiv
    2304.11277), of which there are then several groups.
    """

    def __init__(self, count: int | None = None, fsdp: int = 1, hosts: Hosts = ALONE, target: Target = HERE) -> None:
        self.target, self.all, self.fsdp, self.hosts = target, target.devices[:count], fsdp, hosts
        n = len(self.all)
        check_groups(fsdp, n, target)
        axes = {"data": n // fsdp} | ({"fsdp": fsdp} if fsdp > 1 else {})
        kinds = (AxisType.Auto,) * len(axes)
        self.axes = tuple(axes)
        self.mesh = jax.make_mesh(tuple(axes.values()), self.axes, axis_types=kinds, devices=self.all)
        self.replicated = NamedSharding(self.mesh, PartitionSpec())
        self.sharded = NamedSharding(self.mesh, PartitionSpec(self.axes if fsdp > 1 else "data"))

    def __len__(self) -> int:
        return len(self.all)

    @property
    def share_a_cpu(self) -> bool:
        """Whether they are parts of one CPU, with one memory."""
        return len(self) > 1 and self.all[0].platform == "cpu"

    def shardings_of(self, tree: Any) -> Any:
        """The sharding of each array of parameters, moments or averages."""
        return jax.tree.map(lambda x: self._sharding_of(np.shape(x)), tree)

    def share_of(self, tree: Any) -> int:
        """The bytes of each device's part of a tree of parameters, moments or averages, or of their shapes."""
        leaves = jax.tree.leaves(tree)
        return sum(math.prod(self._sharding_of(x.shape).shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)

    def specs_of(self, tree: Any) -> Any:
        """The PartitionSpec of each array of parameters, moments or averages."""
        return jax.tree.map(lambda x: self._sharding_of(np.shape(x)).spec, tree)

    def whole_on_each(self, parameters: Any) -> Any:
        """Parameters in a compiled evaluation: gathered where they are used, so that XLA exchanges no activations."""
        return parameters if self.fsdp == 1 else jax.lax.with_sharding_constraint(parameters, self.replicated)

    def split_axis(self, shape: tuple[int, ...]) -> int | None:
        """The first axis that can be split, since its parts lie in one piece, as they are sent; None: not split."""
        if self.fsdp == 1 or math.prod(shape) < SMALL:
            return None
        return next((axis for axis, length in enumerate(shape) if length % self.fsdp == 0), None)

    def _sharding_of(self, shape: tuple[int, ...]) -> NamedSharding:
        axis = self.split_axis(shape)
        return self.replicated if axis is None else NamedSharding(self.mesh, PartitionSpec(*(None,) * axis, "fsdp"))

    @property
    def rows(self) -> Callable[[int], np.ndarray] | None:
        """A function from the size of a batch to the rows that this host gives, int [k]; None where it gives all."""
        return self._rows if self.hosts.several else None

    def _rows(self, size: int) -> np.ndarray:
        places = self.sharded.addressable_devices_indices_map((size,)).values()
        return np.unique(np.concatenate([np.arange(size)[place] for place in places]))

    def shard_batch(self, batch: Any) -> Any:
        """A batch on the devices, of the rows that this host gives."""
        if not self.hosts.several:
            return jax.device_put(batch, self.sharded)
        here = len(self.mesh.local_devices)

        def put(x: np.ndarray) -> Array:
            whole = (len(x) // here * len(self), *x.shape[1:])
            return jax.make_array_from_process_local_data(self.sharded, np.asarray(x), whole)

        return jax.tree.map(put, batch)

    def of_each(self, values: np.ndarray | None) -> Array | None:
        """Numbers of this host, [k], as int32 [devices, k], which has a row for each device of every host."""
        if values is None:
            return None
        rows = (len(self.mesh.local_devices), len(values))
        there: Array = self.shard_batch(np.broadcast_to(values.astype(np.int32), rows))
        return there

    def compiled(self, program: Any, batch_at: int) -> Any:
        """A jitted function, which with several hosts first runs when all of them have compiled it for its batch.

        They may take differently long, and on a CPU the first exchange of data fails where one is 30 s late.
        """
        if not self.hosts.several:
            return program
        programs: dict[Any, Any] = {}

        def run(*arguments: Any) -> Any:
            shapes = tuple(x.shape for x in jax.tree.leaves(arguments[batch_at]))
            if shapes not in programs:
                programs[shapes] = program.lower(*arguments).compile()
                self.hosts.barrier()
            return programs[shapes](*arguments)

        return run

    def apart(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which arrays are made in the memory of the host, if none of the devices is to hold them all."""
        if self.fsdp > 1 and self.all[0].platform != "cpu":
            with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS leaves the CPU out
                return jax.default_device(jax.local_devices(backend="cpu")[0])
        return contextlib.nullcontext()

    def shapes(self, tree: Any, shardings: Any) -> Any:
        """The shapes of a tree of arrays, or of shapes, with the shardings that arrays lying so would have."""

        def shape(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=sharding)

        if isinstance(shardings, NamedSharding):
            return jax.tree.map(lambda x: shape(x, shardings), tree)
        return jax.tree.map(shape, tree, shardings)

    def put(self, tree: Any) -> Any:
        """A tree of numpy arrays that all hosts have on the devices, as `shardings_of` says."""
        return jax.tree.map(
            lambda x, sharding: jax.make_array_from_callback(np.shape(x), sharding, lambda index: np.asarray(x)[index]),
            tree,
            self.shardings_of(tree),
        )

    def broadcast(self, tree: Any | None, shapes: Any) -> Any:
        """A tree that host 0 has, on the devices of all as `shardings_of` says, to the bit; arrays go one at a time."""
        self.hosts.barrier()
        leaves, structure = jax.tree.flatten(shapes)
        given = leaves if tree is None else jax.tree.leaves(tree)
        return jax.tree.unflatten(structure, [self._broadcast(x, leaf) for x, leaf in zip(given, leaves, strict=True)])

    def _broadcast(self, x: Any, leaf: jax.ShapeDtypeStruct) -> Array:
        array = np.ascontiguousarray(x) if self.hosts.owner else np.zeros(leaf.shape, leaf.dtype)
        # Integers, because a sum with zeros would turn -0.0 into 0.0.
        sent = multihost_utils.broadcast_one_to_all(array.reshape(-1).view(np.uint8))
        return self.put(np.asarray(sent).view(leaf.dtype).reshape(leaf.shape))

    def to_host(self, tree: Any) -> Any:
        """Arrays on the devices as numpy at host 0, None at the others; one at a time: no device holds them all."""
        return jax.tree.map(self._to_host, tree)

    def _to_host(self, x: Array) -> np.ndarray | None:
        if not x.is_fully_replicated:
            x = jax.jit(lambda x: x, out_shardings=self.replicated)(x)
        return np.array(x.addressable_data(0)) if self.hosts.owner else None

    def whole(self, rows: Array) -> np.ndarray:
        """All rows of an array that is shared like a batch, at every host."""
        return np.asarray(multihost_utils.process_allgather(rows, tiled=True) if self.hosts.several else rows)

    def most(self, values: np.ndarray) -> np.ndarray:
        """The largest value that any host has, for each of these."""
        return np.max(multihost_utils.process_allgather(values), axis=0) if self.hosts.several else values
