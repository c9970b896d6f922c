"""The operation of --adapt that merges a LoRA adapter of peft into the weights of the network that it was made for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vit_jax.config.dotted import replace_fields
from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError

from .. import rules
from ..containers.peft import Adapter, Factors, open_adapter
from ..dialects import LAYOUTS
from ..layout import Layout
from ..operations import Arrays, ghost
from ..rules import Row
from .step import Adaptation, Step
from .vit import nameless

MERGE = "merge:"


def lora(c: NetworkConfig, text: str, value: str) -> Adaptation:
    """lora=merge:FOLDER: SRC with the LoRA adapter that peft saved in FOLDER merged into it, W + scaling * B A."""
    if not value.startswith(MERGE) or value == MERGE:
        raise UserError(f"adapt {text}", "lora has only the value merge:FOLDER", "give the folder of the adapter")
    adapter = open_adapter(value.removeprefix(MERGE))
    names = [*adapter.factors, *adapter.saved]
    if not names:
        raise UserError(f"adapt {text}", "the adapter holds no tensors", "give another one")
    after, rows = _rows(c, text, adapter)
    steps = [_step(c, after, r, adapter, text) for r in rows]
    _check_new(c, after, steps, text)
    replaced = f", {', '.join(sorted(adapter.saved))} are the adapter's own" if adapter.saved else ""
    says = f"the adapter is merged into {len(adapter.factors)} weights{replaced}: the function changes"
    own_head = any(after.parameters()[name].head for step in steps for name in step.makes)
    return Adaptation(text, c, after, tuple(steps), says, nameless if own_head else lambda facts: facts, changes=True)


def _rows(c: NetworkConfig, text: str, adapter: Adapter) -> tuple[NetworkConfig, list[Row]]:
    """(the network after merging, the rows of the weights that an adapter changes, in a layout with their names).

    Its head may be for other classes than the base's. Raises UserError where no layout has all names.
    """
    names = {*adapter.factors, *adapter.saved}
    nearest, misfit = sorted(names), ""
    for layout in LAYOUTS.values():
        after = _with_classes(c, layout, adapter)
        for every in _tables(layout, after):
            rows = [r for r in rules.narrow(every, names) if names.intersection(r.theirs)]
            absent = sorted(names.difference(*(r.theirs for r in rows)))
            if not absent and not (misfit := _misfit(adapter, rows)):
                return after, rows
            nearest = min(nearest, absent, key=len)
    what = misfit or f"the adapter is for a network with {nearest[0]}, which this one lacks"
    raise UserError(f"adapt {text}", what, _give_its_base(adapter))


def _tables(layout: Layout, c: NetworkConfig) -> Iterator[list[Row]]:
    """The tables of a layout that may have an adapter's names: of the network, of the same without its head.

    In each the names are those in files or those of modules in memory.
    """
    headless = replace_fields(c, {"classes": 0}).normal() if hasattr(c, "classes") else c
    for network in (c, headless):
        if not layout.cannot(network, weights_only=True):
            yield layout.rows(network)
            if layout.in_memory:
                yield layout.in_memory(network)


def _misfit(adapter: Adapter, rows: list[Row]) -> str:
    """A clause where the adapter's tensors are not for the weights of these rows; empty where they are."""
    for r in rows:
        for i, made in enumerate(r.write([ghost(shape) for shape in r.shapes])):
            name, here = r.theirs[i], made.shape
            if name in adapter.factors:
                factors = adapter.factors[name]
                here = here[::-1] if _is_turned(r, i, len(here), factors) else here
                lengths = factors.magnitude
                if lengths is not None and (factors.embedding or lengths.size != factors.shape[0]):
                    return f"the adapter has {lengths.size} lengths for {name} {list(here)}"
                if factors.shape != here:
                    return f"the adapter is for {name} {list(factors.shape)}, and here it is {list(here)}"
            if name in adapter.saved and adapter.saved[name].shape != made.shape:
                given = adapter.saved[name].shape
                return f"the adapter has {name} {list(given)}, and here it is {list(made.shape)}"
    return ""


