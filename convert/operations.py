"""Operations between a file's tensors and our parameters, which move values and never compute any.

Each can be undone, so the same one reads a file and writes one: a round trip is exact to the bit. They also work on
arrays without memory (`ghost`), because a writer needs the shapes and dtypes of all tensors before the first value.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import ml_dtypes
import numpy as np

Shape = tuple[int, ...]
Arrays = list[np.ndarray]


class Ghost(np.ndarray):
    """An array with a shape and a dtype that takes no memory: one value, broadcast."""


def ghost(shape: Shape, dtype: Any = np.float32) -> np.ndarray:
    """A Ghost of this shape and dtype."""
    return np.broadcast_to(np.zeros((), dtype).view(Ghost), shape, subok=True)


class Operation(Protocol):
    """One step between a file's tensors and our parameters: lists of arrays to lists of arrays, and back.

    `read` and `write` undo each other. Both raise ValueError, with a clause that says why, on values or shapes that do
    not allow it.
    """

    def read(self, arrays: Arrays) -> Arrays: ...  # the file's arrays to ours

    def write(self, arrays: Arrays) -> Arrays: ...  # our arrays to the file's


@dataclass(frozen=True)
class Order:
    """Axes in another order, joined or split (transpose, reshape, squeeze), in the notation of einops.

    Order("d c p q", "(p q c) d", dict(c=3, p=16, q=16)) reads a convolution's kernel [D, 3, 16, 16] as a matrix [768,
    D].

    Args:
        theirs: the file's axes. Axes in parentheses are one axis, the last of them running fastest; 1 is an axis of
            length one, and may stand on one side only.
        ours: the axes of our parameter.
        sizes: the lengths of axes in parentheses; in each pair of parentheses one may be left out.
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
class Concat:
    """One tensor of the file holds several of our parameters, joined along an axis.

    Concat(0, (8, 8, 8)) reads a packed in_proj_weight [24, 8] as three arrays [8, 8]: query, key and value.

    Args:
        axis: along which they are joined.
    """

    axis: int
    sizes: tuple[int, ...]

    def read(self, arrays: Arrays) -> Arrays:
        (array,) = arrays
        if array.shape[self.axis] != sum(self.sizes):
            raise ValueError(f"axis {self.axis} of {list(array.shape)} is not {sum(self.sizes)}")
        return np.split(array, np.cumsum(self.sizes)[:-1], self.axis)

    def write(self, arrays: Arrays) -> Arrays:
        return [_concatenate(arrays, self.axis, sum(self.sizes))]


@dataclass(frozen=True)
class Reversed:
    """An operation with `read` and `write` exchanged.

    Reversed(Concat(0, (4, 4))) reads two tensors of a file, [4, 8] each, as one parameter [8, 8].
    """

    operation: Operation

    def read(self, arrays: Arrays) -> Arrays:
        return self.operation.write(arrays)

    def write(self, arrays: Arrays) -> Arrays:
        return self.operation.read(arrays)


@dataclass(frozen=True)
class Stack:
    """One tensor of the file holds `count` parameters along a new first axis: the blocks of a model under scan."""

    count: int

    def read(self, arrays: Arrays) -> Arrays:
        (array,) = arrays
        if array.shape[0] != self.count:
            raise ValueError(f"axis 0 of {list(array.shape)} is not {self.count}")
        return list(array)

    def write(self, arrays: Arrays) -> Arrays:
        return [_concatenate([array[None] for array in arrays], 0, self.count)]


class Untied(ValueError):
    """Tied tensors of a file differ: the first, and that of index `other`; `remedy` is what the user can do."""

    def __init__(self, other: int, remedy: str):
        super().__init__("copies of one tied tensor differ")
        self.other, self.remedy = other, remedy


