"""Folders: the sets of weights in one, shards that together are one set, and JSON files beside weights."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.files.reading import read_regular

from . import limits, orbax, run_folder, strict_json, unread
from .kinds import SUFFIXES, check_file, container, open_file
from .source import CARRIED_SUFFIX, PROVENANCE, Source, Step, check_names

INDEX = ".index.json"
# Files of trainers that end like weights and hold none.
NO_WEIGHTS = (
    "training_args.bin",
    "optimizer.pt",
    "optimizer.bin",
    "scheduler.pt",
    "scheduler.bin",
    "scaler.pt",
    "rng_state.pth",
)
LISTED = 20  # sets that a message lists
RUN_FOLDER = "run of vit-jax"  # what a Candidate says of a run folder
AGAIN = "get the files again, all from one source"
TAR = ".tar"  # timm names checkpoints last.pth.tar, although they are no archives
SIDE_FILES = (
    *("config.json", "preprocessor_config.json", "processor_config.json", "generation_config.json"),
    *("open_clip_config.json", PROVENANCE),
)


@dataclass(frozen=True)
class Candidate:
    """One set of weights in a folder: the path of its file, index or folder, its container, what it is, its bytes."""

    path: str
    container: str
    what: str
    size: int
    step: int | None = None


def candidates(folder: str) -> list[Candidate]:
    """The sets of weights in a folder. Sorted by path; the shards of an index are one set; empty if there are none.

    A run's or Orbax's checkpoints hide other files. A folder without either has the sets directly in its folders
    (checkpoint-500 and so on; links and unreadable ones are skipped).
    """
    root = Path(folder)
    if not os.access(root, os.R_OK | os.X_OK):
        raise UserError(folder, "you have no permission to read it", "change that with chmod")
    with os.scandir(root) as entries:
        if (count := sum(os.path.isdir(entry) for entry in entries)) > limits.FOLDERS:
            raise UserError(folder, f"has {count} folders in it", "give the one that holds the weights")
    if found := _checkpoints(root) or _direct(root):
        return found
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink() and os.access(path, os.R_OK | os.X_OK):
            number = re.fullmatch(r"checkpoint-(\d{1,15})", path.name)
            found += [replace(one, step=int(number[1]) if number else one.step) for one in _direct(path)]
    return found


def _direct(root: Path) -> list[Candidate]:
    """The sets of weights directly in a folder."""
    paths = sorted(root.iterdir())
    found: list[Candidate] = []
    shards: set[str] = set()
    for path in paths:
        if path.name.endswith(INDEX) and (kind := SUFFIXES.get(os.path.splitext(path.name.removesuffix(INDEX))[1])):
            files = _shards(str(path))[1]
            shards |= set(files)
            found.append(Candidate(str(path), kind, f"{len(files)} shards", sum(_size(root / file) for file in files)))
    for path in paths:
        name = path.name
        if (
            _suffix(name) in SUFFIXES
            and not path.is_dir()
            and name not in shards
            and name not in NO_WEIGHTS
            and not name.endswith(CARRIED_SUFFIX)
            and not unread.other([name])
        ):
            found.append(_file(path))
        elif path.is_dir():
            found += _checkpoints(path)
    return found


def _suffix(name: str) -> str:
    return os.path.splitext(name.lower().removesuffix(TAR))[1]


def _file(path: Path) -> Candidate:
    try:
        kind = container(str(path))
        return Candidate(str(path), kind, f"{kind} file", path.stat().st_size)
    except UserError as error:  # listed all the same, with the reason: the user may have meant this file
        return Candidate(str(path), SUFFIXES[_suffix(path.name)], error.what, 0)


def _checkpoints(folder: Path) -> list[Candidate]:
    """A run folder of vit-jax, an Orbax checkpoint, or each step of a folder of Orbax checkpoints."""
    if run_folder.is_run(folder):
        return [Candidate(str(folder), "orbax", RUN_FOLDER, _size(folder / "checkpoints"))]
    if not orbax.is_folder(folder):
        return []
    steps = orbax.steps(folder)
    if (folder / orbax.METADATA).is_file() or orbax.items(folder) or not steps:
        return [Candidate(str(folder), "orbax", "Orbax checkpoint", _size(folder))]
    return [
        Candidate(str(folder / str(step)), "orbax", f"Orbax checkpoint, step {step}", _size(folder / str(step)), step)
        for step in steps
    ]


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def open_folder(folder: str, file: str = "", step: Step = None, training: bool = False) -> Source:
    """Open the only set of weights in a folder, or the one that is named; of a run as `open_run` does."""
    found = candidates(folder)
    path = os.path.normpath(os.path.join(folder, file))
    if file and step is None and all(os.path.normpath(c.path) != path for c in found) and os.path.exists(path):
        if os.path.relpath(path, folder).split(os.sep)[0] == os.pardir:
            raise UserError(f"file {file}", f"is not in {folder}", "give the path itself as the source")
        if os.path.isfile(path):
            _check_inside(path)
        return open_folder(path, training=training) if os.path.isdir(path) else _open(path)
    if len(found) != 1 and not _direct(Path(folder)):
        unread.check_folder(folder, ["", *(() if found else _folders(folder))])
    if not found:
        raise UserError(
            folder, f"holds no weights ({', '.join(SUFFIXES)}, or a checkpoint)", "give the folder or file that does"
        )
    named = [c for c in found if not file or os.path.normpath(c.path) == path]
    wanted = _last_step(folder, named, step)
    chosen = [c for c in named if wanted is None or c.step == wanted or c.what == RUN_FOLDER]
    if len(chosen) != 1:
        names = ", ".join(f"{os.path.relpath(c.path, folder)} ({c.what})" for c in found[:LISTED])
        names += f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
        asked = f"file {file}" if not named else f"step {step}"
        fault = "there are several sets of weights" if chosen else f"{asked} is not there"
        raise UserError(folder, f"{fault}: {names}", "name one of them with `file`")
    (one,) = chosen
    if one.what == RUN_FOLDER:
        return run_folder.open_run(one.path, step, training)
    if one.container == "orbax":
        return orbax.open_folder(one.path)
    _check_inside(one.path)
    return _open(one.path)


def _folders(folder: str) -> list[str]:
    """The names of the folders in a folder that may be read, sorted; links are left out."""
    with os.scandir(folder) as entries:
        readable = [e.name for e in entries if e.is_dir(follow_symlinks=False) and os.access(e, os.R_OK | os.X_OK)]
    return sorted(readable)


def _last_step(folder: str, found: Sequence[Candidate], step: Step) -> Step:
    """The step that "last" means in a folder of checkpoints; runs know theirs. Raises UserError on "best"."""
    if not isinstance(step, str) or any(c.what == RUN_FOLDER for c in found):
        return step
    if step == "best":
        raise UserError(folder, "step best: only a run of vit-jax notes its best step", "give `step last` or a number")
    return max((c.step for c in found if c.step is not None), default=None)


def _check_inside(path: str) -> None:
    """Raise UserError on a link out of its folder, unless to the blobs of the same repository in the hub cache."""
    folder, target = Path(os.path.realpath(Path(path).parent)), Path(os.path.realpath(path))
    blobs = next((parent.parent / "blobs" for parent in folder.parents if parent.name == "snapshots"), folder)
    if not (target.is_relative_to(folder) or target.is_relative_to(blobs)):
        raise UserError(path, f"is a link out of its folder, to {target}", "give the file itself, or copy it there")


# ------------------------------------------------------------------------------------------- shards


def shard(path: str) -> str:
    """A clause for a file that is one shard of a set of weights: which, and what to give instead; else empty."""
    name = re.fullmatch(r"(.*)-0*(\d+)-of-0*(\d+)(\.\w+)", os.path.basename(path))
    if not name or name[3] == "1":
        return ""
    index = os.path.join(os.path.dirname(path), f"{name[1]}{name[4]}{INDEX}")
    return f"is shard {name[2]} of {name[3]}; give {index}" + (
        "" if os.path.exists(index) else ", which is not there: get it and all shards"
    )


def _shards(index: str) -> tuple[dict[str, str], list[str]]:
    """{tensor: name of its file} of an index, and all file names. Raises UserError on names outside the folder."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise UserError(index, "has no weight_map of tensors to files", "get the file again")
    check_names(listed, index)
    files = sorted(set(listed.values()))
    for file in files:
        if not file or file != os.path.basename(file) or file in (".", "..") or "\\" in file or "\0" in file:
            raise UserError(index, f"names the file {file[:100]!a}, which is not in its folder", AGAIN)
        if os.path.splitext(file)[1].lower() not in SUFFIXES:
            raise UserError(index, f"names the file {file[:100]!a}, which is no file of weights", AGAIN)
    return listed, files


