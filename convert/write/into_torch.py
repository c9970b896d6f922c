"""A plan whose target is torch_ref's layout, written as the file that `torch_ref.train --resume` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.errors import CheckFailed
from vit_jax.files.digests import array_digest
from vit_jax.runs.values import to_dict

from .. import optimizer
from ..containers import torch_writer
from ..containers.source import TreePath
from ..containers.torch_file import open_file
from ..layout import Json
from ..plan.plan import Plan
from .training import Named, Training, convert_tensors, moving_rows

Placed = Iterator[tuple[TreePath, np.ndarray]]


def into_torch(plan: Plan, state: Training, path: str, weights: Named) -> list[str]:
    """Write a file of torch_ref, and read it back."""
    rows, step = moving_rows(plan), state.moments.step
    saved, places = optimizer.to_torch(plan.rows, plan.specs, state.run.optim, state.run.model.parameters(), step)
    moments = {role: convert_tensors(plan, rows, tensors) for role, tensors in state.moments.roles.items() if step}
    for (role, name), place in places.items():
        if role in moments:
            saved["state"][place[1]][place[2]] = moments[role][0][name]
    order = optimizer.registration_order(list(plan.specs))
    model = {name: plan.specs[name] for name in order}
    tree: Json = {"model": model, "optimizer": saved, "step": step, "config": to_dict(state.run), **state.beside}
    ema = convert_tensors(plan, rows, state.ema) if state.ema else None
    if ema:
        tree["ema"] = {name: ema[0][name] for name in order}

    def arrays() -> Placed:
        yield from ((("model", name), array) for name, array in weights)
        counters = (place for (role, _), place in places.items() if role == "step")
        yield from ((("optimizer", *place), np.asarray(step, np.float32)) for place in counters)
        for role, (_, values) in moments.items():
            yield from ((("optimizer", *places[role, name]), array) for name, array in values)
        yield from ((("ema", name), array) for name, array in (ema[1] if ema else ()))

    _write_compared(path, tree, arrays())
    return [f"the optimizer's state is converted, at step {step}; the best step so far and the log stay behind"]


def _write_compared(path: str, tree: Json, arrays: Placed) -> None:
    """Write a torch file and compare every array that is read back with what was written. Raises CheckFailed."""
    digests: dict[TreePath, str] = {}

    def digested() -> Placed:
        for place, array in arrays:
            digests[place] = array_digest(array)
            yield place, array

    torch_writer.write(path, tree, digested(), {})
    with open_file(path) as written:
        for place, digest in digests.items():
            value: Any = written.tree
            for key in place:
                value = value[key]
            if array_digest(value.read()) != digest:
                raise CheckFailed(
                    f"{path}: {place} was not read back from the disk as it was written; check the disk and try again"
                )
