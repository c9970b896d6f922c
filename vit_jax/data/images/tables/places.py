"""Where a table and its images lie: `csv:FILE[:FOLDER]`, or a folder with metadata.csv or metadata.jsonl."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....errors import UserError
from ....files.reading import show_path
from ..config import TABLE
from .columns import HUGGING_FACE, split_of
from .rows import JSON_LINES, Rows, join_tables, read_rows

_METADATA = tuple(f"metadata{suffix}" for suffix in (".csv", *JSON_LINES))


@dataclass(frozen=True)
class Place:
    """The files of a table, and the folder that its images lie in."""

    files: tuple[Path, ...]
    folder: Path
    bases: tuple[str, ...]  # for each file, the folder inside `folder` that its names of images are relative to

    @property
    def name(self) -> str:
        """A short name of the data."""
        file = self.files[0]
        return file.stem if file.name not in _METADATA else self.folder.resolve().name

    def read(self) -> Rows:
        """The rows of all files."""
        return join_tables([read_rows(file) for file in self.files])


def find_table(source: str) -> Place:
    """The place that a source names."""
    text = source.removeprefix(TABLE)
    cuts = [i for i, letter in enumerate(text) if letter == ":"]
    pairs = [(text, ""), *((text[:i], text[i + 1 :]) for i in cuts)]
    file, folder = next((pair for pair in pairs if pair[0] and os.path.lexists(os.path.expanduser(pair[0]))), pairs[-1])
    if not file:
        raise UserError(f"data.source {source}", "names no file", "give csv:FILE, or csv:FILE:FOLDER of its images")
    path = Path(os.path.expanduser(file))
    if not os.path.lexists(path):
        raise UserError(f"data.source {source}", f"there is no file {show_path(path)}", "check the path")
    if path.is_dir():
        inside = metadata_in(path)
        raise UserError(
            f"data.source {source}",
            "is a folder",
            f"give csv:{file}/TABLE.csv" + (f", or folder:{file} for its {inside.files[0].name}" if inside else ""),
        )
    return Place((path,), Path(os.path.expanduser(folder)) if folder else path.parent, ("",))


def metadata_in(root: Path) -> Place | None:
    """The metadata of a folder, or of the folders of splits in it, as Hugging Face's imagefolder has it; None if
    none.
    """
    try:
        splits = sorted(entry.name for entry in os.scandir(root) if split_of(entry.name) and entry.is_dir())
    except OSError:
        return None
    found = [(base, root / base / name) for base in ("", *splits) for name in _METADATA]
    found = [(base, path) for base, path in found if path.is_file() and _names_files(path)]
    if not found:
        return None
    bases = [base for base, _ in found]
    if len({*bases}) < len(bases) or ("" in bases and len(bases) > 1):
        listed = " and ".join(show_path(path) for _, path in found[:2])
        raise UserError(f"data.source folder:{root}", f"has {listed}", "keep one of them, or name it as csv:FILE")
    return Place(tuple(path for _, path in found), root, tuple(bases))


def _names_files(path: Path) -> bool:
    """Whether the first line of a metadata file has the column that imagefolder asks for."""
    try:
        with open(path, "rb") as file:
            return bool(re.search(rb"(?<!\w)%b(?!\w)" % HUGGING_FACE.encode(), file.readline(1 << 16)))
    except OSError:
        return False


def splits_by_folder(rows: Rows, column: int, bases: Sequence[str]) -> list[str] | None:
    """The split of each row by the first folder of its path, if all lie in folders called so, of several splits."""
    names, found, here = {start: base for start, base in zip(rows.starts, bases, strict=True)}, [], ""
    for row, cells in enumerate(rows.cells):
        here = names.get(row, here)
        path = os.path.normpath(os.path.join(here, str(cells[column]).strip()))
        first, _, rest = path.replace("\\", "/").partition("/")
        split = split_of(first) if rest else None
        if split is None:
            return None
        found.append(split)
    return found if len({*found}) > 1 else None
