"""What stores keep, on this machine: copies of runs, in a folder of this process, and of data, which is there for all.

cache/runs/<number>/<scheme>/<bucket>/<path>/    as in a folder of runs
cache/runs/<number>/.lock    locked by the process that has it
cache/runs/<number>/place    a word that is drawn for it
cache/folders/<store>/<name>/    data that is read file by file: folders of classes, and prepared sets

Shards are read where they lie.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import posixpath
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...data.images.preprocess import EXTENSIONS
from ...data.prepared import MARK, VERSION
from ...data.progress import progress
from ...errors import Field, UserError
from ...files.atomic import is_locked, make_folder, try_lock, write_text
from ...files.digests import text_digest
from ...files.places import Store, check_name, join, store_of
from ...files.reading import COPIES, show_path
from ...files.terminal import print_note
from ...machine.backend import cache_folder
from .mirror import PROBE, Mirror
from .objects import PLAIN
from .records import NEWEST

WEIGHTS = "checkpoints/"  # of a run: brought when they are needed
OF_SEVERAL = {"summary.json", "study.db", "sweep.json", "report.html", "plots/curves.png"}  # of groups and sweeps
_HELD = contextlib.ExitStack()  # the lock of this process's folder, as long as it lives
_MIRRORS: dict[Path, Mirror] = {}
AT_ONCE = 32  # files of data that are fetched
_PIECE = 64 << 20  # bytes of a large file that are held
_TABLES = (".csv", ".json", ".jsonl", ".txt")


def check_dir(place: str) -> None:
    """Raise UserError where a folder of runs is at a place that is only read."""
    if place.startswith(PLAIN):
        what = f"is {place}, and a plain server is only read"
        raise UserError(Field("dir"), what, "give a folder, s3://BUCKET/PATH or gs://BUCKET/PATH")


def local_copy(text: str) -> str:
    """The path of a copy here of what a URL names: of a run, or of all runs below it, without weights."""
    folder = _folder(text)
    mirror = _mirror(folder)
    if text.startswith(PLAIN) and mirror.store.tag(NEWEST) is None:
        raise UserError(text, "no run here", "give the URL of a run")
    if mirror.writing or mirror.pull(_say, WEIGHTS):
        _make_folders(mirror)
        return str(folder)
    names = [name for name in mirror.store.list() if not name.startswith(PROBE)]
    inside = [name.removesuffix(f"/{NEWEST}") for name in names if name.endswith(f"/{NEWEST}")]
    if names and not inside:
        raise UserError(text, "there are objects here, and no run", "give the URL of a run, or choose another `name`")
    if folder.exists():
        shutil.rmtree(folder)
    for name in inside:
        local_copy(join(text, name))
    for name in OF_SEVERAL.intersection(names):
        make_folder((folder / name).parent)
        (folder / name).write_bytes(mirror.store.load(name) or b"")
    return str(folder)


def publish_several(folder: Path, *names: str) -> None:
    """Bring files of several runs, of OF_SEVERAL, to the store that keeps their folder; without names all of them."""
    for name in names or OF_SEVERAL:
        if (folder / name).is_file():
            store_of(show_path(folder)).put(name, (folder / name).read_bytes())


def pull_weights(path: Path) -> None:
    """Bring the weights of a run that is kept in a store. Raises UserError where they cannot be had."""
    if (mirror := _MIRRORS.get(path)) is not None and not mirror.writing:
        mirror.pull_rest(_say)
        _make_folders(mirror)


def is_written(path: Path) -> bool:
    """Whether a process writes the run in a folder in the store that keeps it, as far as the newest record tells.

    Of a writer on another machine its last sign of life decides, by the clocks of both.
    """
    mirror = _MIRRORS.get(path)
    if mirror is None or mirror.record is None or not mirror.record.open:
        return False
    alive = _lives(mirror.record.writer.place)
    return mirror.is_alive() if alive is None else alive


@contextlib.contextmanager
def own(path: Path) -> Iterator[None]:
    """A context in which this process alone writes the run in a folder.

    It begins as the store has it, and at the end, however that comes, the store gets what is new.
    """
    mirror = _mirror(path)
    mirror.take(f"{socket.gethostname()}, process {os.getpid()}", _place(_root()), _lives, print_note)
    _make_folders(mirror)
    try:
        yield
    except BaseException:
        try:
            mirror.release()
        except UserError as error:
            print_note(f"what was not saved yet is lost: {error}", sys.stderr)
        raise
    mirror.release()


def publish(path: Path) -> None:
    """Bring what is new in the folder of a run that this process owns to the store that keeps it."""
    if (mirror := _MIRRORS.get(path)) is not None and mirror.writing:
        mirror.commit()


def _mirror(folder: Path) -> Mirror:
    if folder not in _MIRRORS:
        _MIRRORS[folder] = Mirror(store_of(show_path(folder)), folder)
    return _MIRRORS[folder]


def _folder(url: str) -> Path:
    """Where the copy of a URL is."""
    scheme, _, inside = store_of(url).url.partition("://")
    slash = inside[: inside.startswith("/")]  # as file:///a/b has it
    root = _root() / (slash and "absolute") / scheme
    COPIES.setdefault(f"{root}{os.sep}", f"{scheme}://{slash}")
    return root / check_name(inside.removeprefix("/"))


def _make_folders(mirror: Mirror) -> None:
    """The folders of a run that have no files in its copy."""
    if (mirror.folder / "config.json").exists():
        steps = {
            path.split("/")[1] for path in (mirror.record.files if mirror.record else {}) if path.startswith(WEIGHTS)
        }
        for name in (WEIGHTS, "digests", *(f"{WEIGHTS}{step}" for step in steps)):
            make_folder(mirror.folder / name)


@functools.cache
def _root() -> Path:
    """The folder of copies that this process has, and keeps as long as it lives."""
    for number in itertools.count():
        root = Path(os.path.realpath(cache_folder("runs") / str(number)))
        try:
            make_folder(root)
            lock = _HELD.enter_context(open(root / ".lock", "ab"))
            if try_lock(lock.fileno()):
                return root
            lock.close()
        except OSError as error:
            what = f"cannot be written ({error.strerror})"
            raise UserError(show_path(root), what, "set XDG_CACHE_HOME to a folder that can be") from error
    raise AssertionError


def _place(root: Path) -> str:
    """The word of a folder of copies: a process that has the folder knows that all that had it before have ended."""
    file = root / "place"
    if not file.exists():
        write_text(file, secrets.token_hex(8))
    return file.read_text()


def _lives(place: str) -> bool | None:
    """Whether the process that writes at a place lives; None if the place is not on this machine."""
    for file in _root().parent.glob("*/place"):
        with contextlib.suppress(OSError):
            if file.read_text() == place:
                return file.parent != _root() and is_locked(file.parent / ".lock")
    return None


def _say(text: str) -> None:
    print_note(text, sys.stderr)


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
