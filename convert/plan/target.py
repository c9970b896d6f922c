"""Where a conversion writes: checks of what stands there, a temporary folder beside it, and the move to the final name.

Nothing is lost or half written: all paths are checked before the first byte, everything is written and read back in the
temporary folder, and only then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vit_jax.errors import UserError
from vit_jax.runs import sync_file, sync_folder

from ..containers import open_source
from ..containers.source import CARRIED_SUFFIX, CERTIFICATE, DIGESTED, PROVENANCE, Source


@dataclass(frozen=True)
class Target:
    """A file, or a folder with the weights in a file `name`; `path` is the one that the user gave."""

    path: Path
    name: str
    folder: bool

    @property
    def weights(self) -> Path:
        """The file of the weights."""
        return self.path / self.name if self.folder else self.path

    @property
    def beside(self) -> list[Path]:
        """Paths of the files that a conversion leaves beside the target."""
        suffixes = (
            [CERTIFICATE]
            if self.folder
            else [CERTIFICATE, CARRIED_SUFFIX, *([] if self.path.suffix == DIGESTED else [".json"])]
        )
        return [self.path.with_name(self.path.name + suffix) for suffix in suffixes]

    def check(self, source: Source, force: bool, replaceable: bool = True) -> None:
        """Raise UserError where a path is the source itself, or exists and may not be replaced."""
        files = [source.path, *source.files]
        for place in (self.path, self.weights, *self.beside):
            if any(os.path.exists(file) and place.exists() and os.path.samefile(place, file) for file in files):
                raise UserError(f"{place}: is the source itself; choose another target")
        for place in (self.path, *self.beside):
            if not os.path.lexists(place):
                continue
            if not replaceable:
                raise UserError(f"{place}: exists, and a run is never written over; choose another folder")
            if place.is_dir() != (self.folder and place == self.path):
                raise UserError(f"{place}: is {'a folder' if place.is_dir() else 'a file'}; choose another target")
            if not force:
                raise UserError(f"{place}: exists; choose another target, or replace it with --force")
            if place != self.path and not was_converted(place):
                raise UserError(
                    f"{place}: belongs beside {self.path.name}, but no conversion wrote it; "
                    "move it away, or choose another target"
                )
        if self.folder and (
            foreign := sorted(p.name for p in self.path.glob("*") if p.name not in self.listed() or not p.is_file())
        ):
            raise UserError(
                f"{self.path}: holds {', '.join(foreign[:3])}, which no conversion wrote; choose another folder"
            )

    def listed(self) -> set[str]:
        """The names of the files in a folder that an earlier conversion wrote, as its provenance lists them."""
        try:
            listed = json.loads((self.path / PROVENANCE).read_text(encoding="utf-8"))["files"]
            return {PROVENANCE, *(name for name in listed if name == os.path.basename(name))}
        except (OSError, ValueError, KeyError, TypeError):
            return set()

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder beside the target; removed afterwards, and parent folders with it if they stay empty."""
        made = [folder for folder in self.path.absolute().parents if not folder.exists()]
        workspace = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            with self.failures():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                workspace.mkdir()
                yield workspace
        finally:
            clear(workspace)
            if not os.path.lexists(self.path):
                with contextlib.suppress(OSError):
                    for folder in made:
                        folder.rmdir()

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Turn a full disk, a missing permission or another error of the system into one sentence (UserError)."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise UserError(
                    f"{self.path}: the disk is full; free some space and repeat the command, nothing was changed"
                ) from error
            if error.errno is None:
                raise
            raise UserError(
                f"{self.path}: {os.strerror(error.errno).lower()}; "
                "check the path, its permissions and the disk, nothing was changed"
            ) from error

    def settle(self, workspace: Path) -> list[Path]:
        """Move the temporary folder's files to their names, durably, and remove what an earlier conversion left."""
        for path in (workspace, *workspace.rglob("*")):
            (sync_folder if path.is_dir() else sync_file)(path)
        names = sorted(p.name for p in workspace.iterdir())
        place = self.path if self.folder else self.path.parent
        stale = [self.path / name for name in self.listed()] if self.folder else []
        if self.folder and not self.path.exists():
            os.rename(workspace, self.path)
            sync_folder(self.path.parent)
        else:
            for name in names:
                os.replace(workspace / name, place / name)
        for path in (*stale, *self.beside):
            if path.name not in names or path.parent != place:
                path.unlink(missing_ok=True)
        sync_folder(place)
        return [place / name for name in names]


def target(text: str, name: str) -> Target:
    """The target at a path: a file where it has a suffix, else a folder with the weights in a file `name`."""
    path = Path(text)
    path = path if path.name not in ("", "..") else Path(os.path.abspath(text))
    return Target(path, name if not path.suffix else path.name, not path.suffix)


def was_converted(path: Path) -> bool:
    """Whether a file beside a target was written by a conversion."""
    try:
        if path.name.endswith(CARRIED_SUFFIX):
            with open_source(str(path)) as source:
                return "carried" in source.metadata
        found = json.loads(path.read_text(encoding="utf-8"))
        return isinstance(found, dict) and found.get("format") == 1 and bool({"verdict", "made_by"} & found.keys())
    except (OSError, ValueError, UserError, RecursionError):
        return False


def clear(workspace: Path) -> None:
    """Remove a folder, also while threads of an interrupted write still write in it."""
    for _ in range(50):
        shutil.rmtree(workspace, ignore_errors=True)
        if not workspace.exists():
            return
        time.sleep(0.1)


def free(places: Sequence[str]) -> None:
    """Raise UserError where a file that is to be written exists."""
    for place in places:
        if place and os.path.lexists(place):
            raise UserError(f"{place}: exists; choose another name")
