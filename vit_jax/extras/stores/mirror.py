"""A local folder that is kept in a store, to which one process at a time brings what has changed.

URL/
    files/<writer>-<attempt>/<path>    what a file held, written once: whole, in parts if it is long, or what was
                                       appended to it
    records/<number>.json    what the folder held; written last, see records.py
    writers/<number>         changes every few seconds while this writer lives
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ...errors import UserError
from ...files.atomic import make_folder, replacing
from ...files.digests import bytes_digest
from ...files.places import Store, StoreError
from ...files.reading import open_regular
from .records import KEPT, File, Record, Records, Writer

BEAT, LEASE = 5.0, 60.0  # seconds between signs of life of a writer; after which one without any is dead
PART = 64 << 20  # bytes
MOST_PARTS = 64  # of a file that was appended to; then it is sent anew
AT_ONCE = 8
PROBE = ".vit-jax-probe-"  # begins the name of an object that tells of nothing: one stays where a probe is killed
Send = Callable[[str, bytes], str]  # (the end of an object's name, its content) -> its name
_TEMPORARY = re.compile(r"(^|/)\.lock$|\.tmp(/|$)|\.orbax-checkpoint-tmp")


class Torn(Exception):
    """A record that names objects which are not there, or hold something else."""


class Mirror:
    """A folder and its copy in a store."""

    def __init__(self, store: Store, folder: Path):
        self.store, self.folder, self.records = store, folder, Records(store)
        self.record: Record | None = None  # that the folder was made of, or has become
        self._known: dict[str, tuple[int, int, str]] = {}  # size, time of change, digest
        self._history: list[Record] = []  # as long as it writes: the records that are kept
        self._attempts = 0
        self._pulse: _Pulse | None = None

    @property
    def writing(self) -> bool:
        """Whether this process writes it."""
        return self._pulse is not None

    # -------------------------------------------------------------------------------------- reading

    def pull(self, say: Callable[[str], None], leave: str = "") -> bool:
        """Make the folder what the newest record that is whole says."""
        newest = self.records.newest()
        self._bring(newest, say, leave)
        return bool(newest)

    def pull_rest(self, say: Callable[[str], None]) -> None:
        """Bring what `bring` has left, of the same record, or all of a newer one where that is gone."""
        try:
            self._fill(self.record.files if self.record else {})
        except Torn:
            self.pull(say)

    def _bring(self, newest: int, say: Callable[[str], None], leave: str = "") -> None:
        found = list(self.records.last(newest))
        if newest and not found:
            raise UserError(self.store.url, f"record {newest} and those before it are damaged", "choose another `name`")
        for record in found:
            try:
                self._fill(record.files, leave)
            except Torn as error:
                if (later := self.records.newest()) > newest:  # a writer goes on meanwhile
                    return self._bring(later, say, leave)
                say(f"record {record.number} of {self.store.url} is not whole: {error}")
                continue
            self.record = record
            return
        self.record = found[0] if found else None
        self._fill(self.record.files if self.record else {}, leave, damaged=True)

    def _fill(self, files: dict[str, File], leave: str = "", damaged: bool = False) -> None:
        """Make the folder hold these files and no others; with `damaged` without those that cannot be had."""
        for path in self._paths():
            if path not in files and not (leave and path.startswith(leave)):
                (self.folder / path).unlink(missing_ok=True)
        for base, *_ in os.walk(self.folder, topdown=False):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(base)
        wanted = [path for path in files if not (leave and path.startswith(leave))]

        def fetch(path: str) -> None:
            try:
                self._fetch(path, files[path])
            except Torn:
                if not damaged:
                    raise

        with ThreadPoolExecutor(AT_ONCE, "fetching") as pool:
            for _ in pool.map(fetch, wanted):
                pass

    def _fetch(self, path: str, file: File) -> None:
        """Make a local file hold what a record says. Raises Torn where the store does not have that."""
        local = self.folder / path
        if local.is_file() and local.stat().st_size == file.bytes and self._digest(path) == file.digest:
            return
        make_folder(local.parent)
        digest = bytes_digest()
        with replacing(local) as temporary, open(temporary, "wb") as output:
            for name, size in file.parts:
                content = self._read(name, size)
                digest.update(content)
                output.write(content)
            if digest.hexdigest() != file.digest:
                raise Torn(f"{path} is damaged (its digest differs)")
        stat = local.stat()
        self._known[path] = stat.st_size, stat.st_mtime_ns, file.digest

    def _read(self, name: str, size: int) -> bytes:
        try:
            return self.store.read(name, 0, size)
        except StoreError:
            if self.store.tag(name) is None:
                raise Torn(f"{name} is gone") from None
            if (found := self.store.stat(name, size).size) < size:
                raise Torn(f"{name} has {found:,} bytes of {size:,}") from None
            raise

    def _paths(self) -> Iterator[str]:
        """The paths of all files in the folder that are kept."""
        for base, folders, names in os.walk(self.folder):
            inside = Path(base).relative_to(self.folder)
            folders.sort()
            for name in sorted(names):
                path = (inside / name).as_posix()
                if not _TEMPORARY.search(path) and not (self.folder / path).is_symlink():
                    yield path

    def _digest(self, path: str) -> str:
        """The digest of a local file, which is read again only if it has changed."""
        stat = (self.folder / path).stat()
        if (known := self._known.get(path)) is not None and known[:2] == (stat.st_size, stat.st_mtime_ns):
            return known[2]
        with open_regular(self.folder / path, link=False) as file:
            digest = hashlib.file_digest(file, bytes_digest).hexdigest()
        self._known[path] = stat.st_size, stat.st_mtime_ns, digest
        return digest

    def is_alive(self) -> bool:
        """Whether the writer of the record gave a sign of life less than a lease ago, by its clock and this one."""
        sign = self.store.load(f"writers/{self.record.writer.number}") if self.record else None
        found = re.fullmatch(rb"\d+ (\d+)", sign or b"")
        return found is not None and abs(time.time() - int(found[1])) < LEASE

    # -------------------------------------------------------------------------------------- writing

    def take(self, name: str, place: str, lives: Callable[[str], bool | None], say: Callable[[str], None]) -> None:
        """Become the writer, and make the folder what the newest whole record says."""
        newest = self.records.newest()
        check_conditional(self.store)
        top = self._await_end(newest, lives, say)
        self._bring(top, say)
        before = self.record
        number = before.writer.number + 1 if before else 1
        writer = Writer(number, name, place, secrets.token_hex(8))
        record = Record(top + 1, writer, True, before.files if before else {})
        if not self.records.create(record):
            other = self.records.read(top + 1)
            raise _in_use(self.store.url, other.writer.name if other else "another process")
        self.record = record
        self._pulse = _Pulse(self.store, f"writers/{number}")
        self._history = [record, *self.records.last(top)][:KEPT]
        self._clean()

    def _await_end(self, newest: int, lives: Callable[[str], bool | None], say: Callable[[str], None]) -> int:
        """The number of the newest record, once no writer lives. Raises UserError while one does."""
        while newest:
            record = next(self.records.last(newest), None)
            if record is None or not record.open:
                return newest
            alive = lives(record.writer.place)
            if alive is None:
                say(f"{self.store.url} was in use by {record.writer.name}: waiting for a sign of its life")
                alive = self._watch(f"writers/{record.writer.number}", newest)
            before, newest = newest, self.records.newest()
            later = next(self.records.last(newest), record)
            if alive and later.open and later.writer == record.writer:
                raise _in_use(self.store.url, record.writer.name)
            if newest == before:
                return newest
        return 0

    def _watch(self, name: str, newest: int) -> bool:
        """Whether a writer gives a sign of life before it counts as dead; no clocks of two machines are compared."""
        first, until = self.store.tag(name), time.monotonic() + LEASE
        while time.monotonic() < until:
            time.sleep(BEAT / 2)
            if self.store.tag(name) != first or self.records.newest() != newest:
                return True
        return False

    def commit(self, ended: bool = False) -> None:
        """Bring what has changed to the store, and then what is not needed any more out of it."""
        if self.record is None or self._pulse is None:
            raise RuntimeError("only a writer commits")
        self._attempts += 1
        with _sending(self.store, f"files/{self.record.writer.number}-{self._attempts}") as send:
            files = {path: file for path in self._paths() if (file := self._send(path, send)) is not None}
        record = Record(self.record.number + 1, self.record.writer, not ended, files)
        while not self.records.create(record):
            other = self.records.read(record.number)
            if other is None or other.writer != record.writer:
                self._pulse.stop()
                self._pulse = None
                raise _in_use(self.store.url, other.writer.name if other else "another process")
            self._history.insert(0, other)  # of this process, which did not hear that it was there
            record = replace(record, number=record.number + 1)
        self.record = record
        self._history.insert(0, record)
        self._forget()

    def release(self) -> None:
        """Commit, and write no more; a folder without any file leaves nothing. Raises UserError as `commit`."""
        if self._pulse is None or self.record is None:
            return
        self._pulse.stop()
        try:
            self.commit(ended=True)
            self.store.delete(f"writers/{self.record.writer.number}")
            if not self.record.files:
                self.records.clear()
        finally:
            self._pulse = None

    def _send(self, path: str, send: Send) -> File | None:
        """The entry of a file, which is in the store once all is sent; None if the file is gone."""
        before = self.record.files.get(path) if self.record else None
        try:
            with open_regular(self.folder / path, link=False) as file:
                stat = os.fstat(file.fileno())
                if before and self._known.get(path) == (stat.st_size, stat.st_mtime_ns, before.digest):
                    return before
                sent = self._send_content(path, file, stat.st_size, before, send)
        except FileNotFoundError:
            return None
        self._known[path] = stat.st_size, stat.st_mtime_ns, sent.digest
        return sent

    def _send_content(self, path: str, file: BinaryIO, size: int, before: File | None, send: Send) -> File:
        """The entry of the first bytes of an open file, of which what the entry before has is not sent again."""
        digest, parts = bytes_digest(), list[tuple[str, int]]()
        if before and before.bytes <= size and len(before.parts) < MOST_PARTS:
            for content in _blocks(file, before.bytes, 1 << 20):
                digest.update(content)
            parts = [*before.parts] if digest.hexdigest() == before.digest else []
        if not parts:
            file.seek(0)
            digest = bytes_digest()
        start = file.tell()
        for content in _blocks(file, size - start, PART):
            digest.update(content)
            name = send(f"+{start}/{path}" if start else f"/{path}", content)
            parts.append((name, len(content)))
            start += len(content)
        return File(start, digest.hexdigest(), parts)

    def _forget(self) -> None:
        """Delete the records that are not kept any more, then the objects that those alone have named."""
        self._history, old = self._history[:KEPT], self._history[KEPT:]
        for record in old:
            self.records.delete(record.number)
        self._delete(_objects(old) - _objects(self._history))

    def _clean(self) -> None:
        """Delete what writers that were killed have left."""
        kept = {record.number for record in self._history}
        for number in self.records.numbers():
            if number not in kept and number < max(kept):
                self.records.delete(number)
        own = f"writers/{self._history[0].writer.number}"
        self._delete({*self.store.list("files/")} - _objects(self._history))
        self._delete({*self.store.list("writers/")} - {own})

    def _delete(self, names: set[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE, "deleting") as pool:
            for _ in pool.map(self.store.delete, sorted(names)):
                pass


@contextlib.contextmanager
def _sending(store: Store, place: str) -> Iterator[Send]:
    """A context with what sends objects to a place of a store, some at a time; its end waits for all of them."""
    room = threading.Semaphore(AT_ONCE)  # what waits to be sent takes memory
    sent: list[Future[None]] = []

    def send(end: str, content: bytes) -> str:
        room.acquire()
        sent.append(pool.submit(store.put, place + end, content))
        sent[-1].add_done_callback(lambda _: room.release())
        return place + end

    with ThreadPoolExecutor(AT_ONCE, "sending") as pool:
        yield send
    for future in sent:
        future.result()


class _Pulse:
    """A thread that changes an object every few seconds, as a sign that its process lives."""

    def __init__(self, store: Store, name: str):
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(store, name), name="pulse", daemon=True)
        self._thread.start()

    def _beat(self, store: Store, name: str) -> None:
        for count in itertools.count():
            with contextlib.suppress(UserError):  # what cannot be reached now may be later
                store.put(name, f"{count} {time.time():.0f}".encode())
            if self._ended.wait(BEAT):
                return

    def stop(self) -> None:
        """End it, and wait for what it sends, but not long."""
        self._ended.set()
        self._thread.join(BEAT)


def check_conditional(store: Store) -> None:
    """Check that a store creates an object only where none is, which claims and locks need."""
    name = f"{PROBE}{secrets.token_hex(8)}"
    won = [store.create(name, content) for content in (b"first", b"second")]
    store.delete(name)
    if won != [True, False]:
        what = "it does not honour conditional writes (If-None-Match), so two writers could not be kept apart"
        raise UserError(store.url, what, "take a store that does: S3, Google Cloud Storage, or a folder")


def _objects(records: Sequence[Record]) -> set[str]:
    return {name for record in records for file in record.files.values() for name, _ in file.parts}


def _blocks(file: BinaryIO, size: int, most: int) -> Iterator[bytes]:
    """The next `size` bytes of a file, or as many as there are, in blocks of at most `most`."""
    while size > 0 and (content := file.read(min(most, size))):
        size -= len(content)
        yield content


def _in_use(url: str, name: str) -> UserError:
    return UserError(url, f"in use by {name}", "wait for it, end it, or choose another `name`")
