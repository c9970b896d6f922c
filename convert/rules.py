"""Rows: tensors of a file as parameters of a network, and the functions that apply them.

A layout is a table of rows. A row pairs names in a file with names of our parameters, and lists the operations
(transpose, split, ...) between their values:

    row("head.weight", "head.kernel", (8, 10), TRANSPOSE)  # [10, 8] in the file, [8, 10] here

The same row reads a file and writes one, as its operations (operations.py) can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vit_jax.config.hints import nearest
from vit_jax.errors import UserError

from .operations import Arrays, Operation, Shape, Tie, Untied, contiguous, ghost, zeros

LISTED = 20  # names that a message lists of one kind
CARRIED = "carried."  # begins the names given to tensors that are no parameters of a network and are copied unchanged


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
