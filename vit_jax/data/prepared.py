"""Where prepared sets lie: DIR/NAME/VERSION or DIR/NAME/CONFIG/VERSION of TFDS, and DIR/NAME/VERSION.npz of our own."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import UserError
from ..files.atomic import read_json

FETCHED = {"cifar10": 170, "cifar100": 169, "mnist": 12, "fashion_mnist": 31}  # {an official set: megabytes}
MARK = "dataset_info.json"  # the file that a prepared set has
VERSION = r"\d+\.\d+\.\d+"  # folders of other names are unfinished, ours or TFDS's


def data_dir(stated: str) -> Path:
    """The folder of prepared sets."""
    root = Path(os.path.expanduser(stated or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"))
    if (stated or root.exists()) and not root.is_dir():  # in this order: another process may be making it
        raise UserError(f"data.dir {root}", "no such folder", "make it, or give `data.dir` another one")
    return root


def find_prepared(root: Path, name: str, version: str = "") -> Path | None:
    """The folder or file of a prepared set, of the newest version if none is given; None if there is none."""
    versions = _versions(root / name)
    return versions.get(version or next(reversed(versions), ""))


def prepared_in(root: Path) -> dict[str, list[str]]:
    """{name of each set that is prepared in a data.dir: its versions, the newest last}."""
    folders = {file.parents[1] for file in root.glob(f"*/*/{MARK}")} | {file.parent for file in root.glob("*/*.npz")}
    # A folder of configs is that of a set, and no other data.dir.
    nested = (file for file in root.glob(f"*/*/*/{MARK}") if _set_name(file) == file.parents[2].name)
    folders |= {file.parents[1] for file in nested}
    found = {str(folder.relative_to(root)): [*_versions(folder)] for folder in sorted(folders)}
    return {name: versions for name, versions in found.items() if versions}


def prepared_around(folder: Path) -> tuple[Path, dict[str, list[str]]] | None:
    """(data.dir, {set: its versions}) of a folder that is not stated as data.dir; None where no set is prepared."""
    folder = folder.resolve()
    if (folder / MARK).is_file() and re.fullmatch(VERSION, folder.name):
        version, folder = folder.name, folder.parent
    elif _versions(folder):
        version = ""
    else:
        there = prepared_in(folder)
        return (folder, there) if there else None
    # A config lies in the folder of its set.
    nested = any(
        _set_name(info) == folder.parent.name != folder.name for info in folder.glob(f"{version or '*'}/{MARK}")
    )
    root = folder.parents[1] if nested else folder.parent
    return root, {str(folder.relative_to(root)): [version] if version else [*_versions(folder)]}


def _set_name(info: Path) -> str:
    """The name of a set in its dataset_info.json; empty where it states none."""
    try:
        return str(read_json(info)["name"])
    except (UserError, KeyError):
        return ""


def _versions(folder: Path) -> dict[str, Path]:
    """{version of a set: where it stands in its folder}, the newest last."""
    found = {file.stem: file for file in folder.glob("*.npz") if folder.name in FETCHED}
    found |= {file.parent.name: file.parent for file in folder.glob(f"*/{MARK}")}
    names = filter(re.compile(VERSION).fullmatch, found)
    return {name: found[name] for name in sorted(names, key=lambda name: [*map(int, name.split("."))])}
