"""Rows: tensors of a file as parameters of a network, and the functions that apply them.

A layout is a table of rows. A row pairs names in a file with names of our parameters, and lists the operations
(transpose, split, ...) between their values:

    row("head.weight", "head.kernel", (8, 10), TRANSPOSE)  # [10, 8] in the file, [8, 10] here

Each operation can be undone, so the same row reads a file and writes one. Operations move values and never compute any:
a round trip is exact to the bit. They also work on arrays without memory (`ghost`), because a writer needs the shapes
and dtypes of all tensors before the first value.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from vit_jax.config.nearest import nearest
from vit_jax.errors import UserError

Shape = tuple[int, ...]
Arrays = list[np.ndarray]
LISTED = 20  # names that a message lists of one kind
CARRIED = "carried."  # begins the names given to tensors that are no parameters of a network and are copied unchanged


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
        sizes: their lengths there.
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


@dataclass(frozen=True)
class Row:
    """Tensors of a file that hold parameters of a network.

        Row(("attn.qkv.weight",), ("query.kernel", "key.kernel", "value.kernel"), ((8, 8),) * 3,
            (Concat(0, (8, 8, 8)), TRANSPOSE))

    Args:
        theirs: the names in the file.
        ours: the dotted names of our parameters. A row whose name begins with `carried.` (see `passthrough`) may be
            missing altogether; a later name that does is a part of `theirs` that is no parameter: where there is none,
            zeros are written.
        shapes: those of our parameters; the file's follow from them.
        operations: in the order in which reading applies them.
        optional: names that may be missing from a file (copies of tied tensors, constants) and are written only if
            asked for. One that is not in `theirs` is another name under which some files hold the row's only tensor.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]
    operations: tuple[Operation, ...] = ()
    optional: frozenset[str] = frozenset()

    def read(self, arrays: Arrays) -> Arrays:
        """Our parameters' arrays from the file's.

        Raises:
            UserError: with the names, if an operation refuses them.
        """
        for operation in self.operations:
            arrays = self._apply(operation.read, arrays)
        return arrays

    def write(self, arrays: Arrays, dtype: Any = np.float32) -> Arrays:
        """The file's arrays from our parameters'.

        Args:
            arrays: those of `ours`, in this order.
            dtype: of tensors which no parameter makes (constants).

        Returns:
            Those of `theirs`, in this order.

        Raises:
            UserError: with the names, if an operation refuses them.
        """
        nothing = not arrays
        for operation in reversed(self.operations):
            arrays = self._apply(operation.write, arrays)
        return [array.astype(dtype) for array in arrays] if nothing else arrays

    def _apply(self, operate: Callable[[Arrays], Arrays], arrays: Arrays) -> Arrays:
        try:
            return operate(arrays)
        except Untied as error:
            raise UserError(
                f"{self.theirs[0]}, {self.theirs[error.other]}",
                f"{error}, and a network of this config has one of them",
                error.remedy,
            ) from error
        except ValueError as error:
            raise UserError(
                ", ".join(self.theirs), str(error), "give the layout and the config that the file was written with"
            ) from error

    def narrowed(self, names: Iterable[str]) -> Row | None:
        """The row for a file with these names: without what may be missing, or by its other name; None if empty."""
        for index, name in enumerate(self.ours):
            if index and name.startswith(CARRIED) and name.removeprefix(CARRIED) not in names:
                return self._with_zeros(index).narrowed(names)
        carried = bool(self.ours) and self.ours[0].startswith(CARRIED)
        others = tuple(n for n in sorted(self.optional) if n not in self.theirs and n in names)
        if others and self.theirs[0] not in names:
            return replace(self, theirs=others[:1])
        if self.is_tied:
            kept = tuple(n for n in self.theirs if n in names) or self.theirs[:1]
            operations = tuple(replace(o, copies=len(kept)) if isinstance(o, Tie) else o for o in self.operations)
            return replace(self, theirs=kept, operations=operations)
        kept = tuple(n for n in self.theirs if n in names or not (carried or n in self.optional))
        if kept == self.theirs:
            return self
        return replace(self, theirs=kept) if kept else None

    @property
    def is_tied(self) -> bool:
        """Whether its tensors are copies of each other, of which a file may have any."""
        return any(isinstance(operation, Tie) for operation in self.operations)

    def _with_zeros(self, index: int) -> Row:
        """The row without one of our names, whose part of the file is zero."""
        ours, shapes = ([*each[:index], *each[index + 1 :]] for each in (self.ours, self.shapes))
        operations = (*self.operations, zeros(self.shapes[index], index))
        return replace(self, ours=tuple(ours), shapes=tuple(shapes), operations=operations)


def row(theirs: str, ours: str, shape: Shape, *operations: Operation) -> Row:
    """A Row of one tensor and one parameter of this shape."""
    return Row((theirs,), (ours,), (tuple(shape),), operations)


def tied(theirs: Sequence[str], ours: str, shape: Shape, remedy: str = Tie.remedy) -> Row:
    """A Row of one parameter that a file may have under several names.

    Args:
        theirs: the names; the first is the one that is written.
        ours: our dotted name.
        shape: that of the parameter.
        remedy: for files in which they differ.
    """
    first, *copies = theirs
    return Row((first, *copies), (ours,), (tuple(shape),), (Tie(len(theirs), remedy),), frozenset(copies))


