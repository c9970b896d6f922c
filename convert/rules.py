"""Rows as bijections, and the engine that applies them.

A dialect is a table of rows. A row says that these tensors of a file are those parameters of ours,
through a chain of operations; it reads both ways, and no code has a direction. Operations move
values and never compute any, so a round trip is exact to the bit. The same operations take shapes
and dtypes through a row, on arrays without memory: a writer needs its header before any bytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from vit_jax.config import nearest
from vit_jax.errors import UserError

Shape = tuple[int, ...]
Arrays = list[np.ndarray]
LISTED = 20  # names of one kind that a message has
CARRIED = "carried."  # before the names of tensors that are kept beside: no network of ours has them


class Ghost(np.ndarray):
    """An array of one value and no memory, for its shape and dtype."""


def ghost(shape: Shape, dtype: Any = np.float32) -> np.ndarray:
    """A ghost of this shape and dtype."""
    return np.broadcast_to(np.zeros((), dtype).view(Ghost), shape, subok=True)


class Operation(Protocol):
    """One step between the tensors of a file and ours: a bijection on lists of arrays.

    A value that a bijection does not allow raises ValueError with a clause that says so.
    """

    def read(self, arrays: Arrays) -> Arrays: ...  # file -> ours

    def write(self, arrays: Arrays) -> Arrays: ...  # ours -> file


@dataclass(frozen=True)
class Order:
    """The axes of each tensor, in the file's order and in ours: Order("d c p q", "(p q c) d", c=3, p=16, q=16).

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
class Concat:
    """One tensor of the file is several of ours, behind each other along an axis; `sizes` are their lengths there."""

    axis: int
    sizes: tuple[int, ...]

    def read(self, arrays: Arrays) -> Arrays:
        (array,) = arrays
        if array.shape[self.axis] != sum(self.sizes):
            raise ValueError(f"axis {self.axis} of {list(array.shape)} is not {sum(self.sizes)}")
        return np.split(array, np.cumsum(self.sizes)[:-1], self.axis)

    def write(self, arrays: Arrays) -> Arrays:
        return [_joined(arrays, self.axis, sum(self.sizes))]


@dataclass(frozen=True)
class Reversed:
    """An operation in the other direction: several tensors of the file are one of ours (the heads of an attention, each its own)."""

    operation: Operation

    def read(self, arrays: Arrays) -> Arrays:
        return self.operation.write(arrays)

    def write(self, arrays: Arrays) -> Arrays:
        return self.operation.read(arrays)


@dataclass(frozen=True)
class Stack:
    """One tensor of the file is `count` of ours, along a new leading axis (layers under scan)."""

    count: int

    def read(self, arrays: Arrays) -> Arrays:
        (array,) = arrays
        if array.shape[0] != self.count:
            raise ValueError(f"axis 0 of {list(array.shape)} is not {self.count}")
        return list(array)

    def write(self, arrays: Arrays) -> Arrays:
        return [_joined([array[None] for array in arrays], 0, self.count)]


@dataclass(frozen=True)
class Tie:
    """Equal copies in the file are one tensor of ours."""

    copies: int

    def read(self, arrays: Arrays) -> Arrays:
        first, *others = arrays
        if any(not same(first, other) for other in others):
            raise ValueError("copies of one tied tensor differ")
        return [first]

    def write(self, arrays: Arrays) -> Arrays:
        return arrays * self.copies


@dataclass(frozen=True)
class Constant:
    """A tensor that our config implies and we do not store, at a place among the row's tensors.

    `value` is computed in its own dtype; the file holds it rounded to the file's. Reading compares and drops it.
    """

    value: Callable[[], np.ndarray]
    place: int = 0

    def read(self, arrays: Arrays) -> Arrays:
        given = arrays[self.place]
        if not isinstance(given, Ghost) and not same(given, np.asarray(self.value()).astype(given.dtype)):
            raise ValueError("a tensor that is to be a computed constant has other values")
        return arrays[: self.place] + arrays[self.place + 1 :]

    def write(self, arrays: Arrays) -> Arrays:
        value = np.asarray(self.value())
        value = value.astype(arrays[0].dtype) if arrays else value
        if any(isinstance(array, Ghost) for array in arrays):
            value = ghost(value.shape, value.dtype)
        return [*arrays[: self.place], value, *arrays[self.place :]]


