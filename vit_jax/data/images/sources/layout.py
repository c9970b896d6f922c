"""Folders of image files: what lies below them, which are splits, under any of their names, and which are classes."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ....errors import UserError
from ...prepared import prepared_around
from ..config import SPLIT_OF, SPLITS
from ..preprocess import EXTENSIONS

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


WHOLE = "all"  # what data without splits is called in place of one
_PLAIN = ("train", "val", "validation", "test")  # names that need no remark
_FILLERS = ("set", "data", "dataset", "images", "split")  # words beside a split's in the name of its folder


@dataclass(frozen=True)
class Layout:
    """Where the classes of a set of images lie."""

    splits: dict[str, Folder]  # of class folders; without splits the set itself, as WHOLE
    unlabelled: dict[str, Folder]  # splits with images but no class folders
    remarks: tuple[str, ...]


def find_layout(field: str, root: Folder, several: bool = True) -> Layout:
    """How a folder is sorted. Raises UserError where that cannot be told."""
    named = _named_splits(field, root)
    sorted_ = {split: folder for split, folder in named.items() if folder.folders and not _is_class(split, named, root)}
    if not sorted_:
        if named and len(named) == len(root.folders):
            first = next(iter(named.values()))
            raise UserError(
                field, f"{_name(first)}/ holds no class folders", "sort its images into one folder per class"
            )
        _check_classes(field, root, several)
        return Layout({WHOLE: root}, {}, ())
    for folder in sorted_.values() if several else ():
        only = [*folder.folders.values()]
        if len(only) == 1 and (deeper := _deeper(only[0])):
            inside = f"{_name(folder)}/ holds {_name(only[0])}/ alone, and that {_listed(deeper.folders)}"
            raise UserError(field, inside, f"move these into {folder.path} if they are the classes")
    unlabelled = {split: folder for split, folder in named.items() if split not in sorted_ and folder.images}
    used = {folder.path for folder in (*sorted_.values(), *unlabelled.values())}
    ignored = [name for name, folder in root.folders.items() if folder.path not in used]
    renamed = [f"{_name(f)}/ as {split}" for split, f in sorted_.items() if _name(f) not in _PLAIN]
    remarks = [f"folders are read as splits: {', '.join(renamed)}"] if renamed else []
    if ignored:
        remarks.append(f"folders left out, as only train, val and test are read: {', '.join(ignored)}")
    return Layout(sorted_, unlabelled, tuple(remarks))


def no_images(folder: Folder) -> tuple[str, str]:
    """(what is wrong with a class folder without images, the remedy)."""
    unused = Unused()
    folder.image_paths(unused)
    if not len(unused):
        return "holds no images", "add some or remove it"
    return f"holds no images, only {unused}", "convert these to PNG or JPEG, or move the folder away if it is no class"


def _named_splits(field: str, root: Folder) -> dict[str, Folder]:
    """{split: the folder that is called so}, train first. Raises UserError where two are called the same."""
    found: dict[str, list[str]] = defaultdict(list)
    affixed: dict[str, dict[str, str]] = defaultdict(dict)  # {the rest of the name: {split: name}}
    for name in root.folders:
        words = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", name).casefold())
        splits = [SPLIT_OF[word] for word in words if word in SPLIT_OF]
        if len(splits) == 1 and all(word in SPLIT_OF or word in _FILLERS for word in words):
            found[splits[0]].append(name)
        elif len(splits) == 1:
            affixed[" ".join("" if word in SPLIT_OF else word for word in words)].setdefault(splits[0], name)
    if not found:  # seg_train/ beside seg_test/, though train_station/ beside bus_station/ are classes
        several = [names for names in affixed.values() if "train" in names and len(names) > 1]
        found |= {split: [name] for split, name in several[0].items()} if len(several) == 1 else {}
    for names in found.values():
        if len(names) > 1:
            raise UserError(field, f"both {names[0]}/ and {names[1]}/ are there", "keep one of them")
    return {split: root.folders[found[split][0]] for split in SPLITS if split in found}


def _is_class(split: str, named: Mapping[str, Folder], root: Folder) -> bool:
    """Whether a folder called as a split is a class of this name: as others beside it, it holds images itself.

    It is none if another split has a folder of the same name: then these are the classes, and its images lie loose.
    """
    folder, splits = named[split], [*named.values()]
    beside = any(other.images for other in root.folders.values() if other not in splits)
    shared = any(set(folder.folders) & set(other.folders) for other in splits if other is not folder)
    return bool(folder.images) and beside and not shared


def _check_classes(field: str, root: Folder, several: bool) -> None:
    """Raise UserError where the folders in `root` are seen not to be classes: where it is of another level."""
    if not root.folders:
        raise _no_classes(field, root)
    for folder in root.folders.values():
        splits = _named_splits(field, folder)
        if len(splits) > 1 or (splits and len(splits) == len(folder.folders)):
            inside = " and ".join(f"{_name(split)}/" for split in splits.values())
            raise UserError(
                field,
                f"{_name(folder)}/ holds {inside}, so that it is a set and not a class",
                f"give folder:{folder.path} if that is the set, or sort all images as train/CLASS/image",
            )
    holding = [folder for folder in root.folders.values() if folder.holds_images]
    if not holding and (advice := _prepared(field, Path(root.path))):
        raise advice
    if several and len(holding) == 1 and (deeper := _deeper(holding[0])):
        empty = [name for name, folder in root.folders.items() if folder is not holding[0]]
        others = f", and {', '.join(empty[:3])} no images" if empty else ""
        raise UserError(
            field,
            f"{_name(holding[0])}/ alone holds images{others}; they lie in {_listed(deeper.folders)}",
            f"give folder:{deeper.path} if these are the classes",
        )


def _deeper(folder: Folder) -> Folder | None:
    """The first folder with several folders in it on the way down from one that has no images itself."""
    while not folder.images and len(inside := [each for each in folder.folders.values() if each.holds_images]) == 1:
        folder = inside[0]
    return None if folder.images or not folder.folders else folder


def _no_classes(field: str, root: Folder) -> UserError:
    """The error for a folder without folders."""
    place = Path(root.path).resolve()
    if advice := _prepared(field, place):
        return advice
    unused = Unused()
    images = len(root.image_paths(unused))
    if images and len(Folder(str(place.parent)).folders) > 1:
        what = f"holds no class folders, but {images:,} images"
        return UserError(field, what, f"give folder:{place.parent} if {place.name}/ is a class, or sort them by class")
    has = f", only {unused}" if len(unused) and not images else ""
    return UserError(field, f"holds no class folders{has}", "sort its images into one folder per class")


def _prepared(field: str, place: Path) -> UserError | None:
    """The error for the folder of a prepared set, with the flags to give; None if it is no such folder."""
    found = prepared_around(place)
    if found is None:
        return None
    root, sets = found
    name, versions = next(iter(sets.items()))
    more = f" (there: {_listed(sets)})" if len(sets) > 1 else ""
    old = len(sets) == 1 and len(versions) == 1 and len([*(root / name).glob("*/dataset_info.json")]) > 1
    source = f"{name}:{versions[0]}" if old else name
    return UserError(field, "is a folder of prepared sets", f"give `data.source {source}` and `data.dir {root}{more}`")


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join([*names][:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _name(folder: Folder) -> str:
    return Path(folder.path).name
