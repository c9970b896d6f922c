"""Folders of image files, sorted by class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....config.hints import similar
from ....config.outputs import Outputs, composed
from ....errors import UserError
from ..preprocess import read_image
from .base import Examples, Source, Stamps, stamp_files
from .layout import WHOLE, Folder, Layout, Unused, find_layout, no_images

_LOOSE = "beside the folders of classes"


@dataclass
class Files(Examples):
    """Examples that are image files."""

    paths: Sequence[str]
    labels: np.ndarray
    part: str = ""  # of a folder that has other splits, too: which split they are

    def read(self, i: int) -> bytes:
        return read_image(self.paths[i])

    def name(self, i: int) -> str:
        return self.paths[i]

    def stamps(self) -> Stamps:
        """The files themselves, by their names within the folder that holds them all."""
        paths = [os.path.abspath(path) for path in self.paths]
        folder = os.path.commonpath([os.path.dirname(path) for path in (min(paths), max(paths))])
        start = len(os.path.join(folder, ""))
        return stamp_files(folder, [path[start:] for path in paths], whole=False, part=self.part)


def open_folder(path: str) -> Source:
    """A folder of images to train on."""
    field, root = _root(path, "train/CLASS/image or CLASS/image")
    layout = find_layout(field, root)
    if "train" not in layout.splits and WHOLE not in layout.splits:
        other = os.path.basename(next(iter(layout.splits.values())).path)
        raise UserError(
            field,
            f"{other}/ has class folders but train/ has none or is missing (there: {', '.join(root.folders)})",
            "add train/CLASS/image",
        )
    splits = {"train" if split == WHOLE else split: folder for split, folder in layout.splits.items()}
    classes = _classes(splits["train"])
    for split, folder in splits.items():
        for key, folders in _classes(folder).items():
            if key not in classes:
                name = os.path.basename(folders[0].path)
                shown = name if name == name.strip() else repr(name)
                raise UserError(
                    field,
                    f"class folder {shown} is in {split} but not in train{similar(name, _names(classes))}",
                    "rename it, move it away, or add its images to train",
                )
    return _source(field, root, layout, splits, classes)


def open_test_folder(path: str) -> Source:
    """A folder of images that a network is only evaluated on."""
    field, root = _root(path, "CLASS/image, or test/CLASS/image")
    layout = find_layout(field, root, several=False)
    classes: dict[str, list[Folder]] = {}
    for folder in layout.splits.values():
        classes = {**_classes(folder), **classes}
    return _source(field, root, layout, layout.splits, dict(sorted(classes.items())))


def _root(path: str, inside: str) -> tuple[str, Folder]:
    """(the field as messages name it, the folder), which is to hold what `inside` says. Raises UserError."""
    field = f"data.source folder:{path}"
    if not path:
        raise UserError(f"{field} names no folder", remedy="give folder:PATH, or folder:. for the current one")
    root = Path(os.path.expanduser(path))
    if not root.is_dir():
        raise UserError(field, "no such folder", f"give one that holds {inside}")
    return field, Folder(str(root))


def _classes(split: Folder) -> dict[str, list[Folder]]:
    """{class: its folders}, sorted; names that look the same are one class, as é in one letter and in two."""
    classes: dict[str, list[Folder]] = {}
    for name, folder in split.folders.items():
        classes.setdefault(composed(name), []).append(folder)
    return classes


def _names(classes: Mapping[str, Sequence[Folder]]) -> list[str]:
    """The names of classes as their folders have them."""
    return [os.path.basename(folders[0].path) for folders in classes.values()]


def _source(
    field: str, root: Folder, layout: Layout, splits: Mapping[str, Folder], classes: Mapping[str, list[Folder]]
) -> Source:
    """The source of splits, whose labels are places in `classes`."""
    unused, deeper = Unused(), list[str]()
    unused.add(root, root.others)
    if root not in splits.values():
        unused.add(root, root.images, _LOOSE)
    examples: dict[str, Examples] = {}
    for split, folder in splits.items():
        own = _classes(folder)
        unused.add(folder, folder.images, _LOOSE)
        if folder is not root:
            unused.add(folder, folder.others)
        paths, counts = list[str](), []
        for key in classes:
            found = {each.path: _images_of(field, each, unused) for each in own.get(key, ())}
            deeper += [path for top, some in found.items() for path in some if os.path.dirname(path) != top]
            paths += [path for some in found.values() for path in some]
            counts.append(sum(map(len, found.values())))
        examples[split] = Files(paths, np.repeat(np.arange(len(classes), dtype=np.int32), counts))
    unlabelled = {
        split: f"{os.path.basename(folder.path)}/ holds {len(folder.images):,} images but no class folders"
        for split, folder in layout.unlabelled.items()
    }
    merged = {key for folder in splits.values() for key, same in _classes(folder).items() if len(same) > 1}
    same = (f"folders whose names look the same are one class: {', '.join(sorted(merged))}",) if merged else ()
    name, remarks = (
        Path(root.path).resolve().name,
        (*layout.remarks, *same, *_deeper_remarks(deeper), *unused.remarks()),
    )
    return Source(name, Outputs("class", tuple(_names(classes))), examples, remarks, unlabelled)


def _images_of(field: str, folder: Folder, unused: Unused) -> list[str]:
    """The paths of the images of a class. Raises UserError where there are none."""
    found = folder.image_paths(unused)
    if not found:
        what, remedy = no_images(folder)
        raise UserError(field, f"class folder {folder.path} {what}", remedy)
    return found


def _deeper_remarks(paths: Sequence[str]) -> tuple[str, ...]:
    """A sentence on images that lie in folders of their class's folder; none if there are none."""
    what = f"{len(paths):,} image{' lies' if len(paths) == 1 else 's lie'} in folders of their class's folder"
    return (f"{what}, such as {paths[0]}",) if paths else ()