def _give_its_base(adapter: Adapter) -> str:
    return f"give the network that it was made for{f', {adapter.base}' if adapter.base else ''}"


def _with_classes(c: NetworkConfig, layout: Layout, adapter: Adapter) -> NetworkConfig:
    """The network with as many classes as a head that the adapter has itself."""
    field = layout.fields.get("classes")
    shapes = {name: array.shape for name, array in adapter.saved.items()}
    classes = field.solve(shapes) if field is not None and field.solve and shapes else None
    return replace_fields(c, {"classes": classes}) if classes else c


def _step(c: NetworkConfig, after: NetworkConfig, row: Row, adapter: Adapter, text: str) -> Step:
    """The computation of one row's parameters: as the file's tensors, changed there, and back."""
    known, makes = c.shapes(), dict(zip(row.ours, row.shapes, strict=True))
    takes = tuple(name for name in row.ours if name in known)
    other = () if takes else (next(name for name in known if name in after.shapes()),)  # gives the dtype
    kept = all(known.get(name) == shape for name, shape in makes.items())
    if not kept and not set(row.theirs) <= adapter.saved.keys():
        raise UserError(
            f"adapt {text}",
            f"the adapter changes {row.theirs[0]}, which is of another shape in this network, or not there",
            _give_its_base(adapter),
        )

    def compute(arrays: Arrays) -> Arrays:
        theirs = row.write(arrays if kept else [np.zeros(shape) for shape in row.shapes])
        for i, name in enumerate(row.theirs):
            theirs[i] = _changed(row, i, theirs[i], adapter, name)
        return [*arrays[: len(other)], *row.read(theirs)]

    before = {name: known[name] for name in other}
    return Step(takes or other, {**before, **makes}, compute)


def _changed(row: Row, index: int, weight: np.ndarray, adapter: Adapter, name: str) -> np.ndarray:
    """A tensor of the file as the adapter leaves it."""
    weight, factors = adapter.saved.get(name, weight), adapter.factors.get(name)
    if factors is None:
        return weight
    turned = _is_turned(row, index, weight.ndim, factors)
    return _lengthened(weight + (factors.product.T if turned else factors.product), factors, turned)


def _lengthened(weight: np.ndarray, factors: Factors, turned: bool) -> np.ndarray:
    """A weight whose outputs have the lengths that DoRA has learned (Liu et al. 2024, arXiv 2402.09353, eq. 5)."""
    if factors.magnitude is None:
        return weight
    rows = (weight.T if turned else weight).reshape(factors.magnitude.size, -1)
    rows = rows * (factors.magnitude.reshape(-1, 1) / np.linalg.norm(rows, axis=1, keepdims=True))
    return rows.reshape(weight.T.shape).T if turned else rows.reshape(weight.shape)


def _is_turned(row: Row, index: int, axes: int, factors: Factors) -> bool:
    """Whether a matrix of the file is (in, out), as of GPT-2's Conv1D, and not (out, in), as of torch.nn.Linear.

    Our kernels are (in, out): numbers that differ along their first axis show where that is in the file.
    """
    if factors.embedding or axes != 2:
        return False
    numbered = [np.broadcast_to(np.arange(s[0]).reshape(-1, *[1] * (len(s) - 1)), s) for s in row.shapes]
    theirs = row.write([np.array(array, np.float64) for array in numbered])[index]
    return bool((theirs[:, 0] != theirs[0, 0]).any())


def _check_new(c: NetworkConfig, after: NetworkConfig, steps: list[Step], text: str) -> None:
    """Raise UserError where a parameter of the network after is of neither the base nor the adapter."""
    known, made = c.shapes(), {name for step in steps for name in step.makes}
    if lacks := [name for name, shape in after.shapes().items() if name not in made and known.get(name) != shape]:
        raise UserError(
            f"adapt {text}",
            f"the adapter's head is for other classes than the network's, and {lacks[0]} is not in it",
            "give the network that it was made for",
        )


OPERATIONS = (lora,)
