"""Names of the old Flax classes of Hugging Face transformers: those of the torch files, with other leaves and axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..layout import Field, Names

LEAVES = ("kernel", "scale", "embedding")  # which torch calls weight
AXES = {2: (1, 0), 4: (3, 2, 0, 1)}  # of a kernel, by the number of its axes, as torch has them


def as_torch(names: Names) -> Names:
    """The names and shapes of a file's tensors as a torch file of the same network has them."""
    out = {}
    for name, shape in names.items():
        path, _, leaf = name.replace("/", ".").rpartition(".")
        axes = AXES.get(len(shape)) if leaf == "kernel" else None
        out[f"{path}.{'weight' if leaf in LEAVES else leaf}"] = tuple(shape[i] for i in axes) if axes else shape
    return out


def field_of_flax(field: Field) -> Field:
    """A field of the torch files' table, solved from a Flax file."""
    solve: Callable[[Names], object] | None = field.solve
    follow = field.follow
    return replace(
        field,
        solve=(lambda names: solve(as_torch(names))) if solve else None,
        follow=(lambda names, values: follow(as_torch(names), values)) if follow else None,
    )
