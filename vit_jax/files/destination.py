"""Where commands may write: checked before any work is done.

A file that exists is replaced where `force` is given, but never one that the command reads, nor one of a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import UserError
from .reading import show_path

# What a run keeps in its folder. Another file may be written there.
OF_A_RUN = frozenset(
    {"config.json", "metrics.jsonl", "histograms.jsonl", "summary.json", "report.html", "checkpoints", "digests"}
    | {"plots", "samples", "tokenizer", "tensorboard", "wandb", "profile", ".lock"}
)
BY_NAME = (".csv", ".npz", ".html")  # suffixes of files that are read by their names alone, not with their folder
ANOTHER = "choose another name"
NO_FILE = "is a device or a pipe, and no file"
STDOUT, AS_STDOUT = "-", "is stdout for other programs, and here a file is written"


def check_outputs(outputs: Mapping[str, str], force: bool, reads: Iterable[str | Path] = ()) -> None:
    """Check that the files of a command can all be written."""
    reads, known = list(reads), dict[str, str]()
    for name, path in outputs.items():
        check_output(name, path, force, reads)
        if path and (other := known.setdefault(os.path.realpath(path).casefold(), name)) != name:
            raise UserError(f"{name} {path}", f"is the file of {other}, too", ANOTHER)


def check_output(name: str, path: str, force: bool, reads: Iterable[str | Path] = (), own: Iterable[Path] = ()) -> None:
    """Check that the file of an option can be written."""
    if not path:
        return
    argument = f"{name} {path}" if name else path
    if path == STDOUT:
        raise UserError(argument, AS_STDOUT, "give the name of one")
    if Path(path).is_dir():
        raise UserError(argument, "is a folder", "give the name of a file")
    if Path(path).exists() and not Path(path).is_file():  # a file in its place would take its name
        raise UserError(argument, NO_FILE, "give the name of a file")
    check_apart(argument, Path(path), reads, own)
    if Path(path).exists() and not force:
        raise UserError(argument, "exists already", f"add `force True` to overwrite it, or {ANOTHER}")
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(argument, "its folder does not exist or cannot be written", "choose another")


def check_folder(name: str, path: str, force: bool, reads: Iterable[str | Path] = ()) -> None:
    """Check that the folder of an option can be made."""
    if not path:
        return
    argument, folder, held = f"{name} {path}", Path(path), [*map(Path, reads)]
    another = "choose another folder"
    if folder.exists() and not folder.is_dir():
        raise UserError(argument, "is no folder", "give the name of a new one")
    check_apart(argument, folder, held)
    if _is_run(folder):
        raise UserError(argument, "is a run", another)
    for read in held:
        if _is_in(folder, read) if _is_data(read) else read.is_file() and _same(folder, read.absolute().parent):
            raise UserError(argument, f"is where {show_path(read)} is, which is read", another)
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UserError(argument, "holds files already", f"add `force True` to overwrite them, or {another}")
    above = folder if folder.is_dir() else folder.absolute().parent
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UserError(argument, "it cannot be made or written there", another)


def check_apart(argument: str, path: Path, reads: Iterable[str | Path] = (), own: Iterable[Path] = ()) -> None:
    """Check that a path is neither a file of a run nor one that a command reads; links are followed, hard ones too."""
    real, again = Path(os.path.realpath(path)), {os.path.realpath(each) for each in own}
    for folder in filter(_is_run, real.parents):
        name = real.relative_to(folder).parts[0]
        if str(real) not in again and name.casefold() in OF_A_RUN:
            raise UserError(argument, f"is of the run {show_path(folder)}", ANOTHER)
    for read in map(Path, reads) if real.exists() else ():
        held = _is_data(read) and real.suffix not in BY_NAME and _is_in(real, read)
        if held or _same(real, read) or _is_linked(real, read):
            raise UserError(argument, "is what the command reads", ANOTHER)


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run, maybe a damaged one."""
    if (folder / "config.json").exists() and any((folder / name).exists() for name in ("checkpoints", "metrics.jsonl")):
        return True
    return any((folder / "digests").glob("[0-9]*.json"))


def _is_data(path: Path) -> bool:
    """Whether a path that is read is a folder that is read whole; in that of a run other files may be."""
    return path.is_dir() and not _is_run(path)


def _is_in(path: Path, folder: Path) -> bool:
    """Whether a path, be it there or not, is a folder or in it, whatever they are called."""
    return any(_same(each, folder) for each in (path.absolute(), *path.absolute().parents))


def _is_linked(path: Path, folder: Path) -> bool:
    """Whether a file that is there has another name in a folder."""
    if not folder.is_dir() or not path.is_file() or path.stat().st_nlink < 2:
        return False
    return any(_same(path, Path(base, name)) for base, _, names in os.walk(folder) for name in names)


def _same(a: Path, b: Path) -> bool:
    """Whether two paths are of the same file or folder, which is there."""
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return False