def passthrough(theirs: str, shape: Shape) -> Row:
    """A Row that copies a tensor of a layout that is no parameter of a network (DINOv2's mask token)."""
    return row(theirs, CARRIED + theirs, shape)


def narrow(rows: Iterable[Row], names: Iterable[str] = ()) -> list[Row]:
    """The rows for a file; see `Row.narrowed`.

    Args:
        rows: of the layout.
        names: of the file. Without any, all optional tensors are left out.
    """
    names = set(names)
    return [n for r in rows if (n := r.narrowed(names)) is not None]


def narrow_written(rows: Iterable[Row], names: Iterable[str] = ()) -> list[Row]:
    """The rows for a new file that has these of the optional tensors: of tied ones also the first."""
    rows = list(rows)
    return narrow(rows, {*names, *(r.theirs[0] for r in rows if r.is_tied)})


def read(rows: Sequence[Row], tensors: Mapping[str, np.ndarray], what: str = "tensors") -> dict[str, np.ndarray]:
    """Our parameters from a file's tensors. Each tensor must belong to exactly one row and have the shape that follows.

    Args:
        rows: those of the file's layout.
        tensors: {name: array}.
        what: names the file in messages.

    Returns:
        {dotted name: array}.

    Raises:
        UserError: listing all tensors that are missing, that no row claims, or that have another shape.
    """
    rows = narrow(rows, tensors)
    check(file_shapes(rows), {name: np.shape(array) for name, array in tensors.items()}, what)
    done: dict[str, np.ndarray] = {}
    for r in rows:
        arrays = r.read([np.asarray(tensors[name]) for name in r.theirs])
        done |= dict(zip(r.ours, map(contiguous, arrays), strict=True))
    return done


def write(
    rows: Sequence[Row], parameters: Mapping[str, np.ndarray], what: str = "parameters", names: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """A file's tensors from our parameters: undoes `read`.

    Args:
        rows: those of the file's layout.
        parameters: {dotted name: array}.
        what: names the parameters in messages.
        names: the optional tensors that are written.

    Returns:
        {name: array}.

    Raises:
        UserError: as `read`.
    """
    carried_names = [name.removeprefix(CARRIED) for name in parameters if name.startswith(CARRIED)]
    rows = narrow_written(rows, [*names, *carried_names])
    check(our_shapes(rows), {name: np.shape(array) for name, array in parameters.items()}, what)
    dtype = common_dtype([np.asarray(array).dtype for array in parameters.values()])
    done: dict[str, np.ndarray] = {}
    for r in rows:
        arrays = r.write([np.asarray(parameters[name]) for name in r.ours], dtype)
        done |= dict(zip(r.theirs, map(contiguous, arrays), strict=True))
    return done


def our_shapes(rows: Iterable[Row]) -> dict[str, Shape]:
    """The shapes of all parameters of some rows.

    Returns:
        {dotted name: shape}.

    Raises:
        ValueError: where two rows make the same one.
    """
    return unique((name, shape) for r in rows for name, shape in zip(r.ours, r.shapes, strict=True))


def file_shapes(rows: Iterable[Row]) -> dict[str, Shape]:
    """The shapes of all tensors that some rows claim.

    Returns:
        {name in the file: shape}.

    Raises:
        ValueError: where two rows claim the same one.
    """
    return unique(
        (name, array.shape)
        for r in rows
        for name, array in zip(r.theirs, r.write([ghost(s) for s in r.shapes]), strict=True)
    )


def check(expected: Mapping[str, Shape], given: Mapping[str, Shape], what: str, hint: str = "") -> None:
    """Check names and shapes against those expected.

    Args:
        expected: {name: shape}.
        given: {name: shape}.
        what: names the file in messages.
        hint: the remedy.

    Raises:
        UserError: listing all names at fault.
    """
    missing = [name for name in expected if name not in given]
    unknown = [name for name in given if name not in expected]
    misshapen = [
        f"{name} {list(given[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in given and tuple(given[name]) != tuple(shape)
    ]
    faults = {"missing": missing, "unknown": unknown, "of another shape": misshapen}
    if any(faults.values()):
        listed = "; ".join(f"{fault} ({len(names)}): {_few(names)}" for fault, names in faults.items() if names)
        close = nearest(unknown[0], missing) if missing and unknown else ""
        raise UserError(
            what,
            f"names or shapes are not those of this network: {listed}{close}",
            hint or "give those of a network with the same config",
        )


def _few(names: Sequence[str]) -> str:
    """The first names of a list, joined by commas, and how many more there are."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def common_dtype(dtypes: Iterable[np.dtype]) -> np.dtype:
    """The most frequent of these dtypes; float32 where there are none."""
    counts: dict[np.dtype, int] = {}
    for dtype in dtypes:
        counts[dtype] = counts.get(dtype, 0) + 1
    return max(counts, key=counts.__getitem__, default=np.dtype(np.float32))


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


def unique(pairs: Iterable[tuple[str, Shape]]) -> dict[str, Shape]:
    """Pairs of name and shape as a dict.

    Raises:
        ValueError: where a name occurs twice.
    """
    shapes: dict[str, Shape] = {}
    for name, shape in pairs:
        if name in shapes:
            raise ValueError(f"{name} is claimed by two rows")
        shapes[name] = tuple(shape)
    return shapes


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
        array: any.
        before: its axes, in einops' notation: see `Order`.
        after: those of the result.
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
