"""The weights of a plan into a file of their container, read back and compared; carried tensors into one beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import CheckFailed, UserError
from vit_jax.files.atomic import sync_file

from ..containers import open_source, writer
from ..containers.source import CARRIED_SUFFIX, DIGESTED, SEPARATORS, Spec, Tensor, leaves
from ..layout import Json
from ..operations import checksum
from ..plan.groups import stream
from ..plan.plan import Plan
from ..recognise.provenance import CHECKPOINTS
from ..rules import CARRIED
from .into_run import into_run
from .into_torch import into_torch
from .training import Named, Training

# The name of the weights in a folder that we write, by container.
IN_FOLDER = {
    "safetensors": "model.safetensors",
    "npz": "model.npz",
    "msgpack": "flax_model.msgpack",
    "torch": "model.pt",
}
NESTED = {"msgpack"}  # containers whose files are nested dictionaries of names; torch's state dicts are flat
Progress = Callable[[int], None]  # is called with the bytes written so far
Sums = dict[str, int] | None  # {the target's name: CRC-32 of its tensor}; None: the file holds digests of its own


def write_all(
    plan: Plan, path: Path, provenance: Json, known: Future[str], progress: Progress, state: Training | None
) -> tuple[list[str], dict[str, int]]:
    """Write the weights, a run's state in training if there is one, and carried tensors -> (notes, CRC-32 by name)."""
    carried: dict[str, np.ndarray] = {}
    sums: Sums = None if path.suffix == DIGESTED else {}

    def values() -> Named:
        yield from weights(plan, carried, sums, progress)
        provenance["source"]["sha256"] = known.result()

    notes = []
    if path.name == CHECKPOINTS:
        notes = into_run(plan, state, str(path.parent), values())
    elif state:
        notes = into_torch(plan, state, str(path), values())
    else:
        _write_container(plan, path, provenance, values(), sums)
    if carried:
        specs = {name: Spec(a.dtype, a.shape) for name, a in carried.items()}
        arrays = (((name,), a) for name, a in carried.items())
        writer(CARRIED_SUFFIX)[1](f"{path}{CARRIED_SUFFIX}", specs, arrays, {"carried": path.name})
    return notes, sums or {}


def weights(plan: Plan, carried: dict[str, np.ndarray], sums: Sums, progress: Progress) -> Named:
    """Every tensor that the target has a row for -> (the target's name, array) pairs, lazily."""
    done = 0
    for name, array in stream(plan):
        if name.startswith(CARRIED) and name not in plan.specs:
            carried[name.removeprefix(CARRIED)] = array
            continue
        if sums is not None:
            sums[name] = checksum(array)
        yield name, array
        done += array.nbytes
        progress(done)


def _write_container(plan: Plan, path: Path, provenance: Json, values: Named, sums: Sums) -> None:
    """Write the weights and their provenance, read them back and compare. Raises CheckFailed."""
    container, write = writer(str(path))

    def path_in_tree(name: str) -> tuple[str | int, ...]:
        return tuple(name.split(SEPARATORS[container])) if container in NESTED else (name,)

    tree: dict[Any, Any] = {}
    for name, spec in plan.specs.items():
        *parents, leaf = path_in_tree(name)
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[leaf] = spec
    metadata = {"format": "pt", "provenance": json.dumps(provenance)}

    def arrays() -> Iterator[tuple[tuple[str | int, ...], np.ndarray]]:
        yield from ((path_in_tree(name), array) for name, array in values)
        metadata["provenance"] = json.dumps(provenance)  # now with the source's hash

    write(str(path), tree, arrays(), metadata)
    with ThreadPoolExecutor(1) as aside:  # the disk works while the file is read back
        synced = aside.submit(sync_file, path)
        _read_back(path, plan.specs, sums)
        synced.result()


def _read_back(path: Path, specs: dict[str, Spec], sums: Sums) -> None:
    """Raise CheckFailed unless a file that was just written holds what was written into it, to the bit.

    Without `sums` reading alone is the comparison: the file's reader checks its own digests.
    """
    with open_source(str(path)) as source:
        found = leaves(source.tree, source.separator)
        for name, spec in specs.items():
            back = _values(found.get(name), spec)
            if back is None or (sums is not None and checksum(back) != sums[name]):
                raise CheckFailed(
                    f"{path.name}: {name} was not read back from the disk as it was written; "
                    "the target is untouched: check the disk and try again"
                )
        if len(found) != len(specs):
            held = f"holds {len(found)} tensors instead of {len(specs)}"
            raise CheckFailed(f"{path.name}: {held}; the target is untouched: check the disk and try again")


def _values(tensor: Tensor | None, spec: Spec) -> np.ndarray | None:
    """A tensor's values; None where it is missing, of another dtype or shape, or damaged."""
    if tensor is None or (tensor.dtype, tuple(tensor.shape)) != (spec.dtype, spec.shape):
        return None
    try:
        return tensor.read()
    except UserError:
        return None
