"""Official archives to one file of arrays, DIR/NAME/VERSION.npz, in the order in which TFDS writes their records.

A run on it is the same run as on the folder that TFDS prepares, DIR/NAME/VERSION. The archives lie in
DIR/downloads/NAME until the file stands; one that the user put there is checked, used and kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files.arrays import read_arrays
from ...files.atomic import sync_folder
from ...files.digests import array_digest, text_digest
from ...files.locks import lock_file
from ..progress import progress
from .archives import OFFICIAL, Archive
from .contents import Contents, read_contents
from .download import NotFetched, difference, fetch
from .places import find_prepared

_WAIT = 0.5  # seconds between looks at whether another process is done
_SPLITS = ("train", "test")
_ARRAYS = ("class_names", *(f"{split}_{what}" for split in _SPLITS for what in ("images", "labels")))


def plan(root: Path, name: str) -> str:
    """What `prepare` would do, in a sentence."""
    place = _downloads(root, name)
    absent = [archive for archive in OFFICIAL[name].archives if not (place / archive.name).exists()]
    files = ", ".join(f"{each.name} ({_megabytes(each.bytes)}) from {each.addresses[0]}" for each in absent)
    fetching = f"fetch {files} to {place}, and " if absent else f"read {place}, and "
    return f"not prepared yet: the run would {fetching}prepare {_file(root, name)}"


def prepare(root: Path, name: str, download: bool = True) -> Path:
    """Where an official set lies, which is prepared if it is not there; of several processes one does it."""
    place, archives = _downloads(root, name), OFFICIAL[name].archives
    if not download and not all((place / archive.name).exists() for archive in archives):
        raise _absent(root, name, "and data.download is false", "give `data.download True`")
    waits: list[str] = []

    def wait(process: str) -> None:
        waits.append(process)
        if len(waits) == 2:  # at first it may not have written its number yet
            print(f"waiting  for process {process}, which prepares {name} in {root}", flush=True)
        time.sleep(_WAIT)

    with _report_system_errors(root, name), _lock(place, wait):
        found = find_prepared(root, name)
        if found is None:
            _check_space(root, name)
            paths = [_archive(root, name, archive) for archive in archives]
            found = write_set(root, name, read_contents(OFFICIAL[name], paths))
            print(f"prepared {found}", flush=True)
        _clear(place, archives)
        return found


def write_set(root: Path, name: str, contents: Contents) -> Path:
    """Write the file of an official set, whose images and labels are in the order of its archives; returns its path."""
    arrays = {"class_names": np.array(contents.names)}
    for split, pixels in contents.pixels.items():
        order = _order_of_records(split, len(pixels))
        arrays[f"{split}_images"] = pixels.take(order, axis=0)
        arrays[f"{split}_labels"] = contents.labels[split].take(order).astype(np.int32)
    path = _file(root, name)
    unfinished = path.with_suffix(".part")  # one that a killed process left is written over
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(unfinished, "wb") as file:
            np.savez(file, digest=np.array(_digest(arrays)), **arrays)  # type: ignore[arg-type]  # see sources/index.py
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds a version of the set
            path.parent.rmdir()
    return path


def read_set(path: Path) -> Contents:
    """What `write_set` wrote, in the order of TFDS's records. Raises UserError where it is not as it was written."""
    remedy = "restore it, or remove it to have it fetched again"
    try:
        arrays = read_arrays(path, ("digest", *_ARRAYS))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(path, f"cannot be read ({why})", remedy) from error
    if str(arrays.pop("digest", "")) != _digest(arrays) or arrays.keys() != {*_ARRAYS}:
        raise UserError(path, "is damaged: its digest is not that of its arrays", remedy)
    pixels, labels = ({split: arrays[f"{split}_{what}"] for split in _SPLITS} for what in ("images", "labels"))
    return Contents(pixels, labels, tuple(arrays["class_names"].tolist()))


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    return text_digest({name: array_digest(array) for name, array in arrays.items()})


def _order_of_records(split: str, n: int) -> list[int]:
    """The places in the archive of TFDS's n records, in their order: by the MD5 of the split's name and the place."""
    return sorted(range(n), key=lambda i: hashlib.md5(f"{split}{i}".encode(), usedforsecurity=False).digest())


