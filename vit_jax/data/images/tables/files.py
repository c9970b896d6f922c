"""Where a table and its images lie: `csv:FILE[:FOLDER]`, or a folder with metadata.csv or metadata.jsonl.

A row names a file within that folder, with or without its extension.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....config.outputs import composed
from ....errors import UserError
from ....files.lines import quote
from ....files.reading import show_path
from ..config import TABLE
from ..preprocess import EXTENSIONS
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
    """The metadata of a folder, or of the folders of splits in it, as Hugging Face's imagefolder has it, if any."""
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


_LISTED = 5


@dataclass
class _Inside:
    """The files of a folder, by the names that a table may give them."""

    whole: dict[str, str] = field(default_factory=dict)  # {name: the same as it is on the disk}
    stems: dict[str, list[str]] = field(default_factory=dict)  # {name without extension: images of it}

    @classmethod
    def of(cls, folder: str) -> _Inside:
        """What is in a folder; nothing in one that is not there."""
        found = cls()
        try:
            with os.scandir(folder or ".") as entries:
                names = sorted(entry.name for entry in entries if _is_file(entry))
        except OSError:
            return found
        for name in names:
            found.whole.setdefault(composed(name), name)
            found.whole[name] = name
            stem, extension = os.path.splitext(name)
            if extension.lower() in EXTENSIONS:
                found.stems.setdefault(composed(stem), []).append(name)
        return found

    def named(self, name: str) -> list[str]:
        """The files of a name; one where it has the extension of an image and is there."""
        exact = self.whole.get(name, self.whole.get(composed(name)))
        if exact and os.path.splitext(name)[1].lower() in EXTENSIONS:
            return [exact]
        return [*dict.fromkeys(([exact] if exact else []) + self.stems.get(composed(name), []))]


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a circle of links
        return False


def find_files(rows: Rows, column: int, folder: Path, bases: Sequence[str] = ("",)) -> tuple[list[str], list[str]]:
    """The image file of each row -> (the paths, one a row; remarks)."""
    if not folder.is_dir():
        raise UserError(show_path(folder), "there is no such folder of images", "give it as csv:FILE:FOLDER")
    inside: dict[str, _Inside] = {}
    missing, paths = [], []
    base = {start: base for start, base in zip(rows.starts, bases, strict=True)}
    here = ""
    for row, name in enumerate(rows.texts(column)):
        here = base.get(row, here)
        _check_name(rows, row, column, name)
        parent, last = os.path.split(os.path.normpath(os.path.join(here, name)))
        if parent not in inside:
            inside[parent] = _Inside.of(os.path.join(folder, parent))
        found = inside[parent].named(last)
        if len(found) > 1:
            what = f"is {quote(name)}, and {' and '.join(found[:3])} are there"
            raise UserError(rows.where(row, column), what, "write the extension of one of them")
        if not found:
            missing.append(row)
            continue
        paths.append(os.path.join(folder, parent, found[0]))
    if missing:
        raise _missing(rows, column, folder, missing)
    return paths, _left(folder, inside, paths)


def _check_name(rows: Rows, row: int, column: int, name: str) -> None:
    """Raise UserError where a name is none, or leads out of the folder."""
    where = rows.where(row, column)
    if not name:
        raise UserError(where, "is empty", "name the image, or remove the row")
    if os.path.isabs(name) or re.match(r"[A-Za-z]:[/\\]|\\|~[/\\]", name):
        raise UserError(where, f"is {quote(name)}, an absolute path", "write it relative to the folder of the images")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name):
        raise UserError(where, f"is {quote(name)}, an address", "fetch the images, and name the files")
    if ".." in re.split(r"[/\\]", name):
        raise UserError(where, f"is {quote(name)}, which leads out of the folder", "write it without ..")


def _missing(rows: Rows, column: int, folder: Path, missing: Sequence[int]) -> UserError:
    """The error for rows whose image is not there."""
    names = [str(rows.cells[row][column]).strip() for row in missing[:_LISTED]]
    listed = ", ".join(f"{quote(name)} (line {rows.lines[row]})" for name, row in zip(names, missing, strict=False))
    more = ", ..." if len(missing) > _LISTED else ""
    count = (
        f"{len(missing):,} of its {len(rows):,} images {'are' if len(missing) > 1 else 'is'} not in {show_path(folder)}"
    )
    remedy = "add them, remove their rows, or name their folder, as csv:FILE:FOLDER"
    if all("\\" in name for name in names):
        remedy = "write / in place of \\ in paths"
    return UserError(rows.title, f"{count}: {listed}{more}", remedy)


def _left(folder: Path, inside: dict[str, _Inside], paths: Sequence[str]) -> list[str]:
    """A remark on images beside those of the table, in the same folders."""
    named = {*paths}
    left = [
        path
        for parent, found in inside.items()
        for name in {name for names in found.stems.values() for name in names}
        if (path := os.path.join(folder, parent, name)) not in named
    ]
    if not left:
        return []
    return [f"images without a row in the table, which are left out: {len(left):,}, such as {show_path(min(left))}"]