def _open(path: str) -> Source:
    """A file, or the shards that an index lists."""
    return open_shards(path) if path.endswith(INDEX) else open_file(path)


def _check_listed(path: str, file: str, found: Set[str], listed: Mapping[str, str], name: str) -> None:
    """Raise UserError where a shard lacks a tensor that the index has in it, or holds another."""
    expected = {tensor for tensor, where in listed.items() if where == file}
    if absent := sorted(expected - found):
        raise UserError(path, f"lacks {absent[0]}, which {name} says is in it", AGAIN)
    if extra := sorted(found - expected):
        entry = f"says is in {listed[extra[0]]}" if extra[0] in listed else "does not list"
        raise UserError(path, f"holds {extra[0]}, which {name} {entry}", AGAIN)


def open_shards(index: str) -> Source:
    """All shards of an index as one source."""
    listed, files = _shards(index)
    folder = os.path.dirname(index)
    sources: dict[str, Source] = {}

    def close() -> None:
        for source in sources.values():
            source.close()

    try:
        tree: dict[str, Any] = {}
        for file in files:
            path = os.path.join(folder, file)
            if not os.path.lexists(path):
                raise UserError(index, f"names the file {file}, which is not there", "get it as well")
            _check_inside(path)
            sources[file] = source = open_file(path)
            found = flatten(source.tree, source.separator, strict=False)
            _check_listed(path, file, found.keys(), listed, os.path.basename(index))
            tree |= found
    except BaseException:
        close()
        raise
    opened = list(sources.values())
    if len(kinds := {source.container for source in opened}) > 1:
        close()
        raise UserError(index, f"its files are of several containers, {' and '.join(sorted(kinds))}", AGAIN)
    return Source(
        index,
        opened[0].container,
        tree,
        opened[0].metadata,
        [s for o in opened for s in o.skipped],
        [t for o in opened for t in o.tied],
        [index, *(os.path.join(folder, file) for file in files)],
        sum(o.size for o in opened),
        close,
    )


# --------------------------------------------------------------------------------------- side files


def side_files(path: str, known: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """The files in a folder, or beside a file, that describe its weights: config.json, ... Returns {file name: JSON
    object}.
    """
    folder, names = (
        (path, SIDE_FILES)
        if os.path.isdir(path)
        else (os.path.dirname(path), (*SIDE_FILES, f"{os.path.basename(path)}.json"))
    )
    found = {}
    for name in names:
        file = os.path.join(folder, name)
        if name not in known and os.path.lexists(file):
            _check_inside(file)
            found[name] = read_json(file)
    return found


def read_json(path: str) -> dict[str, Any]:
    """The JSON object in a file."""
    check_file(path)
    value = strict_json.parse(read_regular(path, limits.HEADER, "move it to another folder"), path)
    if not isinstance(value, dict):
        raise UserError(path, "is no JSON object", "correct it, or move it away and state its `fields`")
    return value
