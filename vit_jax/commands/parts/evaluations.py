"""An evaluation in parts: what a network gives of some batches each, joined to what it gives of the whole split.

Parts are whole batches in the order in which evaluation goes through a split, so that what is joined is, to the bit,
what one command computes, and metrics are made of it in the same way.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  # numpy then knows bfloat16 by its name
import numpy as np

from ...data.batches import Outputs, in_order
from ...data.progress import progress
from ...errors import UserError
from .job import begin, facts_of, work

SUFFIX = ".npz"


def outputs_in_parts(
    place: str,
    facts: Mapping[str, Any],
    batch: int,
    compute: Callable[[range], Outputs],
    merge: bool,
    note: Callable[[str], None],
) -> dict[str, np.ndarray]:
    """A task's outputs of a split, computed together with other workers -> {name: [n, ...]}, in the order of the
    split.
    """
    each = max(int(facts["part_size"]) // batch, 1)
    if merge:
        facts_of(place)
    job = begin(place, {"what": "evaluation", **facts, "part_size": each * batch, "batch": batch}, SUFFIX)

    def part(number: int) -> bytes:
        return to_bytes(*compute(range(number * each, (number + 1) * each)))

    if merge:
        job.check_whole()
    else:
        with progress(f"{place}: computing", job.count, "parts") as show:
            mine = work(job, part, show, note)
        print(f"{place}: all {job.count:,} parts are there, {mine:,} of them by this command")
    return in_order([from_bytes(f"{place}/{job.name(k)}", job.read(k)) for k in range(job.count)])


def to_bytes(out: Mapping[str, np.ndarray], order: np.ndarray) -> bytes:
    """Outputs and the numbers of their examples as a .npz; dtypes that numpy's format lacks are in `dtypes`."""
    file, dtypes = io.BytesIO(), np.array([x.dtype.name for x in out.values()])
    plain: dict[str, Any] = {"order": order, "dtypes": dtypes}
    for name, x in out.items():
        plain[f"out.{name}"] = x.view(f"u{x.itemsize}") if x.dtype.kind == "V" else x
    np.savez(file, **plain)
    return file.getvalue()


def from_bytes(where: str, content: bytes) -> Outputs:
    """What `to_bytes` was given. Raises UserError, which names `where`, if the content is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            names = [name for name in found.files if name.startswith("out.")]
            pairs = zip(names, found["dtypes"].tolist(), strict=True)
            return {name.removeprefix("out."): found[name].view(dtype) for name, dtype in pairs}, found["order"]
    except (ValueError, KeyError, OSError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(where, f"is damaged ({error})", "delete it, and repeat the command without --merge") from error
