"""Pairs of sentences in files: a folder of splits, two files, or a table of two columns."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from ..errors import UserError

Pairs = list[tuple[str, str]]  # (source sentence, target sentence)

FORMS = "pairs:FROM-TO:FOLDER, pairs:FILE,FILE or tsv:FILE"
_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def are_in_files(source: str) -> bool:
    """Whether a data.source names files of pairs."""
    return source.startswith(("pairs:", "tsv:"))


def read_pairs(source: str) -> dict[str, Pairs]:
    """The pairs of a data.source, {split: pairs}; without splits all are train. Raises UserError.

    pairs:FROM-TO:FOLDER has a split in two files, such as train.FROM and train.TO; pairs:FILE,FILE is two such files.
    Line i of one and line i of the other are pair i. tsv:FILE has a pair in a line, source and target in its first two
    columns, with a tab between them. All files are UTF-8, compressed by gzip if their names end with .gz.
    """
    kind, _, rest = source.partition(":")
    if kind == "tsv":
        return {"train": _table(source, Path(rest).expanduser())}
    if re.match(r"[^-:,/]+-[^:,/]+:.", rest):
        return _folder(source)
    files = rest.split(",")
    if len(files) != 2 or not all(files):
        raise UserError(f"data.source is {source}: give {FORMS}, such as pairs:en-de:multi30k")
    return {"train": _side_by_side(source, *(Path(file).expanduser() for file in files))}


def _folder(source: str) -> dict[str, Pairs]:
    """The pairs of `pairs:FROM-TO:FOLDER`; files whose names begin with test are read as test."""
    languages, _, path = source.removeprefix("pairs:").partition(":")
    left, _, right = languages.partition("-")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"data.source {source}: there is no folder {path}; check the path")
    names_there = (p.name.removesuffix(".gz") for p in folder.iterdir())
    stems = sorted({name.removesuffix(f".{left}") for name in names_there if name.endswith(f".{left}")})
    found: dict[str, Pairs] = {}
    for split, names in _NAMES.items():
        for stem in (s for s in stems if s in names or (split == "test" and s.startswith("test"))):
            files = [folder / f"{stem}.{language}" for language in (left, right)]
            there = [file if file.is_file() else file.with_name(f"{file.name}.gz") for file in files]
            found.setdefault(split, _side_by_side(source, *there))
    if not found.get("train"):
        raise UserError(
            f"data.source {source}: has no pairs in train.{left} and train.{right} (or .gz); put them there"
        )
    return found


def _side_by_side(source: str, left: Path, right: Path) -> Pairs:
    """The lines of two files as pairs."""
    one, two = _lines(source, left), _lines(source, right)
    if len(one) != len(two):
        raise UserError(
            f"data.source {source}: {left.name} has {len(one)} lines and {right.name} has {len(two)}; "
            "give as many of both, line i of one being the translation of line i of the other"
        )
    for file, lines in ((left, one), (right, two)):
        for i, line in enumerate(lines):
            if not line.strip():
                raise UserError(
                    f"data.source {source}: {file.name}, line {i + 1}, is empty; mend it, or remove it from both files"
                )
    return list(zip(one, two, strict=True))


def _table(source: str, file: Path) -> Pairs:
    """The first two columns of a table."""
    pairs = []
    for i, line in enumerate(_lines(source, file)):
        columns = line.split("\t")
        if len(columns) < 2 or not (columns[0].strip() and columns[1].strip()):
            raise UserError(
                f"data.source {source}: line {i + 1}, {line[:40]!r}, is no pair; "
                "give a source, a tab and a target in each line"
            )
        pairs.append((columns[0], columns[1]))
    return pairs


def _lines(source: str, path: Path) -> list[str]:
    """The lines of a file. Raises UserError, naming the line, where it is no UTF-8."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"data.source {source}: {path.name} cannot be read ({reason}); give UTF-8 text with one sentence per line"
        ) from error
    return lines_of(data, f"data.source {source}: {path.name}")


def lines_of(data: bytes, where: str) -> list[str]:
    """The lines of a text. Raises UserError, naming the line, where it is no UTF-8."""
    try:
        # Not splitlines, which would also split at characters such as U+2028.
        return data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise UserError(
            f"{where}, line {line}, is no UTF-8 (it has the byte 0x{byte:02x}); save the file as UTF-8"
        ) from error
