"""Files that commands write on request: checked before any work is done, written whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import UserError


def check_output(flag: str, path: str, force: bool) -> None:
    """Raise UserError if the file of a flag cannot be written, or exists without `force`; '' is no file."""
    if not path:
        return
    if Path(path).is_dir():
        raise UserError(f"--{flag} {path}: is a folder; give the name of a file")
    if Path(path).exists() and not force:
        raise UserError(f"--{flag} {path}: exists already; add --force to overwrite it, or choose another name")
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"--{flag} {path}: its folder does not exist or cannot be written; choose another")


def write_csv(path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[str | int]]) -> None:
    """Write a CSV table, atomically. File names keep their bytes, also those that are not UTF-8."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(rows)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
