"""The weights of a plan into a file of their container, read back and compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import CheckFailed, UserError

from ..containers import open_source, writer
from ..containers.source import CARRIED_SUFFIX, DIGESTED, Spec, leaves
from ..layout import Facts, Json
from ..plan.groups import stream
from ..plan.plan import Plan
from ..recognise.provenance import RUN
from ..rules import CARRIED, checksum
from .training import Training, into_run, into_torch

# The name of the weights in a folder that we write, by the container of the layout's choice.
IN_FOLDER = {
    "safetensors": "model.safetensors",
    "npz": "model.npz",
    "msgpack": "flax_model.msgpack",
    "torch": "model.pt",
}


SEPARATORS = {"msgpack": "/"}  # of containers that nest; torch state dicts are flat


Progress = Callable[[int], None]  # is told the bytes written so far


def fill(
    plan: Plan,
    path: Path,
    facts: Facts,
    provenance: Json,
    known: Future[str],
    progress: Progress,
    state: Training | None,
) -> tuple[list[str], dict[str, int]]:
    """Write the weights, with the rest of a run in training, and what has no place there beside: (notes, the weights' CRC-32).

    The source's hash enters the provenance when it is known, which is before the last of the weights is taken for written.
    """
    kept: dict[str, np.ndarray] = {}
    sums: dict[str, int] | None = None if path.suffix == DIGESTED else {}

    def all_of_them() -> Iterator[tuple[str, np.ndarray]]:
        yield from weights(plan, kept, sums, progress)
        provenance["source"]["sha256"] = known.result()

    values = all_of_them()
    notes = []
    if path.name == RUN:
        notes = into_run(plan, state, facts, str(path.parent), values)
    elif state:
        notes = into_torch(plan, state, str(path), values)
    else:
        weigh(plan, path, provenance, values, sums)
    if kept:
        specs = {name: Spec(a.dtype, a.shape) for name, a in kept.items()}
        writer(CARRIED_SUFFIX)[1](
            f"{path}{CARRIED_SUFFIX}", specs, (((n,), a) for n, a in kept.items()), {"carried": path.name}
        )
    return notes, sums or {}


def weights(
    plan: Plan, kept: dict[str, np.ndarray], sums: dict[str, int] | None, progress: Progress
) -> Iterator[tuple[str, np.ndarray]]:
    """(target's name, array) of every tensor that has a place there, its CRC-32 noted in `sums`; the others go to `kept`."""
    done = 0
    for name, array in stream(plan):
        if name.startswith(CARRIED) and name not in plan.specs:
            kept[name.removeprefix(CARRIED)] = array
            continue
        if sums is not None:
            sums[name] = checksum(array)
        yield name, array
        done += array.nbytes
        progress(done)


def weigh(
    plan: Plan, path: Path, provenance: Json, values: Iterator[tuple[str, np.ndarray]], sums: dict[str, int] | None
) -> None:
    """Write the weights, read them back and compare."""
    container, write = writer(str(path))
    separator = SEPARATORS.get(container)

    def place(name: str) -> tuple[str | int, ...]:
        return tuple(name.split(separator)) if separator else (name,)

    tree: dict[Any, Any] = {}
    for name, spec in plan.specs.items():
        *path_, leaf = place(name)
        node = tree
        for key in path_:
            node = node.setdefault(key, {})
        node[leaf] = spec
    metadata = {"format": "pt", "provenance": json.dumps(provenance)}

    def arrays() -> Iterator[tuple[tuple[str | int, ...], np.ndarray]]:
        yield from ((place(name), array) for name, array in values)
        metadata["provenance"] = json.dumps(provenance)  # now with the source's hash

    write(str(path), tree, arrays(), metadata)
    read_back(path, plan.specs, sums, separator or ".")


def read_back(path: Path, specs: dict[str, Spec], sums: dict[str, int] | None, separator: str) -> None:
    """Raise CheckFailed unless a file that was just written holds what went into it, to the bit.

    Without `sums` it is the file's own digests that its tensors are compared with, by reading them.
    """
    with open_source(str(path)) as source:
        found = leaves(source.tree, separator)
        for name, spec in specs.items():
            tensor = found.get(name)
            try:
                back = (
                    tensor is not None
                    and (tensor.dtype, tuple(tensor.shape)) == (spec.dtype, spec.shape)
                    and tensor.read()
                )
            except UserError:
                back = False
            if back is False or (sums is not None and checksum(back) != sums[name]):
                raise CheckFailed(
                    f"{path.name}: {name} did not come back from the disk as it was written; the target is untouched: check the disk and try again"
                )
        if len(found) != len(specs):
            raise CheckFailed(
                f"{path.name}: holds {len(found)} tensors instead of {len(specs)}; the target is untouched"
            )
