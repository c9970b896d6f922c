"""The values of a plan, group by group: tensors that rows tie together are read, transformed and handed on as one.

Only one group is in memory at a time, so that a file needs little more memory than its largest group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit_jax.errors import UserError

from .. import rules
from ..adapt import Step
from ..containers.source import INTEGERS
from ..operations import Arrays, contiguous
from ..rules import Row
from .plan import Plan


@dataclass
class Group:
    """Rows of the source, steps of adaptations and rows of the target that depend on each other."""

    reads: list[Row]
    steps: list[Step]
    writes: list[Row]


def groups(plan: Plan) -> list[Group]:
    """The groups of a plan, in the order of the target's rows; last, carried tensors that the target has no row for."""
    steps = [step for a in plan.adaptations for step in a.steps]
    items: list[tuple[int, Any]] = [
        *((0, r) for r in plan.reading.rows),
        *((1, s) for s in steps),
        *((2, r) for r in plan.rows),
    ]
    parent = list(range(len(items)))  # of a union-find over the items

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    maker: dict[str, int] = {}  # the item that made a parameter last
    for i, (stage, item) in enumerate(items):
        for name in () if stage == 0 else item.takes if stage == 1 else item.ours:
            parent[root(i)] = root(maker[name])
        for name in item.ours if stage == 0 else item.makes if stage == 1 else ():
            maker[name] = i
    found: dict[int, Group] = {}
    for i in sorted(range(len(items)), key=lambda i: -items[i][0]):  # the target's rows first: sorting is stable
        group = found.setdefault(root(i), Group([], [], []))
        (group.reads, group.steps, group.writes)[items[i][0]].append(items[i][1])
    return list(found.values())


def parameters(plan: Plan, group: Group) -> dict[str, np.ndarray]:
    """{our name: array} of a group, after adaptations and rounding."""
    arrays: dict[str, np.ndarray] = {}
    for row in group.reads:
        arrays.update(zip(row.ours, row.read([_values(plan, name) for name in row.theirs]), strict=True))
    for step in group.steps:
        taken: Arrays = [arrays.pop(name) for name in step.takes]
        arrays.update(zip(step.makes, step.apply(taken), strict=True))
    return arrays if plan.dtype is None else {name: cast(array, plan.dtype) for name, array in arrays.items()}


def stream(plan: Plan) -> Iterator[tuple[str, np.ndarray]]:
    """(the target's name, array in C order) of every tensor; `carried.NAME` where the target has no row for one."""
    common = rules.common_dtype(spec.dtype for spec in plan.specs.values())
    for group in groups(plan):
        arrays = parameters(plan, group)
        for row in group.writes:
            made = row.write([arrays.pop(name) for name in row.ours], common)
            while made:
                yield row.theirs[-len(made)], contiguous(made.pop(0))
        yield from ((name, contiguous(array)) for name, array in arrays.items())


def cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in another dtype, rounded to nearest; whole numbers (counters) stay as they are."""
    if array.dtype == dtype or array.dtype in INTEGERS:
        return array
    with np.errstate(over="ignore"):
        out = array.astype(dtype)
    if finite(array) and not finite(out):
        raise UserError(
            f"dtype {dtype.name}", "a number beyond its range becomes infinite", "choose bfloat16 or float32"
        )
    return out


def _values(plan: Plan, name: str) -> np.ndarray:
    array = plan.reading.tensors[name].read()
    if not plan.allow_nonfinite and not finite(array):
        raise UserError(
            plan.reading.path,
            f"{name} holds NaN or infinity, as a training that failed leaves them",
            "to convert it all the same, add `allow_nonfinite True`",
        )
    return array


def finite(array: np.ndarray) -> bool:
    """Whether an array holds no NaN and no infinity; its dtype is a float, or V2 (npz holds bfloat16 so)."""
    if array.dtype.itemsize == 2 and array.dtype != np.float16:  # bfloat16: all ones in the exponent
        return not (array.reshape(-1).view(np.uint16) & 0x7F80 == 0x7F80).any()
    flat = array.reshape(-1)
    if flat.dtype != np.float16:
        with np.errstate(over="ignore", invalid="ignore"):  # the fastest single pass; of large numbers it overflows
            if np.isfinite(np.dot(flat, flat)):
                return True
    return bool(np.isfinite(flat).all())


def float32_arrays(plan: Plan) -> dict[str, np.ndarray]:
    """The parameters of a plan in float32, in which programs compute, {name: array}."""
    return {name: array.astype(np.float32) for name, array in stream(plan) if name in plan.specs}
