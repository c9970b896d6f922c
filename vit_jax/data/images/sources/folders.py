"""Folders of image files, sorted by class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ....errors import UserError
from ..preprocess import EXTENSIONS, read_image
from .base import Examples, Source, Stamps, stamp_files

WHOLE = "all"  # what data without splits is called in place of one
_FOLDERS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}


@dataclass
class Files:
    """Examples that are image files."""

    paths: Sequence[str]
    labels: np.ndarray
    sealed: bool = False

    def read(self, i: int) -> bytes:
        return read_image(self.paths[i])

    def name(self, i: int) -> str:
        return self.paths[i]

    def stamps(self) -> Stamps:
        """The files themselves, by their names within the folder that holds them all."""
        paths = [os.path.abspath(path) for path in self.paths]
        folder = os.path.commonpath([os.path.dirname(path) for path in (min(paths), max(paths))])
        start = len(os.path.join(folder, ""))
        return stamp_files(folder, [path[start:] for path in paths], whole=False)


def open_folder(path: str) -> Source:
    """A folder with train/CLASS/image, and perhaps val/ or validation/ and test/; or with CLASS/image alone."""
    field, root = _root(path, "train/CLASS/image or CLASS/image")
    folders = _list_folder(root)[0]
    # A class may be called train, too; a split is a folder of this name that contains folders.
    roots = {name: root / name for name in folders if name in _FOLDERS and _list_folder(root / name)[0]}
    if not roots and folders and set(folders) <= set(_FOLDERS):
        raise UserError(field, f"{folders[0]}/ holds no class folders", "sort its images into one folder per class")
    if roots and "train" not in roots:
        raise UserError(
            field, f"{next(iter(roots))}/ has class folders but train/ has none or is missing", "add train/CLASS/image"
        )
    if "val" in roots and "validation" in roots:
        raise UserError(field, "both val/ and validation/ are there", "keep one of them")
    ignored = [name for name in folders if roots and name not in roots]
    remarks = (f"folders left out, as only train, val and test are read: {', '.join(ignored)}",) if ignored else ()
    roots = roots or {"train": root}

    roots = {
        _FOLDERS.get(name, name): folder for name, folder in sorted(roots.items(), key=lambda item: item[0] != "train")
    }
    classes = {split: _list_folder(folder)[0] for split, folder in roots.items()}
    if not classes["train"]:
        raise UserError(field, "holds no class folders", "sort its images into one folder per class")
    for split in classes:
        for name in sorted(set(classes[split]) ^ set(classes["train"])):
            there, absent = ("train", split) if name in classes["train"] else (split, "train")
            raise UserError(
                field, f"class folder {name} is in {there} but not in {absent}", "every split needs the same classes"
            )
    splits: dict[str, Examples] = {
        split: _class_folders(field, folder, classes["train"]) for split, folder in roots.items()
    }
    return Source(root.resolve().name, tuple(classes["train"]), splits, remarks)


def open_test_folder(path: str) -> Source:
    """A folder of splits (train/, val/ or validation/, test/, some of them) of class folders, or of class folders.

    Unlike a folder to train on, it may lack train/, and its splits may have different classes.
    """
    field, root = _root(path, "CLASS/image, or test/CLASS/image")
    folders = _list_folder(root)[0]
    roots = {_FOLDERS[name]: root / name for name in folders if name in _FOLDERS and _list_folder(root / name)[0]}
    if {"val", "validation"} <= {*folders} and all(_list_folder(root / name)[0] for name in ("val", "validation")):
        raise UserError(field, "both val/ and validation/ are there", "keep one of them")
    roots = roots or {WHOLE: root}
    classes = {split: _list_folder(folder)[0] for split, folder in roots.items()}
    if not any(classes.values()):
        raise UserError(field, "holds no class folders", "sort its images into one folder per class")
    union = sorted(set().union(*classes.values()))
    splits: dict[str, Examples] = {}
    for split, folder in roots.items():
        files = _class_folders(field, folder, classes[split])
        places = np.array([union.index(name) for name in classes[split]], np.int32)
        splits[split] = replace(files, labels=places[files.labels])
    return Source(root.resolve().name, tuple(union), splits)


def _root(path: str, inside: str) -> tuple[str, Path]:
    """(the field as messages name it, the folder), which is to hold what `inside` says. Raises UserError."""
    field = f"data.source folder:{path}"
    if not path:
        raise UserError(f"{field} names no folder", remedy="give folder:PATH, or folder:. for the current one")
    root = Path(os.path.expanduser(path))
    if not root.is_dir():
        raise UserError(field, "no such folder", f"give one that holds {inside}")
    return field, root


def _class_folders(field: str, folder: Path, classes: Sequence[str]) -> Files:
    paths: list[str] = []
    counts = []
    for name in classes:
        images = [file for file in _list_folder(folder / name)[1] if os.path.splitext(file)[1].lower() in EXTENSIONS]
        if not images:
            raise UserError(field, f"class folder {folder / name} holds no images", "add some or remove it")
        paths += [str(folder / name / image) for image in images]
        counts.append(len(images))
    return Files(paths, np.repeat(np.arange(len(classes), dtype=np.int32), counts))


def _list_folder(folder: Path) -> tuple[list[str], list[str]]:
    """(names of the subfolders, names of the files) of a folder, sorted and without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            shown = [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UserError(folder, f"cannot be listed ({error.strerror})", "mend its permissions") from error
    return sorted(name for name, is_dir in shown if is_dir), sorted(name for name, is_dir in shown if not is_dir)
