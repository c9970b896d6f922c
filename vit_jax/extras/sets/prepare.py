"""Official archives to one file of arrays, DIR/NAME/VERSION.npz, in the order in which TFDS writes their records.

A run on it is the same run as on the folder that TFDS prepares, DIR/NAME/VERSION. The archives lie in
DIR/downloads/NAME until the file stands; one that the user put there is checked, used and kept. Their members are read
by their exact names and in their exact sizes, without pickle, and nothing is extracted to the disk.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ...data.prepared import find_prepared
from ...data.progress import progress
from ...errors import UserError
from ...files.arrays import read_arrays
from ...files.atomic import lock_file, sync_folder
from ...files.digests import array_digest, text_digest
from .archives import OFFICIAL, Archive, CifarSet, IdxSet, NotFetched, OfficialSet, difference, fetch

_MOST_NAMES = 1 << 16  # bytes
_OTHER = 1 << 20  # bytes of a member that is not used, such as readme.html
_WAIT = 0.5  # seconds
_SPLITS = ("train", "test")
_ARRAYS = ("class_names", *(f"{split}_{what}" for split in _SPLITS for what in ("images", "labels")))


@dataclass(frozen=True)
class SetArrays:
    """The images and labels of a set."""

    pixels: dict[str, np.ndarray]  # {split: uint8 [n, h, w, C]}
    labels: dict[str, np.ndarray]  # {split: integers [n]}
    names: tuple[str, ...]


def plan(root: Path, name: str) -> str:
    """What `prepare` would do, in a sentence."""
    place = _downloads(root, name)
    absent = [archive for archive in OFFICIAL[name].archives if not (place / archive.name).exists()]
    files = ", ".join(f"{each.name} ({each.bytes / 1e6:,.1f} MB) from {each.addresses[0]}" for each in absent)
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

    try:
        with _lock(place, wait):
            found = find_prepared(root, name)
            if found is None:
                paths = [_archive(root, name, archive) for archive in archives]
                found = write_set(root, name, _read_archives(OFFICIAL[name], paths))
                print(f"prepared {found}", flush=True)
            _clear(place, archives)
            return found
    except OSError as error:
        raise UserError(
            f"data.dir {root}",
            f"{name} cannot be prepared there ({error.strerror or error})",
            "free space or mend permissions there, or give `data.dir` another folder",
        ) from error


def write_set(root: Path, name: str, contents: SetArrays) -> Path:
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


def read_set(path: Path) -> SetArrays:
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
    return SetArrays(pixels, labels, tuple(arrays["class_names"].tolist()))


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    return text_digest({name: array_digest(array) for name, array in arrays.items()})


def _order_of_records(split: str, n: int) -> list[int]:
    """The places in the archive of TFDS's n records, in their order: by the MD5 of the split's name and the place."""
    return sorted(range(n), key=lambda i: hashlib.md5(f"{split}{i}".encode(), usedforsecurity=False).digest())


def _file(root: Path, name: str) -> Path:
    return root / name / f"{OFFICIAL[name].version}.npz"


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


def _clear(place: Path, archives: Sequence[Archive]) -> None:
    """Remove what we fetched, and say what of the user's is no longer needed."""
    for archive in archives:
        _part(place, archive).unlink(missing_ok=True)
    if kept := [str(place / archive.name) for archive in archives if (place / archive.name).exists()]:
        print(f"         {', '.join(kept)}: no longer needed", flush=True)


def _read_archives(official: OfficialSet, paths: Sequence[Path]) -> SetArrays:
    """What the archives of a set hold, in their order."""
    try:
        return _cifar(official, paths[0]) if isinstance(official, CifarSet) else _idx(official, paths)
    except (EOFError, ValueError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        named = " and ".join(map(str, paths))
        raise UserError(named, f"cannot be read ({error})", "remove it, and repeat the command") from error


def _cifar(official: CifarSet, path: Path) -> SetArrays:
    first = official.label + 1  # byte of the pixels
    record = first + math.prod(official.shape)
    exact = {batch.member: batch.images * record for batch in official.batches}
    most = {official.names: _MOST_NAMES, **exact}
    found: dict[str, bytes] = {}
    with tarfile.open(path, "r:gz") as archive:
        while found.keys() != most.keys() and (member := archive.next()) is not None:
            if member.size > most.get(member.name, _OTHER) or member.size < exact.get(member.name, 0):
                raise ValueError(f"{member.name!r} has {member.size:,} bytes")
            if member.name in most:
                file = archive.extractfile(member) if member.isreg() else None
                if file is None:
                    raise ValueError(f"{member.name!r} is not a file")
                found[member.name] = file.read()
    if missing := sorted(most.keys() - found.keys()):
        raise ValueError(f"it has no {missing[0]}")

    pixels, labels = {}, {}
    for split in official.splits:
        records = np.concatenate(
            [np.frombuffer(found.pop(b.member), np.uint8) for b in official.batches if b.split == split]
        ).reshape(-1, record)
        labels[split] = records[:, official.label]
        pixels[split] = records[:, first:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return SetArrays(pixels, labels, tuple(filter(None, found[official.names].decode().split("\n"))))


def _idx(official: IdxSet, paths: Sequence[Path]) -> SetArrays:
    pixels, labels = {}, {}
    for i, (split, n) in enumerate(official.splits.items()):
        with gzip.open(paths[2 * i]) as images, gzip.open(paths[2 * i + 1]) as numbers:
            pixels[split] = _array(images, 0x803, (n, *official.shape[:2]))[..., None]
            labels[split] = _array(numbers, 0x801, (n,))
    return SetArrays(pixels, labels, official.names)


def _array(file: IO[bytes] | gzip.GzipFile, magic: int, shape: tuple[int, ...]) -> np.ndarray:
    """The array of an idx file: `magic` and the sizes as big-endian int32, then uint8 in C order."""
    head = np.array([magic, *shape], ">i4").tobytes()
    size = len(head) + int(np.prod(shape))
    content = file.read(size + 1)
    if len(content) != size or not content.startswith(head):
        raise ValueError(f"it does not hold bytes of shape {list(shape)}")
    return np.frombuffer(content, np.uint8, offset=len(head)).reshape(shape)