def zeros(shape: Shape, place: int = 0) -> Constant:
    """A tensor of the file that has to be zero to be dropped: a bias where our config has none."""
    return Constant(lambda: np.zeros(shape, np.float32), place)


@dataclass(frozen=True)
class BfloatAsVoid:
    """bfloat16 that numpy's own format has written as two nameless bytes (npz); other dtypes pass."""

    def read(self, arrays: Arrays) -> Arrays:
        return [array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array for array in arrays]

    def write(self, arrays: Arrays) -> Arrays:
        return [array.view("V2") if array.dtype == ml_dtypes.bfloat16 else array for array in arrays]


@dataclass(frozen=True)
class Row:
    """These names of a file are those names of ours, through operations named in reading order.

    `shapes` are those of our parameters; the file's follow from them. `optional` names may be missing
    from a file (tied copies, constants) and are not written unless asked for; one that is not among `theirs`
    is another name that the row's only tensor has in some files. A row of ours that begins with `carried.` is
    optional as a whole.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]
    operations: tuple[Operation, ...] = ()
    optional: frozenset[str] = frozenset()

    def read(self, arrays: Arrays) -> Arrays:
        """Ours from the file's. Raises UserError naming the tensors where their values are not what the row says."""
        for operation in self.operations:
            arrays = self._apply(operation.read, arrays)
        return arrays

    def write(self, arrays: Arrays, dtype: Any = np.float32) -> Arrays:
        """The file's from ours; `dtype` is that of tensors made from nothing."""
        nothing = not arrays
        for operation in reversed(self.operations):
            arrays = self._apply(operation.write, arrays)
        return [array.astype(dtype) for array in arrays] if nothing else arrays

    def _apply(self, operate: Callable[[Arrays], Arrays], arrays: Arrays) -> Arrays:
        try:
            return operate(arrays)
        except ValueError as error:
            raise UserError(
                f"{', '.join(self.theirs)}: {error}; this is not a file of the named layout and config"
            ) from error

    def narrowed(self, names: Iterable[str]) -> Row | None:
        """This row without the optional names that are not among `names`; None where nothing is left."""
        carried = bool(self.ours) and self.ours[0].startswith(CARRIED)
        others = tuple(n for n in sorted(self.optional) if n not in self.theirs and n in names)
        if others and self.theirs[0] not in names:
            return replace(self, theirs=others[:1])
        kept = tuple(n for n in self.theirs if n in names or not (carried or n in self.optional))
        if kept == self.theirs:
            return self
        ties = {Tie(len(self.theirs)): Tie(len(kept))}
        return replace(self, theirs=kept, operations=tuple(ties.get(o, o) for o in self.operations)) if kept else None  # type: ignore[call-overload]


def row(theirs: str, ours: str, shape: Shape, *operations: Operation) -> Row:
    """A row of one tensor."""
    return Row((theirs,), (ours,), (tuple(shape),), operations)


def carried(theirs: str, shape: Shape) -> Row:
    """A row of a tensor that no network of ours has and that is kept beside."""
    return row(theirs, CARRIED + theirs, shape)


def narrow(rows: Iterable[Row], names: Iterable[str] = ()) -> list[Row]:
    """The rows of one file: without the optional names that are not among `names`."""
    names = set(names)
    return [n for r in rows if (n := r.narrowed(names)) is not None]


def read(rows: Sequence[Row], tensors: Mapping[str, np.ndarray], what: str = "tensors") -> dict[str, np.ndarray]:
    """Our parameters {dotted name: array} from the tensors of a file {name: array}.

    Every tensor must be claimed by exactly one row and have the shape that the row says. Raises
    UserError listing all that are missing, unclaimed or misshapen; `what` names the file in it.
    """
    rows = narrow(rows, tensors)
    check(file_shapes(rows), {name: np.shape(array) for name, array in tensors.items()}, what)
    done: dict[str, np.ndarray] = {}
    for r in rows:
        done |= zip(r.ours, map(contiguous, r.read([np.asarray(tensors[name]) for name in r.theirs])), strict=True)  # type: ignore[operator]
    return done