@dataclass(frozen=True)
class Tie:
    """`copies` equal tensors of the file are one parameter of ours. `read` raises Untied where they differ."""

    copies: int
    remedy: str = "remove the one that is not meant from the file"

    def read(self, arrays: Arrays) -> Arrays:
        for index, other in enumerate(arrays):
            if not same(arrays[0], other):
                raise Untied(index, self.remedy)
        return arrays[:1]

    def write(self, arrays: Arrays) -> Arrays:
        return arrays * self.copies


@dataclass(frozen=True)
class Constant:
    """A tensor of the file that follows from the config and is no parameter of ours: `read` checks and drops it.

    Args:
        value: computes it; it is compared and written in the dtype of the file.
        index: its place among the tensors of the row.
        why: the clause of the ValueError that `read` raises where the file has other values.
    """

    value: Callable[[], np.ndarray]
    index: int = 0
    why: str = "a tensor that should hold a computed constant has other values"

    def read(self, arrays: Arrays) -> Arrays:
        given = arrays[self.index]
        if not isinstance(given, Ghost) and not same(given, np.asarray(self.value()).astype(given.dtype)):
            raise ValueError(self.why)
        return arrays[: self.index] + arrays[self.index + 1 :]

    def write(self, arrays: Arrays) -> Arrays:
        value = np.asarray(self.value())
        value = value.astype(arrays[0].dtype) if arrays else value
        if any(isinstance(array, Ghost) for array in arrays):
            value = ghost(value.shape, value.dtype)
        return [*arrays[: self.index], value, *arrays[self.index :]]


def zeros(shape: Shape, index: int = 0) -> Constant:
    """A Constant of zeros: a tensor that the file has and our network lacks, such as a bias."""
    return Constant(lambda: np.zeros(shape, np.float32), index)


@dataclass(frozen=True)
class BfloatAsVoid:
    """bfloat16 as .npz files hold it: numpy's format cannot name it and writes V2 (two bytes). Other dtypes pass."""

    def read(self, arrays: Arrays) -> Arrays:
        return [array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array for array in arrays]

    def write(self, arrays: Arrays) -> Arrays:
        return [array.view("V2") if array.dtype == ml_dtypes.bfloat16 else array for array in arrays]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same dtype, shape and bits; of Ghosts dtype and shape alone are compared."""
    if isinstance(a, Ghost) or isinstance(b, Ghost):
        return (a.dtype, a.shape) == (b.dtype, b.shape)
    return (a.dtype, a.shape) == (b.dtype, b.shape) and contiguous(a).tobytes() == contiguous(b).tobytes()


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes in C order."""
    return zlib.crc32(contiguous(array).reshape(-1).view(np.uint8)) if array.size else 0


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array in C order, copied where it is not; 0-d arrays stay 0-d."""
    return np.asarray(array, order="C")


def _concatenate(arrays: Arrays, axis: int, length: int) -> np.ndarray:
    """Arrays concatenated along an axis to `length` in all. Raises ValueError on other lengths or mixed dtypes."""
    if isinstance(arrays[0], Ghost):
        if sum(array.shape[axis] for array in arrays) != length:
            raise ValueError(f"{len(arrays)} tensors together do not have the length {length}")
        shape = list(arrays[0].shape)
        shape[axis] = length
        return ghost(tuple(shape), arrays[0].dtype)
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError(f"tensors that become one have dtypes {', '.join(sorted({a.dtype.name for a in arrays}))}")
    return np.concatenate(arrays, axis)


def rearrange(array: np.ndarray, before: str, after: str, sizes: Mapping[str, int]) -> np.ndarray:
    """An array with its axes rearranged.

    Args:
        before: its axes, in einops' notation: see `Order`.
        sizes: lengths of axes in parentheses.

    Raises:
        ValueError: where its shape does not fit.
    """
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
    """ "(p q c) d 1" as [["p", "q", "c"], ["d"], []]: axes of length one are left out."""
    return [[a for a in part.strip("()").split() if a != "1"] for part in re.findall(r"\([^()]*\)|\S+", pattern)]
