"""The claim on a place: of all processes that would write there one does, and what killed ones left is removed.

The claim is a lock on a hidden file beside the place. The system gives it back when its process ends, however that
ends, so what a conversion left beside a place that nobody has claimed has no owner. Only such files and folders are
removed: a file of the lock's name that no conversion wrote is refused, and links are left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from vit_jax.errors import UserError
from vit_jax.files.atomic import try_lock
from vit_jax.files.terminal import printable

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # what file systems without locks answer
STILL = 3600  # seconds without a change, after which what another machine wrote has no owner: its locks may not show
OWNER = re.compile(rb"(process \d+ on [\w-]+\n?)?")  # what the file of a lock holds
HOST = re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:40] or "unknown"


@contextlib.contextmanager
def claim(place: Path) -> Iterator[Path]:
    """A new folder beside a place for the one process that may write there; it is removed afterwards."""
    lock = place.with_name(f".{place.name}.lock")
    handle = _lock(place, lock)
    workspace = place.with_name(f".{place.name}.{HOST}.{os.getpid()}.tmp")
    try:
        for left in _find_abandoned(place):
            shutil.rmtree(left, ignore_errors=True)  # another user's may have to stay
        workspace.mkdir()
        yield workspace
    finally:
        clear(workspace)
        with contextlib.suppress(OSError):  # Windows removes no open file: it stays, unlocked
            lock.unlink()
        os.close(handle)


def _find_abandoned(place: Path) -> list[Path]:
    """The folders of earlier processes beside a place that this one has claimed."""
    # Older versions did not name the machine.
    name = re.compile(rf"\.{re.escape(place.name)}(?:\.([A-Za-z0-9-]+))?\.\d+\.tmp")
    found = [(entry, match[1]) for entry in place.parent.iterdir() if (match := name.fullmatch(entry.name))]
    folders = [(entry, host) for entry, host in found if entry.is_dir() and not entry.is_symlink()]
    return [entry for entry, host in folders if host == HOST or _is_unchanged(entry)]


def clear(folder: Path) -> None:
    """Remove a folder, also while threads of an interrupted write still write in it."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def _lock(place: Path, lock: Path) -> int:
    """The lock file, open and locked. Raises UserError where another process has it, or another file is there."""
    while True:
        handle, is_new = _open_lock(place, lock)
        try:
            if not _has(place, lock, handle, is_new):
                owner = os.read(handle, 80).decode(errors="replace")
                raise UserError(
                    place,
                    f"is being written by another conversion ({printable(owner.strip()) or 'unknown'}; if none runs, "
                    f"remove {lock.name})",
                    "wait for it, or choose another target",
                )
            # A process that had it may have removed it in between: then the next to come would lock another file.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), lock.stat()):
                    if not OWNER.fullmatch(os.read(handle, 200)):
                        raise _in_the_way(place, lock)
                    os.truncate(handle, 0)
                    os.lseek(handle, 0, os.SEEK_SET)
                    os.write(handle, f"process {os.getpid()} on {HOST}\n".encode())
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _open_lock(place: Path, lock: Path) -> tuple[int, bool]:
    """(the lock file, open, whether it was made). Raises UserError on what is no lock file of this user."""
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with contextlib.suppress(FileExistsError):
            return os.open(lock, flags | os.O_CREAT | os.O_EXCL, 0o666), True
        with contextlib.suppress(FileNotFoundError):  # removed since
            try:
                if stat.S_ISREG(lock.lstat().st_mode):
                    return os.open(lock, flags), False
            except PermissionError as error:
                raise UserError(
                    place,
                    f"{lock.name} beside it belongs to a conversion of another user, that runs or was killed",
                    "have it removed, or choose another target",
                ) from error
            raise _in_the_way(place, lock)


def _in_the_way(place: Path, lock: Path) -> UserError:
    return UserError(place, f"{lock.name} beside it is needed, and no conversion wrote it", "move it away")


def _has(place: Path, lock: Path, handle: int, is_new: bool) -> bool:
    """Lock the open lock file; False where another process has. Raises UserError where it cannot be locked.

    Where the file system has no locks, the one that made the file (`is_new`) has it.
    """
    try:
        return try_lock(handle)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return is_new
        raise UserError(
            place,
            f"{lock.name} beside it cannot be locked ({error.strerror})",
            "choose a target on a file system that has locks",
        ) from error


def _is_unchanged(folder: Path) -> bool:
    """Whether nothing in a folder has changed for a long time."""
    with contextlib.suppress(OSError):
        return time.time() - max(path.stat().st_mtime for path in (folder, *folder.rglob("*"))) > STILL
    return False