def _file(root: Path, name: str) -> Path:
    return root / name / f"{OFFICIAL[name].version}.npz"


def clear_fetched(root: Path, name: str) -> None:
    """Remove the archives of a set that is prepared, where the process that prepared it did not live to do that.

    They stay where another process is at work on them, and where nothing can be removed.
    """
    place = _downloads(root, name)

    def leave(process: str) -> None:
        raise BlockingIOError(f"process {process} is at work")

    with contextlib.suppress(OSError, UserError):
        parts = [part for archive in OFFICIAL[name].archives if (part := _part(place, archive)).exists()]
        if parts:
            with _lock(place, leave):
                for part in parts:
                    part.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(place: Path, taken: Callable[[str], None]) -> Iterator[None]:
    """A context in which no other process prepares the set whose archives are in `place`; `taken` as in `runs.locked`.

    Afterwards the folder is removed unless it holds archives.
    """
    lock = place / ".lock"
    with lock_file(lock, taken):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # a process that waits for it sees this, and makes another
            for path in (place, place.parent):
                with contextlib.suppress(OSError):  # other files are in it
                    path.rmdir()


def _downloads(root: Path, name: str) -> Path:
    """Where the archives of a set are until it stands, and where a user may put them."""
    return root / "downloads" / name


def _part(place: Path, archive: Archive) -> Path:
    """The file that we fetch an archive to; it keeps this name, so that it can be told from what a user put there."""
    return place / f"{archive.name}.part"


def _archive(root: Path, name: str, archive: Archive) -> Path:
    """The path of an archive with the right content, fetched if need be. Raises UserError."""
    place = _downloads(root, name)
    given, part = place / archive.name, _part(place, archive)
    if given.exists():
        wrong = difference(archive, given) if given.is_file() else "it is not a file"
        if wrong:
            raise UserError(
                given,
                f"is not the official archive ({wrong})",
                f"remove it, or put that of {archive.addresses[0]} there",
            )
        return given
    if not part.exists() or difference(archive, part):
        try:
            with progress(f"fetch    {archive.name}", archive.bytes, "MB", 1e6) as advance:
                fetch(archive, part, advance)
        except NotFetched as error:
            raise _absent(root, name, f"and cannot be fetched: {error}", "repeat the command later") from error
    return part


def _absent(root: Path, name: str, why: str, remedy: str) -> UserError:
    """The error for a set whose archives are not there, with what else a user can do."""
    first, *others = OFFICIAL[name].archives
    folder, _, file = first.addresses[0].rpartition("/")  # which is that of the others, too
    names = [file, *(archive.name for archive in others)]
    files = f"{', '.join(names)} of {folder}/" if others else first.addresses[0]
    return UserError(
        f"data.source {name}",
        f"is not prepared in {root} {why}",
        f"{remedy}, put {files} into {_downloads(root, name)}, or give `data.dir` the folder that holds "
        f"{name}/VERSION.npz or {name}/VERSION/dataset_info.json",
    )


def _check_space(root: Path, name: str) -> None:
    official, place = OFFICIAL[name], _downloads(root, name)
    fetched = sum(a.bytes for a in official.archives if not (place / a.name).exists() and not _part(place, a).exists())
    needed = fetched + sum(official.splits.values()) * math.prod(official.shape)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise UserError(
            f"data.dir {root}",
            f"has {_megabytes(free)} free but {name} needs up to {_megabytes(needed)}",
            "free some space there, or give `data.dir` another folder",
        )


def _clear(place: Path, archives: Sequence[Archive]) -> None:
    """Remove what we fetched, and say what of the user's is no longer needed."""
    for archive in archives:
        _part(place, archive).unlink(missing_ok=True)
    if kept := [str(place / archive.name) for archive in archives if (place / archive.name).exists()]:
        print(f"         {', '.join(kept)}: no longer needed", flush=True)


@contextlib.contextmanager
def _report_system_errors(root: Path, name: str) -> Iterator[None]:
    """Within the block, what the system refuses is told in a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"data.dir {root}",
            f"{name} cannot be prepared there ({error.strerror or error})",
            "free space or mend permissions there, or give `data.dir` another folder",
        ) from error


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size < 1e8 else f"{size / 1e6:,.0f} MB"
