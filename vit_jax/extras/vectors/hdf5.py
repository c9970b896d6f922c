"""Arrays in HDF5 files, which strangers may have written: plain data sets inside the file alone, of a bounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError, require
from ...files.reading import check_regular

LARGEST = 8 << 30  # bytes


def arrays(path: Path, names: dict[str, tuple[str, int]], where: str, rows: slice = slice(None)) -> list[np.ndarray]:
    """Rows of the data sets of a file."""
    check_regular(path)
    if not path.is_file():
        raise UserError(where, f"there is no {path.name}", "put it there")
    with require("h5py", "captions"):
        import h5py
    found = []
    try:
        with h5py.File(path, "r") as file:
            for name, (kinds, axes) in names.items():
                _check(h5py, file, name, kinds, axes, f"{where}: {path.name}")
                found.append(np.asarray(file[name][rows]))
    except UserError:
        raise
    except Exception as error:  # whatever a library says of a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
        raise UserError(where, f"{path.name} cannot be read ({reason})", "restore it") from error
    return found


def width(path: Path, name: str, where: str) -> int:
    """The width C of a data set of numbers [n, C], read from the head of the file."""
    return arrays(path, {name: ("f", 2)}, where, slice(0, 0))[0].shape[1]


def _check(h5py: Any, file: Any, name: str, kinds: str, axes: int, where: str) -> None:
    """Raise UserError where a data set is missing, of another kind, not all in this file, or too large."""
    link = file.get(name, getlink=True)
    if link is None or not isinstance(link, h5py.HardLink) or not isinstance(file[name], h5py.Dataset):
        raise UserError(f"{where} has no data set {name!r} of its own", remedy="restore the file")
    found = file[name]
    if found.is_virtual or found.external:
        raise UserError(where, f"{name} lies in other files", "write it into this one")
    if found.dtype.kind not in kinds or found.ndim != axes:
        wanted = "whole numbers" if kinds == "iu" else "floating-point numbers"
        raise UserError(where, f"{name} is {found.dtype} {list(found.shape)}", f"give {wanted} with {axes} axes")
    if found.nbytes > LARGEST:
        raise UserError(where, f"{name} states {found.nbytes >> 30} GB", f"give at most {LARGEST >> 30} GB")
