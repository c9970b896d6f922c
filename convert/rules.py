"""Rows as bijections, and the engine that applies them.

A dialect is a table of rows. A row says that these tensors of a file are those parameters of ours,
through a chain of operations; it reads both ways, and no code has a direction. Operations move
values and never compute any, so a round trip is exact to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from vit_jax.config import nearest
from vit_jax.errors import UserError

Shape = tuple[int, ...]
Arrays = list[np.ndarray]
Side = tuple[Sequence[str], Sequence[str], Callable[[list[np.ndarray]], list[np.ndarray]]]  # names taken, names made, how


class Operation(Protocol):
    """One step between the tensors of a file and ours: a bijection on lists of arrays."""

    def read(self, arrays: Arrays) -> Arrays: ...  # file -> ours

    def write(self, arrays: Arrays) -> Arrays: ...  # ours -> file


@dataclass(frozen=True)
class Order:
    """The axes of one tensor, in the file's order and in ours: Order("d c p q", "(p q c) d", c=3, p=16, q=16).

    Axes in parentheses are one axis, the last running fastest; 1 is an axis of one entry, and may be
    on one side only. This is transpose, permute, reshape and squeeze. `sizes` are those of axes that
    are joined on either side, but for one of each pair of parentheses.
    """

    theirs: str
    ours: str
    sizes: Mapping[str, int] = field(default_factory=dict)

    def read(self, arrays: Arrays) -> Arrays:
        return [rearrange(array, self.theirs, self.ours, self.sizes) for array in arrays]

    def write(self, arrays: Arrays) -> Arrays:
        return [rearrange(array, self.ours, self.theirs, self.sizes) for array in arrays]


TRANSPOSE = Order("o i", "i o")


@dataclass(frozen=True)
class Row:
    """These names of a file are those names of ours, through operations named in reading order.

    `shapes` are those of our parameters; the file's follow from them.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]
    operations: tuple[Operation, ...] = ()

    def read(self, arrays: Arrays) -> Arrays:
        for operation in self.operations:
            arrays = operation.read(arrays)
        return arrays

    def write(self, arrays: Arrays) -> Arrays:
        for operation in reversed(self.operations):
            arrays = operation.write(arrays)
        return arrays


def row(theirs: str, ours: str, shape: Shape, *operations: Operation) -> Row:
    """A row of one tensor."""
    return Row((theirs,), (ours,), (tuple(shape),), operations)


def read(rows: Sequence[Row], tensors: Mapping[str, np.ndarray], what: str = "tensors") -> dict[str, np.ndarray]:
    """Our parameters {dotted name: array} from the tensors of a file {name: array}.

    Every tensor must be claimed by exactly one row and have the shape that the row says. Raises
    UserError listing all that are missing, unclaimed or misshapen; `what` names the file in it.
    """
    check(file_shapes(rows), tensors, what)
    return _apply(rows, tensors, lambda r: (r.theirs, r.ours, r.read))


def write(rows: Sequence[Row], parameters: Mapping[str, np.ndarray], what: str = "parameters") -> dict[str, np.ndarray]:
    """The tensors of a file {name: array} from our parameters {dotted name: array}; the reverse of `read`."""
    check(our_shapes(rows), parameters, what)
    return _apply(rows, parameters, lambda r: (r.ours, r.theirs, r.write))


def our_shapes(rows: Iterable[Row]) -> dict[str, Shape]:
    """{dotted name: shape} of all parameters that rows make. Raises ValueError where two make the same."""
    return _unique((name, shape) for r in rows for name, shape in zip(r.ours, r.shapes, strict=True))


def file_shapes(rows: Iterable[Row]) -> dict[str, Shape]:
    """{name: shape} of all tensors that rows claim, by operations on arrays that hold one value and no memory."""
    return _unique(
        (name, array.shape)
        for r in rows
        for name, array in zip(r.theirs, r.write([np.broadcast_to(np.uint8(0), shape) for shape in r.shapes]), strict=True)
    )


def check(expected: Mapping[str, Shape], given: Mapping[str, np.ndarray], what: str) -> None:
    """Raise UserError, one sentence with all names at fault, unless names and shapes are as expected."""
    missing = [name for name in expected if name not in given]
    unclaimed = [name for name in given if name not in expected]
    misshapen = [
        f"{name} {list(given[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in given and tuple(given[name].shape) != tuple(shape)
    ]
    faults = {"missing": missing, "unclaimed": unclaimed, "misshapen": misshapen}
    if any(faults.values()):
        told = "; ".join(f"{fault} ({len(names)}): {', '.join(names)}" for fault, names in faults.items() if names)
        hint = nearest(unclaimed[0], missing) if missing and unclaimed else ""
        raise UserError(f"{what} do not fit this network: {told}{hint}; give those of a network with the same config")


def _apply(rows: Iterable[Row], tensors: Mapping[str, np.ndarray], side: Callable[[Row], Side]) -> dict[str, np.ndarray]:
    done: dict[str, np.ndarray] = {}
    for r in rows:
        source, target, operate = side(r)
        arrays = operate([np.asarray(tensors[name]) for name in source])
        done.update(zip(target, (np.ascontiguousarray(a) for a in arrays), strict=True))
    return done


def _unique(pairs: Iterable[tuple[str, Shape]]) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name, shape in pairs:
        if name in shapes:
            raise ValueError(f"{name} is claimed by two rows")
        shapes[name] = tuple(shape)
    return shapes


def rearrange(array: np.ndarray, before: str, after: str, sizes: Mapping[str, int]) -> np.ndarray:
    """An array whose axes are `before` as one whose axes are `after`, in einops' notation."""
    groups = _groups(before)
    if array.ndim != len(groups):
        raise ValueError(f"{before!r} does not describe an array {list(array.shape)}")
    known = dict(sizes)
    for group, length in zip(groups, array.shape, strict=True):
        unknown = [axis for axis in group if axis not in known]
        if len(unknown) > 1:
            raise ValueError(f"{before!r}: of {' '.join(unknown)} only one can follow from an axis of {length}")
        rest = int(np.prod([known[axis] for axis in group if axis in known], dtype=int))
        if unknown:
            known[unknown[0]] = length // rest
    axes, wanted = ([axis for group in _groups(side) for axis in group] for side in (before, after))
    flat = array.reshape([known[axis] for axis in axes])  # fails where sizes do not multiply to an axis
    flat = flat.transpose([axes.index(axis) for axis in wanted])
    return flat.reshape([int(np.prod([known[axis] for axis in group], dtype=int)) for group in _groups(after)])


def _groups(pattern: str) -> list[list[str]]:
    """"(p q c) d 1" as [["p", "q", "c"], ["d"], []]: an axis of one entry joins none."""
    return [[a for a in part.strip("()").split() if a != "1"] for part in re.findall(r"\([^()]*\)|\S+", pattern)]
