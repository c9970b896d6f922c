"""Folders of image files: what lies below them, and which files there are no images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ...errors import UserError
from .preprocess import EXTENSIONS

# Folders that macOS's archiver and Synology's servers leave beside those of the user.
_OF_SYSTEMS = frozenset({"__MACOSX", "@eaDir"})
_KINDS = 4


@dataclass
class Folder:
    """A folder, listed when it is first asked for; hidden entries are as if they were not there."""

    path: str
    above: frozenset[tuple[int, int]] = frozenset()  # the folders that it lies in, so that no link leads in a circle

    @cached_property
    def _identity(self) -> tuple[int, int]:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise self._closed(error) from error
        return found.st_dev, found.st_ino

    def _closed(self, error: OSError) -> UserError:
        return UserError(self.path, f"cannot be listed ({error.strerror})", "mend its permissions, or move it away")

    @cached_property
    def _listed(self) -> tuple[list[str], list[str]]:
        """(names of the folders, names of the files), sorted."""
        try:
            with os.scandir(self.path) as entries:
                shown = [
                    (entry.name, entry.is_dir())
                    for entry in entries
                    if not entry.name.startswith(".") and entry.name not in _OF_SYSTEMS
                ]
        except OSError as error:
            raise self._closed(error) from error
        return sorted(name for name, is_dir in shown if is_dir), sorted(name for name, is_dir in shown if not is_dir)

    @cached_property
    def folders(self) -> dict[str, Folder]:
        """{name: subfolder}, sorted by name, without links to a folder that this one lies in."""
        above = self.above | {self._identity}
        inside = {name: Folder(os.path.join(self.path, name), above) for name in self._listed[0]}
        return {name: folder for name, folder in inside.items() if folder._identity not in above}

    @cached_property
    def images(self) -> list[str]:
        """The names of the image files in it, sorted."""
        return [name for name in self._listed[1] if _suffix(name) in EXTENSIONS]

    @cached_property
    def others(self) -> list[str]:
        """The names of the other files in it, sorted."""
        return [name for name in self._listed[1] if _suffix(name) not in EXTENSIONS]

    def walk(self) -> Iterator[Folder]:
        """This folder and all below it."""
        ahead = [self]
        while ahead:
            folder = ahead.pop()
            yield folder
            ahead += reversed(folder.folders.values())

    @cached_property
    def holds_images(self) -> bool:
        """Whether there is an image in it or below."""
        return any(folder.images for folder in self.walk())

    def image_paths(self, unused: Unused) -> list[str]:
        """The paths of the images in it and below, in the order of torchvision; all other files become `unused`."""
        found = []
        for folder in self.walk():
            found.append((folder.path, folder.images))
            unused.add(folder, folder.others)
        return [os.path.join(path, name) for path, names in sorted(found) for name in names]


@dataclass
class Unused:
    """Files that are not read, by their kinds."""

    kinds: dict[str, list[str]] = field(default_factory=dict)  # {".heic": their paths}

    def add(self, folder: Folder, names: list[str], why: str = "") -> None:
        """Note files of a folder, and why where that is not for their kind."""
        for name in names:
            kind = f"{_suffix(name) or 'without suffix'} {why}".rstrip()
            self.kinds.setdefault(kind, []).append(os.path.join(folder.path, name))

    def __len__(self) -> int:
        return sum(map(len, self.kinds.values()))

    def __str__(self) -> str:
        """How many there are of which kinds, with an example of each."""
        kinds = sorted(self.kinds.items(), key=lambda kind: -len(kind[1]))
        more = sum(len(paths) for _, paths in kinds[_KINDS:])
        listed = [f"{len(paths):,} {kind} (such as {paths[0]})" for kind, paths in kinds[:_KINDS]]
        return ", ".join([*listed, *([f"{more:,} of other kinds"] if more else [])])

    def remarks(self) -> tuple[str, ...]:
        """A sentence for the user; none if there are none."""
        files = f"{len(self):,} file{' is' if len(self) == 1 else 's are'}"
        return (f"{files} left out, not being images that are read: {self}",) if len(self) else ()


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()
