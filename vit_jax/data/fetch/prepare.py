"""Official archives to a folder that TFDS opens, DIR/NAME/VERSION, without TensorFlow.

Features, names and the order of records are those that TFDS itself would write; images are PNG. The archives lie in
DIR/downloads/NAME until the folder stands; one that the user put there is checked, used and kept.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files.atomic import sync_file, sync_folder
from ...files.locks import lock_file
from ...machine import backend
from ..progress import progress
from .archives import OFFICIAL, Archive
from .contents import Contents, read_contents
from .download import NotFetched, difference, fetch
from .places import find_prepared

_WAIT = 0.5  # seconds between looks at whether another process is done
_CHUNK = 1024  # images that are encoded before they are written


def plan(root: Path, name: str) -> str:
    """What `prepare` would do, in a sentence."""
    place = _downloads(root, name)
    absent = [archive for archive in OFFICIAL[name].archives if not (place / archive.name).exists()]
    files = ", ".join(f"{each.name} ({_megabytes(each.bytes)}) from {each.addresses[0]}" for each in absent)
    fetching = f"fetch {files} to {place}, and " if absent else f"read {place}, and "
    return f"not prepared yet: the run would {fetching}prepare {root / name}"


def prepare(root: Path, name: str, download: bool = True) -> Path:
    """The folder of an official set, which is prepared if it is not there; of several processes one does it."""
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
        folder = find_prepared(root, name)
        if folder is None:
            _check_space(root, name)
            paths = [_archive(root, name, archive) for archive in archives]
            folder = _write(root, name, read_contents(OFFICIAL[name], paths))
            print(f"prepared {folder}", flush=True)
        _clear(place, archives)
        return folder


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
        f"{name}/VERSION/dataset_info.json",
    )


def _check_space(root: Path, name: str) -> None:
    official, place = OFFICIAL[name], _downloads(root, name)
    fetched = sum(a.bytes for a in official.archives if not (place / a.name).exists() and not _part(place, a).exists())
    needed = fetched + sum(official.splits.values()) * math.prod(official.shape)  # as PNG it takes less
    free = shutil.disk_usage(root).free
    if free < needed:
        raise UserError(
            f"data.dir {root}",
            f"has {_megabytes(free)} free but {name} needs up to {_megabytes(needed)}",
            "free some space there, or give `data.dir` another folder",
        )


def _write(root: Path, name: str, contents: Contents) -> Path:
    """Write a set's folder beside its place, and rename it when it is whole. Raises UserError and OSError."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.naming import ShardedFileTemplate
    from tensorflow_datasets.core.splits import SplitDict, SplitInfo

    builder = tfds.builder(name, data_dir=root, file_format="array_record")
    for label, names in contents.names.items():
        builder.info.features[label].names = names  # of which the builder has only the number
    folder = root / name / str(builder.version)
    if folder.exists():
        raise UserError(folder, "has no dataset_info.json, so it is no prepared set", "remove it")
    unfinished = folder.with_name(f"incomplete.{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    unfinished.mkdir(parents=True)
    try:
        files = ShardedFileTemplate(data_dir=unfinished, dataset_name=name, filetype_suffix="array_record")
        splits = []
        with progress(f"prepare  {name}", sum(map(len, contents.pixels.values())), "images") as advance:
            done = 0
            for split, pixels in contents.pixels.items():
                path = unfinished / f"{name}-{split}.array_record-00000-of-00001"
                size = _write_split(path, split, contents, advance, done)
                done += len(pixels)
                splits.append(
                    SplitInfo(name=split, shard_lengths=[len(pixels)], num_bytes=size, filename_template=files)
                )
        builder.info.set_splits(SplitDict(splits))
        builder.info.write_to_directory(unfinished)
        for file in unfinished.iterdir():
            sync_file(file)
        sync_folder(unfinished)
        os.rename(unfinished, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds a version of the set
            folder.parent.rmdir()
    return folder


def _write_split(path: Path, split: str, contents: Contents, advance: Callable[[int], None], before: int) -> int:
    """Write the records of a split, in the order of TFDS's hash of their index; returns their bytes.

    `advance` is called with the number of records that are written, `before` of them in other splits.
    """
    from array_record.python.array_record_module import ArrayRecordWriter
    from tensorflow_datasets.core.hashing import Hasher

    hasher = Hasher(split)
    order = sorted(range(len(contents.pixels[split])), key=hasher.hash_key)
    size = 0
    try:
        writer = ArrayRecordWriter(str(path), "group_size:1")  # the only group size that TFDS reads
        with ThreadPoolExecutor(backend.cores(), thread_name_prefix="vit-jax-encode") as pool:
            for start in range(0, len(order), _CHUNK):
                for record in pool.map(lambda i: _record(contents, split, i), order[start : start + _CHUNK]):
                    writer.write(record)
                    size += len(record)
                advance(before + min(start + _CHUNK, len(order)))
        writer.close()
    except RuntimeError as error:  # the writer's, for errors of the system, which it only tells in words
        raise UserError(
            path,
            f"cannot be written ({str(error).partition(';')[0]})",
            "free space or mend permissions there, or give `data.dir` another folder",
        ) from error
    return size


def _record(contents: Contents, split: str, i: int) -> bytes:
    """Example i of a split as a serialized tf.train.Example."""
    from PIL import Image
    from tensorflow_datasets.proto import tf_example_pb2

    pixels, png = contents.pixels[split][i], io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)).save(png, "png")
    example = tf_example_pb2.Example()
    feature = example.features.feature
    feature["image"].bytes_list.value.append(png.getvalue())
    for label, values in contents.labels[split].items():
        feature[label].int64_list.value.append(int(values[i]))
    if contents.numbered:
        feature["id"].bytes_list.value.append(f"{split}_{i:05d}".encode())
    return example.SerializeToString(deterministic=True)


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
