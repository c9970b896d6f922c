"""The groups of tensors that travel together: each is read, transformed and handed on before the next one is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.errors import UserError

from .. import rules
from ..adapt import Step
from ..rules import Arrays, Row
from .plan import Plan


@dataclass
class Group:
    """What has to be in memory together."""

    reads: list[Row]
    steps: list[Step]
    writes: list[Row]


def groups(plan: Plan) -> list[Group]:
    """The connected groups of a plan, in the order in which the target's rows stand; carried tensors without a place last."""
    steps = [step for a in plan.adaptations for step in a.steps]
    items: list[tuple[int, Any]] = [
        *((0, r) for r in plan.reading.rows),
        *((1, s) for s in steps),
        *((2, r) for r in plan.rows),
    ]
    parent = list(range(len(items)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    holder: dict[str, int] = {}  # the item that made a name last
    for i, (sort, item) in enumerate(items):
        for name in () if sort == 0 else item.takes if sort == 1 else item.ours:
            parent[root(i)] = root(holder[name])
        for name in item.ours if sort == 0 else item.makes if sort == 1 else ():
            holder[name] = i
    found: dict[int, Group] = {}
    for i in sorted(range(len(items)), key=lambda i: -items[i][0]):  # the target's rows first: sorting is stable
        group = found.setdefault(root(i), Group([], [], []))
        (group.reads, group.steps, group.writes)[items[i][0]].append(items[i][1])
    return list(found.values())


def ours(plan: Plan, group: Group) -> dict[str, np.ndarray]:
    """A group's parameters of ours, after adaptations and cast."""
    arrays: dict[str, np.ndarray] = {}
    for row in group.reads:
        arrays.update(zip(row.ours, row.read([_values(plan, name) for name in row.theirs]), strict=True))
    for step in group.steps:
        taken: Arrays = [arrays.pop(name) for name in step.takes]
        arrays.update(zip(step.makes, step.apply(taken), strict=True))
    return arrays if plan.dtype is None else {name: cast(array, plan.dtype) for name, array in arrays.items()}


def stream(plan: Plan) -> Iterator[tuple[str, np.ndarray]]:
    """(target's name, array in C order) of every tensor; what the target has no place for comes as `carried.NAME`."""
    common = rules.common_dtype(spec.dtype for spec in plan.specs.values())
    for group in groups(plan):
        arrays = ours(plan, group)
        for row in group.writes:
            made = row.write([arrays.pop(name) for name in row.ours], common)
            while made:
                yield row.theirs[-len(made)], rules.contiguous(made.pop(0))
        yield from ((name, rules.contiguous(array)) for name, array in arrays.items())


def cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in another dtype, rounded to nearest. Raises UserError where a number becomes infinite."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        out = array.astype(dtype)
    if finite(array) and not finite(out):
        raise UserError(f"--dtype {dtype.name}: a number beyond its range becomes infinite; choose bfloat16 or float32")
    return out


def _values(plan: Plan, name: str) -> np.ndarray:
    array = plan.reading.tensors[name].read()
    if not plan.allow_nonfinite and not finite(array):
        raise UserError(
            f"{plan.reading.path}: {name} holds NaN or infinity, as a training that failed leaves them; to convert it all the same, add --allow-nonfinite"
        )
    return array


def finite(array: np.ndarray) -> bool:
    """Whether an array of floating-point numbers (bfloat16 as void among them) holds no NaN and no infinity."""
    if array.dtype.itemsize == 2 and array.dtype != np.float16:  # bfloat16: all ones in the exponent
        return not (array.reshape(-1).view(np.uint16) & 0x7F80 == 0x7F80).any()
    return bool(array.size == 0 or (np.isfinite(array.min()) and np.isfinite(array.max())))