def write(
    rows: Sequence[Row], parameters: Mapping[str, np.ndarray], what: str = "parameters", names: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """The tensors of a file {name: array} from our parameters {dotted name: array}; the reverse of `read`.

    Of the optional tensors those are written that are among `names`.
    """
    rows = narrow(
        rows,
        [
            *names,
            *(
                n
                for r in rows
                for o, n in zip(r.ours, r.theirs, strict=False)
                if o in parameters and o.startswith(CARRIED)
            ),
        ],
    )
    check(our_shapes(rows), {name: np.shape(array) for name, array in parameters.items()}, what)
    dtype = common_dtype([np.asarray(array).dtype for array in parameters.values()])
    done: dict[str, np.ndarray] = {}
    for r in rows:
        done |= zip(
            r.theirs, map(contiguous, r.write([np.asarray(parameters[name]) for name in r.ours], dtype)), strict=True
        )  # type: ignore[operator]
    return done


def our_shapes(rows: Iterable[Row]) -> dict[str, Shape]:
    """{dotted name: shape} of all parameters that rows make. Raises ValueError where two make the same."""
    return unique((name, shape) for r in rows for name, shape in zip(r.ours, r.shapes, strict=True))


def file_shapes(rows: Iterable[Row]) -> dict[str, Shape]:
    """{name: shape} of all tensors that rows claim."""
    return unique(
        (name, array.shape)
        for r in rows
        for name, array in zip(r.theirs, r.write([ghost(s) for s in r.shapes]), strict=True)
    )


def check(expected: Mapping[str, Shape], given: Mapping[str, Shape], what: str, hint: str = "") -> None:
    """Raise UserError, one sentence with all names at fault, unless names and shapes are as expected."""
    missing = [name for name in expected if name not in given]
    unclaimed = [name for name in given if name not in expected]
    misshapen = [
        f"{name} {list(given[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in given and tuple(given[name]) != tuple(shape)
    ]
    faults = {"missing": missing, "unclaimed": unclaimed, "misshapen": misshapen}
    if any(faults.values()):
        told = "; ".join(f"{fault} ({len(names)}): {few(names)}" for fault, names in faults.items() if names)
        close = nearest(unclaimed[0], missing) if missing and unclaimed else ""
        raise UserError(
            f"{what} do not fit this network: {told}{close}; {hint or 'give those of a network with the same config'}"
        )


def few(names: Sequence[str]) -> str:
    """The names of a list, the end of a long one as a number."""
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def common_dtype(dtypes: Iterable[np.dtype]) -> np.dtype:
    """The dtype that most of a file's tensors have."""
    counts: dict[np.dtype, int] = {}
    for dtype in dtypes:
        counts[dtype] = counts.get(dtype, 0) + 1
    return max(counts, key=counts.__getitem__, default=np.dtype(np.float32))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have the same dtype, shape and bits (ghosts have no bits)."""
    if isinstance(a, Ghost) or isinstance(b, Ghost):
        return (a.dtype, a.shape) == (b.dtype, b.shape)
    return (a.dtype, a.shape) == (b.dtype, b.shape) and contiguous(a).tobytes() == contiguous(b).tobytes()


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes in C order."""
    return zlib.crc32(contiguous(array).reshape(-1).view(np.uint8)) if array.size else 0


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array in C order (0-d arrays stay so)."""
    return np.asarray(array, order="C")


def unique(pairs: Iterable[tuple[str, Shape]]) -> dict[str, Shape]:
    """The pairs as a dict. Raises ValueError where a name comes twice."""
    shapes: dict[str, Shape] = {}
    for name, shape in pairs:
        if name in shapes:
            raise ValueError(f"{name} is claimed by two rows")
        shapes[name] = tuple(shape)
    return shapes


def _joined(arrays: Arrays, axis: int, length: int) -> np.ndarray:
    """Arrays behind each other along an axis, `length` together."""
    if isinstance(arrays[0], Ghost):
        if sum(array.shape[axis] for array in arrays) != length:
            raise ValueError(f"{len(arrays)} tensors together are not {length} long")
        shape = list(arrays[0].shape)
        shape[axis] = length
        return ghost(tuple(shape), arrays[0].dtype)
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError(f"tensors that become one have dtypes {', '.join(sorted({a.dtype.name for a in arrays}))}")
    return np.concatenate(arrays, axis)


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
    """ "(p q c) d 1" as [["p", "q", "c"], ["d"], []]: an axis of one entry joins none."""
    return [[a for a in part.strip("()").split() if a != "1"] for part in re.findall(r"\([^()]*\)|\S+", pattern)]
