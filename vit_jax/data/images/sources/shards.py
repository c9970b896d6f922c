"""The files of a prepared set, looked at before they are read, so that the one that is wrong can be named."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....errors import UserError
from .base import first_line

_SMALLEST = 1 << 16  # bytes of an array_record file, which is padded
_SPARE = 128  # files that the rest of a run has open
_HEAD = 1 << 17  # bytes of a file that are compared first
AGAIN = "restore it, or prepare the set again"


@dataclass(frozen=True)
class Shard:
    """A file of a split, and how many records it has by dataset_info.json."""

    path: str
    records: int


def make_room(field: str, count: int) -> None:
    """Let this process have more files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = Path("/proc/self/fd")
    needed = count + _SPARE + (len(os.listdir(opened)) if opened.is_dir() else 0)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            field,
            f"its {count:,} files are open at the same time, and a process may have {hard:,} open here",
            f"allow {needed:,} with ulimit -n {needed} in the shell, or prepare the set with fewer shards",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def check_shards(shards: Sequence[Shard]) -> None:
    """Raise UserError about the first file that is not there, cannot be read, or has another number of records."""
    from array_record.python.array_record_module import ArrayRecordReader

    for shard in shards:
        if fault := _fault(shard.path):
            raise UserError(shard.path, *fault)
        try:
            reader = ArrayRecordReader(shard.path)
            found = reader.num_records()
            reader.close()
        except RuntimeError as error:  # the reader's, for all that is wrong, which it tells only in words
            limited = os.strerror(errno.EMFILE) in str(error)
            remedy = "raise ulimit -n in the shell" if limited else AGAIN
            raise UserError(shard.path, f"cannot be read ({first_line(error)})", remedy) from error
        if found != shard.records:
            what = f"holds {found:,} records and not {shard.records:,}, which dataset_info.json states"
            raise UserError(shard.path, f"{what}: it is another file under this name", AGAIN)


def check_different(shards: Sequence[Shard]) -> None:
    """Raise UserError where two files are the same, so that one of them is under a wrong name."""
    same: dict[tuple[int, ...] | tuple[int, bytes], list[str]] = defaultdict(list)
    for shard in shards:
        same[(os.stat(shard.path).st_size, shard.records)].append(shard.path)
    for most in (_HEAD, -1):
        alike, same = [paths for paths in same.values() if len(paths) > 1], defaultdict(list)
        for group, paths in enumerate(alike):
            for path in paths:
                same[(group, _digest(path, most))].append(path)
    for paths in same.values():
        if len(paths) > 1:
            raise UserError(paths[1], f"is the same file as {Path(paths[0]).name}", AGAIN)


def _digest(path: str, most: int) -> bytes:
    """A digest of the first `most` bytes of a file; of all if it is negative."""
    digest = hashlib.blake2b()
    with open(path, "rb") as file:
        if most >= 0:
            digest.update(file.read(most))
        else:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.digest()


def _fault(path: str) -> tuple[str, str] | None:
    """(what is wrong with a file before it is opened, the remedy); None if nothing is seen."""
    try:
        found = os.stat(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})", AGAIN
    if not stat.S_ISREG(found.st_mode):
        return "is no file", AGAIN
    if not os.access(path, os.R_OK):
        return "cannot be read (Permission denied)", "mend its permissions"
    if found.st_size >= _SMALLEST:
        return None
    with open(path, "rb") as file:
        pointer = file.read(40).startswith(b"version https://git-lfs")
    if pointer:
        return "is a pointer of Git LFS", "fetch the file itself with git lfs pull"
    return f"has {found.st_size:,} bytes, fewer than any array_record file", AGAIN
