"""Where a conversion writes: checks of what stands there, a temporary folder beside it, and the move to the final name.

Nothing is lost or half written: all paths are checked before the first byte, everything is written and read back in the
temporary folder, and only then renamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vit_jax.errors import UserError
from vit_jax.files.atomic import sync_file, sync_folder
from vit_jax.files.destination import AS_STDOUT, NO_FILE, STDOUT, check_apart

from ..containers import is_program, open_source
from ..containers.folder import read_json
from ..containers.source import CARRIED_SUFFIX, CERTIFICATE, DATA, DIGESTED, PROVENANCE, Source
from .claim import claim

MOUNTED = "is where another disk is mounted, so it cannot be replaced; give a folder in it"


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
    def sidecars(self) -> list[Path]:
        """Paths of the files that a conversion leaves beside the target."""
        suffixes = [CERTIFICATE]
        if is_program(self.path.name):
            suffixes = [".json", DATA]
        elif not self.folder:
            suffixes += [CARRIED_SUFFIX, *([] if self.path.suffix == DIGESTED else [".json"])]
        return [self.path.with_name(self.path.name + suffix) for suffix in suffixes]

    def check(self, source: Source, force: bool, replaceable: bool = True) -> None:
        """Raise UserError where a path is the source itself, or exists and may not be replaced."""
        files = [source.path, *source.files]
        for place in (self.path, self.weights, *self.sidecars):
            if any(os.path.exists(file) and place.exists() and os.path.samefile(place, file) for file in files):
                raise UserError(place, "is the source itself", "choose another target")
        for place in (self.path, *self.sidecars):
            check_apart(str(place), place)
            if not os.path.lexists(place):
                continue
            if not replaceable:
                raise UserError(place, "exists, and a run is never written over", "choose another folder")
            if place.exists() and not (place.is_dir() or place.is_file()):
                raise UserError(place, NO_FILE, "choose another target")
            if place.is_dir() != (self.folder and place == self.path):
                raise UserError(place, f"is {'a folder' if place.is_dir() else 'a file'}", "choose another target")
            if not force:
                raise UserError(place, "exists", "choose another target, or replace it with `force True`")
            if place != self.path and not _was_converted(place):
                raise UserError(
                    place,
                    f"belongs beside {self.path.name}, but no conversion wrote it",
                    "move it away, or choose another target",
                )
        if self.folder and (
            foreign := sorted(p.name for p in self.path.glob("*") if p.name not in self.listed() or not p.is_file())
        ):
            raise UserError(
                self.path, f"holds {', '.join(foreign[:3])}, which no conversion wrote", "choose another folder"
            )
        if self.folder and self.path.exists() and os.path.ismount(os.path.realpath(self.path)):
            raise UserError(self.path, MOUNTED)

    def listed(self) -> set[str]:
        """The names of the files in a folder that an earlier conversion wrote, as its provenance lists them."""
        try:
            listed = read_json(str(self.path / PROVENANCE))["files"]
            return {PROVENANCE, *(name for name in listed if name == os.path.basename(name))}
        except (UserError, OSError, KeyError, TypeError):
            return set()

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A temporary folder beside the target, for this process alone: no other one writes to the target meanwhile."""
        made = [folder for folder in self.path.absolute().parents if not folder.exists()]
        try:
            with self.failures():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                linked = self.folder and self.path.is_symlink()
                with claim(Path(os.path.realpath(self.path)) if linked else self.path) as workspace:
                    yield workspace
        finally:
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
                    self.path, "the disk is full", "free some space and repeat the command, nothing was changed"
                ) from error
            if error.errno == errno.EXDEV:  # a bound folder, which does not show before
                raise UserError(self.path, MOUNTED) from error
            if error.errno is None:
                raise
            name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
            hidden = not name or f".{self.path.name}." in name
            raise UserError(
                self.path if hidden else name,
                os.strerror(error.errno).lower(),
                "check the path, its permissions and the disk, nothing was changed",
            ) from error

    def settle(self, workspace: Path) -> list[Path]:
        """Move the temporary folder's files to their names, durably, and remove what an earlier conversion left.

        Wherever the process ends, the weights are the old ones or the new ones, and nothing belongs to others.
        """
        names = sorted((p.name for p in workspace.iterdir()), key=lambda name: (name != self.name, name))
        place = self.path if self.folder else self.path.parent
        if not self.folder:
            self._replace(workspace, names, self.sidecars)
        elif not self.path.exists():
            os.rename(workspace, self.path)
        elif not self._exchange(workspace):
            listed = self.listed()
            self._replace(workspace, names, [path for path in self.path.iterdir() if path.name in listed])
        if self.folder:
            for path in self.sidecars:
                path.unlink(missing_ok=True)
        sync_folder(place)
        sync_folder(self.path.parent)
        return [place / name for name in sorted(names)]

    def _replace(self, workspace: Path, names: Sequence[str], old: Sequence[Path]) -> None:
        """Move files one by one, the weights first, after those beside the old weights are gone.

        These are moved as well, not removed: where files cannot be moved at all, the first move fails and all stays.
        """
        away = workspace / "replaced"
        away.mkdir()
        for path in old:
            if path != self.weights and os.path.lexists(path):
                os.replace(path, away / path.name)
        for name in names:
            os.replace(workspace / name, self.weights.with_name(name))

    def _exchange(self, workspace: Path) -> bool:
        """Have the new folder and the old one change places; False where that cannot be done in one step."""
        real = os.path.realpath(self.path)
        if os.path.samefile(real, os.getcwd()):  # a shell that stands in it would stand in a folder that is removed
            return False
        shutil.copymode(real, workspace)
        return exchange(str(workspace), real)


def sync(workspace: Path) -> None:
    """Make all files of a temporary folder durable; of large ones that takes a while."""
    for path in (workspace, *workspace.rglob("*")):
        (sync_folder if path.is_dir() else sync_file)(path)


def exchange(a: str, b: str) -> bool:
    """Exchange the names of two folders in one step; False where the system or the file system cannot (Linux can)."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE: man 2 rename
    return bool(renameat2(here, os.fsencode(a), here, os.fsencode(b), swap) == 0)


def target(text: str, name: str) -> Target:
    """The target at a path: a file where it has a suffix, else a folder."""
    path = Path(text)
    path = path if path.name not in ("", "..") else Path(os.path.abspath(text))
    if not text or not path.name:
        raise UserError(text or "DST is empty", "is no path for a conversion", "give the name of a file or a folder")
    return Target(path, name if not path.suffix else path.name, not path.suffix)


def _was_converted(path: Path) -> bool:
    """Whether a file beside a target was written by a conversion."""
    try:
        if path.name.endswith(CARRIED_SUFFIX):
            with open_source(str(path)) as source:
                return "carried" in source.metadata
        if path.name.endswith(DATA):
            return path.name in read_json(f"{str(path).removesuffix(DATA)}.json").get("files", ())
        found = read_json(str(path))
        return found.get("format") == 1 and bool({"verdict", "made_by"} & found.keys())
    except (OSError, UserError):
        return False


def free(places: Sequence[str]) -> None:
    """Raise UserError where a file that is to be written exists, is of a run, or is named twice; '' is no file."""
    named = [place for place in places if place]
    for i, place in enumerate(named):
        check_apart(place, Path(place))
        if place == STDOUT:
            raise UserError(place, AS_STDOUT, "give the name of one")
        if os.path.lexists(place):
            raise UserError(place, "exists", "choose another name")
        if os.path.realpath(place) in map(os.path.realpath, named[:i]):
            raise UserError(place, "is named twice", "choose another name for one of them")
