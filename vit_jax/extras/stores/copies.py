"""A folder of a store on this machine: its files are fetched once, and kept in the cache.

For what is read file by file: folders of classes, and prepared sets. Shards are read where they lie.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...data.images.preprocess import EXTENSIONS
from ...data.prepared import MARK, VERSION
from ...data.progress import progress
from ...errors import UserError
from ...files.digests import text_digest
from ...files.places import Store, check_name, store_of
from ...machine.backend import cache_folder
from .base import PLAIN

AT_ONCE = 32
_PIECE = 64 << 20  # bytes of a large file that are held
_TABLES = (".csv", ".json", ".jsonl", ".txt")


def copy_images(place: str, verify: bool) -> str:
    """A folder of images of a store on this machine; of other files there only their names are."""
    store = _listed_store(place)
    names = store.list()
    if not names:
        raise UserError(store.url, "holds nothing", "check the path")
    return str(_copy(store, names, "", EXTENSIONS | {*_TABLES}, verify))


def copy_prepared(place: str, name: str, version: str, verify: bool) -> tuple[Path, str]:
    """A prepared set on this machine -> (the data.dir that holds it, its version)."""
    store = _listed_store(place)
    names = store.list(f"{name}/")
    whole = re.compile(rf"({re.escape(name)}/({VERSION}))(?:/{MARK}|\.npz)").fullmatch
    found = {match[2]: match for match in map(whole, names) if match}
    versions = sorted(found, key=lambda each: [*map(int, each.split("."))])
    if not found or (version and version not in found):
        title = f"{name}:{version}" if version else name
        what = f"is not prepared in {store.url}" + (f" (versions there: {', '.join(versions)})" if found else "")
        raise UserError(f"data.source {title}", what, f"copy its folder there, {name}/ of a data.dir")
    version = version or versions[-1]
    file, folder = found[version].group(0, 1)
    files, below = [x for x in names if x.startswith(f"{folder}/")], folder
    if file.endswith(".npz"):
        files, below = [file], name
    return _copy(store, files, below, frozenset(), verify), version


def _listed_store(place: str) -> Store:
    """The store of a URL that can be listed. Raises UserError."""
    if place.startswith(PLAIN):
        raise UserError(place, "a plain server lists no files", "give s3:// or gs://, or tars of webdataset (wds:)")
    return store_of(place)


def _copy(store: Store, names: list[str], below: str, kinds: frozenset[str], verify: bool) -> Path:
    """The folder on this machine that has these files of a store. Small tables are fetched at every start."""
    root = cache_folder("folders") / text_digest(store.url)[:16] / posixpath.basename(store.url)
    names = [check_name(name) for name in names if name and not name.endswith("/")]  # marks of a folder
    there = {path.relative_to(root).as_posix() for path in (root / below).rglob("*") if path.is_file()}
    for name in there - {*names}:
        (root / name).unlink(missing_ok=True)
    missing = [name for name in names if verify or name not in there]
    again = [name for name in names if name.endswith(_TABLES) and name in there and not verify]
    (root / below).mkdir(parents=True, exist_ok=True)

    def fetch(name: str) -> None:
        _fetch(store, name, root, not kinds or posixpath.splitext(name)[1].lower() in kinds)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fetch, again))
        if missing:
            with progress(f"fetching {store.url}", len(missing), "files") as show:
                for done, _ in enumerate(pool.map(fetch, missing), 1):
                    show(done)
    return root


def _fetch(store: Store, name: str, root: Path, whole: bool) -> None:
    """Fetch a file, which is there when it is complete; or make an empty one of its name."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(prefix="fetching-", dir=root.parent)
    try:
        with open(descriptor, "wb") as file:
            if whole and name.lower().endswith(tuple(EXTENSIONS)):
                file.write(store.load(name) or b"")  # by one request; an image that is gone since cannot be read
            elif whole:
                size, tag = store.stat(name)
                for start in range(0, size, _PIECE):
                    file.write(store.read(name, start, min(start + _PIECE, size), tag))
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
