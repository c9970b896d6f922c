"""What decoding every image of a split has shown, kept for later starts on the same files.

Images that do not fit into memory are decoded batch by batch. Before that each is decoded once, because a run has to
know what its data is and which images cannot be read. An index in the user's cache keeps what was found: a later start
decodes only the files whose name, size or time of change is another, and one that was interrupted goes on.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import UserError
from ....files.arrays import read_arrays
from ....files.atomic import read_json, replacing, write_json
from ....files.digests import text_digest, with_digest, without_digest
from ....machine.backend import cache_folder
from ..high_bit_depth import PLAIN
from ..identity import SIZE
from .base import Stamps

FORMAT = 2
OF_IMAGES = ("known", "digests", "shapes", "extents", "labels")  # a row each
ARRAYS = ("format", "names", "sizes", "times", *OF_IMAGES, "unreadable")
SETTLED = 2_000_000_000  # ns: a file that changed less than this before it was read may have changed again unseen


def compute_once(decided_by: Any, compute: Callable[[], Any]) -> Any:
    """A JSON value from an earlier start, else computed, and kept where that is allowed."""
    path = cache_folder("indexes") / f"{text_digest(decided_by)}.json"
    with suppress(UserError, KeyError):
        record, intact = without_digest(read_json(path))
        if intact:
            return record["value"]
    value = compute()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, with_digest({"value": value}))
    return value


@dataclass
class Index:
    """What is known of the n images of a split."""

    known: np.ndarray  # bool [n]: whether the rest is known of an image
    digests: np.ndarray  # uint8 [n, identity.SIZE], of what identifies it; 0 of one that cannot be read
    shapes: np.ndarray  # int32 [n, 2]: width and height, as it is shown
    extents: np.ndarray  # float64 [n, 4]: a row a wide.Extent
    labels: np.ndarray  # int32 [n]
    unreadable: dict[int, str]

    @classmethod
    def of_nothing(cls, n: int) -> Index:
        """Nothing is known of n images."""
        digests, shapes, labels = np.zeros((n, SIZE), np.uint8), np.zeros((n, 2), np.int32), np.zeros(n, np.int32)
        return cls(np.zeros(n, bool), digests, shapes, np.tile(np.array(PLAIN, float), (n, 1)), labels, {})

    def rows(self, here: np.ndarray, there: np.ndarray, n: int) -> Index:
        """What is known of other rows: here int [k], there int [k]."""
        out = Index.of_nothing(n)
        for name in OF_IMAGES:
            getattr(out, name)[here] = getattr(self, name)[there]
        places = dict(zip(there.tolist(), here.tolist(), strict=True))
        out.unreadable = {places[row]: why for row, why in self.unreadable.items() if row in places}
        return out


def _file_of(stamps: Stamps) -> Path:
    """The file of the index of a split."""
    files = stamps.names if stamps.whole else [stamps.part] if stamps.part else []  # which may share a folder
    return cache_folder("indexes") / f"{text_digest([stamps.folder, *files])}.npz"


def _file_of_moved(stamps: Stamps) -> Path:
    """The file that names the index of a split of the same files in another folder, from where these were moved."""
    return cache_folder("indexes") / f"{text_digest(['moved', stamps.names, stamps.sizes.tolist()])}.moved"


def find(stamps: Stamps, n: int) -> Index:
    """What an index knows of the n images of a split, here or where they were before: nothing if there is none."""
    found = _read(_file_of(stamps), stamps, n)
    if not found.known.any():
        with suppress(UserError, OSError, KeyError, TypeError):
            found = _read(cache_folder("indexes") / Path(read_json(_file_of_moved(stamps))["index"]).name, stamps, n)
    return found


def _read(path: Path, stamps: Stamps, n: int) -> Index:
    """What the index in a file knows of a split: nothing if there is none, or a damaged one."""
    try:
        file = read_arrays(path, ARRAYS)
        if file["format"] != FORMAT:
            return Index.of_nothing(n)
        names = file["names"].tobytes().decode("utf-8", "surrogateescape").split("\0")
        sizes, times = file["sizes"], file["times"]
        unreadable = {int(row): str(why) for row, why in json.loads(file["unreadable"].tobytes()).items()}
        known = {name: file[name] for name in OF_IMAGES}
        index = Index(**known, unreadable=unreadable)
        here, there = _same(stamps, names, sizes, times)
        if stamps.whole:  # its files hold all images together
            here = there = np.arange(n if len(here) == len(names) == len(stamps.names) else 0)
        return index.rows(here, there, n)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, UserError):
        return Index.of_nothing(n)


def _same(stamps: Stamps, names: list[str], sizes: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(files of a split, the same files in the index): those with equal names, sizes and times of change."""
    if names == stamps.names:
        here = there = np.arange(len(names))
    else:
        place = {name: i for i, name in enumerate(names)}
        pairs = [(i, place[name]) for i, name in enumerate(stamps.names) if name in place]
        here, there = np.array(pairs, np.int64).reshape(-1, 2).T
    same = (stamps.sizes[here] == sizes[there]) & (stamps.times[here] == times[there])
    return here[same], there[same]


def save(stamps: Stamps, index: Index, began: int) -> str:
    """Write the index of a split; files that changed shortly before `began`, ns since 1970, or after are not known."""
    settled = stamps.times < began - SETTLED
    known = index.known & (settled.all() if stamps.whole else settled)
    arrays = {name: getattr(index, name) for name in OF_IMAGES} | {
        "format": np.array(FORMAT),
        "names": np.frombuffer("\0".join(stamps.names).encode("utf-8", "surrogateescape"), np.uint8),
        "sizes": stamps.sizes,
        "times": stamps.times,
        "known": known,
        "unreadable": np.frombuffer(json.dumps(index.unreadable).encode(), np.uint8),
    }
    path = _file_of(stamps)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished, open(unfinished, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes a name for the option allow_pickle
            file.flush()
            os.fsync(file.fileno())
        if known.all():
            write_json(_file_of_moved(stamps), {"index": path.name})
        return ""
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                path.parent,
                f"there is no room for the index of {len(index.known):,} images",
                "free some, or set XDG_CACHE_HOME to a folder with room",
            ) from error
        return f"each start reads all images, as {path.parent} cannot be written ({error.strerror or error})"
