"""Folders: which weights lie in one, shards that are one set, and the JSON beside them. Reads headers only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError

from . import orbax, run_folder, strict_json
from .kinds import SUFFIXES, check_file, container, open_file
from .source import CARRIED_SUFFIX, HEADER, PROVENANCE, Source, check_names

INDEX = ".index.json"
# Files that libraries leave beside weights and that hold none.
BESIDE = (
    "training_args.bin",
    "optimizer.pt",
    "optimizer.bin",
    "scheduler.pt",
    "scheduler.bin",
    "scaler.pt",
    "rng_state.pth",
)
RUN = "run of vit-jax"
TAR = ".tar"  # timm calls a checkpoint last.pth.tar: it is no archive
SIDE = ("config.json", "preprocessor_config.json", "generation_config.json", PROVENANCE)


@dataclass(frozen=True)
class Candidate:
    """One set of weights in a folder: its file, index or folder, what it is, its bytes."""

    path: str
    container: str
    what: str
    size: int
    step: int | None = None


def candidates(folder: str) -> list[Candidate]:
    """All sets of weights in a folder, by name: shards with their index are one, side files are none. Raises UserError.

    A folder without any of its own has those of the folders in it, as trainers number them.
    """
    root = Path(folder)
    if not os.access(root, os.R_OK | os.X_OK):
        raise UserError(f"{folder}: no permission to read it; change that with chmod")
    if found := _checkpoints(root) or _direct(root):
        return found
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink() and os.access(path, os.R_OK | os.X_OK):
            number = re.fullmatch(r"checkpoint-(\d{1,15})", path.name)
            found += [replace(one, step=int(number[1]) if number else one.step) for one in _direct(path)]
    return found


def _direct(root: Path) -> list[Candidate]:
    """The sets of weights that lie in a folder itself."""
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
            and name not in BESIDE
            and not name.endswith(CARRIED_SUFFIX)
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
    except UserError as error:  # it is listed all the same: what was meant to be opened has to be seen
        return Candidate(
            str(path), SUFFIXES[_suffix(path.name)], str(error).removeprefix(f"{path}: ").partition(";")[0], 0
        )


def _checkpoints(folder: Path) -> list[Candidate]:
    """A run of ours, an Orbax folder, or each of its steps."""
    if run_folder.is_run(folder):
        return [Candidate(str(folder), "orbax", RUN, _size(folder / "checkpoints"))]
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


def open_folder(folder: str, file: str = "", step: int | None = None) -> Source:
    """The only set of weights in a folder, or the one that `file` or `step` names. Raises UserError listing them all.

    `file` may also name a file or folder in it that does not look like weights.
    """
    found = candidates(folder)
    place = os.path.normpath(os.path.join(folder, file))
    if file and step is None and all(os.path.normpath(c.path) != place for c in found) and os.path.exists(place):
        if os.path.relpath(place, folder).split(os.sep)[0] == os.pardir:
            raise UserError(f"--file {file}: is not in {folder}; give the path itself as the source")
        if os.path.isfile(place):
            inside(place)
        return open_folder(place) if os.path.isdir(place) else _open(place)
    if not found:
        raise UserError(
            f"{folder}: holds no weights ({', '.join(SUFFIXES)}, or a checkpoint); give the folder or file that does"
        )
    named = [c for c in found if not file or os.path.normpath(c.path) == place]
    chosen = [c for c in named if step is None or c.step == step or c.what == RUN]
    if len(chosen) != 1:
        names = ", ".join(f"{os.path.relpath(c.path, folder)} ({c.what})" for c in found)
        asked = f"--file {file}" if not named else f"--step {step}"
        raise UserError(
            f"{folder}: {'there are several sets of weights' if chosen else f'{asked} is not there'}: {names}; name one of them with --file"
        )
    (one,) = chosen
    if one.what == RUN:
        return run_folder.open_run(one.path, step)
    if one.container == "orbax":
        return orbax.open_folder(one.path)
    inside(one.path)
    return _open(one.path)


def inside(path: str) -> None:
    """Raise UserError on a link out of its folder, unless to the blobs of the same hub cache repository."""
    folder, target = Path(os.path.realpath(Path(path).parent)), Path(os.path.realpath(path))
    blobs = next((parent.parent / "blobs" for parent in folder.parents if parent.name == "snapshots"), folder)
    if not (target.is_relative_to(folder) or target.is_relative_to(blobs)):
        raise UserError(f"{path}: is a link out of its folder, to {target}; give the file itself, or copy it there")


# ------------------------------------------------------------------------------------------- shards


def shard(path: str) -> str:
    """A clause where a file is one of several that are one set of weights: which, and what to give; else empty."""
    name = re.fullmatch(r"(.*)-0*(\d+)-of-0*(\d+)(\.\w+)", os.path.basename(path))
    if not name or name[3] == "1":
        return ""
    index = os.path.join(os.path.dirname(path), f"{name[1]}{name[4]}{INDEX}")
    return f"is shard {name[2]} of {name[3]}; give {index}" + (
        "" if os.path.exists(index) else ", which is not there: get it and all shards"
    )


def _shards(index: str) -> tuple[dict[str, str], list[str]]:
    """{tensor: its file's name} of an index, and the files."""
    said = _json(index)
    listed = said.get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise UserError(f"{index}: lists no tensors with their files (weight_map); get the file again")
    check_names(listed, index)
    files = sorted(set(listed.values()))
    for file in files:
        if not file or file != os.path.basename(file) or file in (".", "..") or "\\" in file or "\0" in file:
            raise UserError(
                f"{index}: names the file {file[:100]!a}, which is not in its folder; get the files again from their source"
            )
        if os.path.splitext(file)[1].lower() not in SUFFIXES:
            raise UserError(
                f"{index}: names the file {file[:100]!a}, which is no file of weights; get the files again from their source"
            )
    return listed, files


def _open(path: str) -> Source:
    """A file, or the shards that an index lists."""
    return open_shards(path) if path.endswith(INDEX) else open_file(path)


def open_shards(index: str) -> Source:
    """All shards of an index as one source. Raises UserError unless each tensor lies once, in the file that the index says."""
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
                raise UserError(f"{index}: names the file {file}, which is not there; get it, too")
            inside(path)
            sources[file] = source = open_file(path)
            due = {name for name, place in listed.items() if place == file}
            if absent := sorted(due - source.tree.keys()):
                raise UserError(
                    f"{path}: lacks {absent[0]}, which {os.path.basename(index)} says is there; get the files again from one source"
                )
            if extra := sorted(source.tree.keys() - due, key=str):
                said = f"says is in {listed[extra[0]]}" if extra[0] in listed else "does not list"
                raise UserError(
                    f"{path}: holds {extra[0]}, which {os.path.basename(index)} {said}; get the files again from one source"
                )
            tree |= source.tree
    except BaseException:
        close()
        raise
    opened = list(sources.values())
    if len(kinds := {source.container for source in opened}) > 1:
        close()
        raise UserError(
            f"{index}: its files are of several containers, {' and '.join(sorted(kinds))}; get the files again from one source"
        )
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


def side_files(path: str) -> dict[str, dict[str, Any]]:
    """{name: JSON object} of the files in a folder, or beside a file, that say what its tensors are. Raises UserError."""
    folder, names = (
        (path, SIDE) if os.path.isdir(path) else (os.path.dirname(path), (*SIDE, f"{os.path.basename(path)}.json"))
    )
    found = {}
    for name in names:
        place = os.path.join(folder, name)
        if os.path.lexists(place):
            inside(place)
            found[name] = _json(place)
    return found


def _json(path: str) -> dict[str, Any]:
    """A JSON object. Raises UserError where the file is too large or holds something else."""
    check_file(path)
    if os.path.getsize(path) > HEADER:
        raise UserError(
            f"{path}: takes {os.path.getsize(path)} bytes, more than {HEADER}; this is no side file of a model"
        )
    with open(path, "rb") as file:
        value = strict_json.parse(file.read(), path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: is no JSON object; put it right, or move it away and give what it says with --set")
    return value
