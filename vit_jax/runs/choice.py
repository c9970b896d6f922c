"""Which folder a run gets, and which run a text names."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..config.dotted import replace_fields, value_at
from ..config.outputs import FOLDER
from ..config.run import RunConfig
from ..errors import Field, UserError
from ..files.destination import check_apart
from ..files.places import check_dir, is_kept, join, local_copy
from ..files.reading import show_path
from .check import check_name
from .folder import Run
from .several import OLD_SWEEP, STUDY, VARIED, kind_of, members, there
from .values import LENGTH, other_identity

# A clause on what a run is made from that the run in a folder was not; empty if it is the same, or there is none.
Difference = Callable[[Run, RunConfig], str]

ON_THE_HUB = re.compile(r"(hf:/?)?(?P<owner>[\w-]+)/(?P<name>[\w.-]+)")  # with its hf:// left out or cut


def choose(run: RunConfig, name: str, named: bool, group: str = "", difference: Difference | None = None) -> Run:
    """The folder for a run, or for a group of runs: one that has the same run already, or a new one."""
    check_name(name)
    check_dir(run.dir)
    number = 1
    while True:
        folder = Run(local_copy(join(run.dir, name if number == 1 else f"{name}-{number}")))
        if folder.exists():
            folder.content()
        try:
            same = _fits_group(folder, run, group) if group else _fits(folder, run)
        except UserError:
            if named:
                raise
        else:
            clauses = (difference(each, its) for each, its in same) if difference else ()
            if (clause := next(filter(None, clauses), "")) and named:
                raise other_content(folder, clause)
            if not clause:
                return folder
        number += 1


def _is_leftover(file: Path, folder: Path) -> bool:
    """Whether a file is what a start that was killed before it wrote config.json may have left."""
    begun = re.fullmatch(r"\.lock|config\.json(\.\d+)?\.tmp", file.name)
    return bool(begun) or file.relative_to(folder).parts[0] == FOLDER


def _fits(folder: Run, run: RunConfig) -> list[tuple[Run, RunConfig]]:
    """[(the folder, the run)]. Raises UserError unless it is free or has the same run, but for places."""
    if folder.exists():
        same_identity(folder, run)
    elif folder.path.exists() and (
        not folder.path.is_dir()
        or any(p.is_file() and not _is_leftover(p, folder.path) for p in folder.path.rglob("*"))
    ):
        # A run that was killed before it wrote config.json leaves empty folders and such files: that is free.
        raise UserError(folder, "exists and is not a run", "choose another `name`")
    return [(folder, run)]


def _fits_group(folder: Run, run: RunConfig, group: str) -> list[tuple[Run, RunConfig]]:
    """The runs in the folder, as (folder of one, this run with its seed or fold)."""
    if folder.exists():
        raise UserError(folder, f"holds a single run, not one per {group}", "choose another `name`")
    inside = members(folder.path)
    if not inside:
        _fits(folder, run)
    found = []
    for path in inside:
        member = Run(path)
        if kind_of(path) != group:
            raise UserError(folder, f"holds a run per {kind_of(path)}, not one per {group}", "choose another `name`")
        its = replace_fields(run, {VARIED[group]: value_at(member.config(), VARIED[group])})
        same_identity(member, its)
        found.append((member, its))
    return found


def same_identity(folder: Run, run: RunConfig) -> None:
    """Check that a folder has the same run."""
    if changed := other_identity(folder.config(), run):
        raise other_run(folder, changed)


def changed_beside(error: UserError, folder: Run, run: RunConfig) -> dict[str, tuple[Any, Any]]:
    """{field: (the folder's, the run's)} of what makes it another run, if an error blames a field that is as it was."""
    changed = other_identity(folder.config(), run)
    return changed if changed.keys() - {*LENGTH} and error.subject not in changed else {}


def other_run(folder: Run, changed: Mapping[str, tuple[Any, Any]]) -> UserError:
    """The error for a folder whose run differs in these fields, {field: (the folder's, the other's)}."""
    fields = ", ".join(f"{k} {old!r} -> {new!r}" for k, (old, new) in changed.items())
    remedy = "choose another `name`, or leave these as they were"
    if changed.keys() <= {*LENGTH}:
        remedy += f"; to train it on, give `resume {shlex.quote(str(folder))}`"
    return UserError(folder, f"holds another run, which differs in {fields}", remedy)


def other_content(folder: Run, clause: str) -> UserError:
    """The error for a folder whose run was made from something else, as a clause says."""
    remedy = (
        "give what it was made from, which may lie anywhere, or train anew under another `name`, from these "
        f"weights by `init {shlex.quote(str(folder))}`"
    )
    return UserError(folder, f"holds another run: {clause}", remedy)


def check_place(folder: Path) -> None:
    """Raise UserError if a folder cannot be made or written to, or is one that a run keeps in its own."""
    check_apart(show_path(folder), folder)
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        raise UserError(show_path(there), "a file is where a folder is needed", "choose another `dir` or `name`")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(show_path(there), "no permission to write here", "choose another folder with `dir`")


def of_summary(given: Any) -> Any:
    """The folder of the run, where what is given is the summary of one as `train` returns it; else what is given."""
    is_summary = isinstance(given, Mapping) and "status" in given and isinstance(given.get("folder"), str)
    return given["folder"] if is_summary else given


def find(text: str, runs_dir: str = "runs", weights: bool = False) -> Run:
    """The run at a path, or with a name inside `runs_dir`."""
    for place in (text, join(runs_dir, text)):
        path = Path(local_copy(place))
        if Run(path).exists():
            return Run(path)
        _no_group(path)
    if is_kept(text) or is_kept(runs_dir):
        raise UserError(join(runs_dir, text), "no run here", "give the URL of a run, s3://BUCKET/PATH/NAME")
    if Path(text).is_file():
        raise UserError(text, "is a file and no run", f"to start a run from weights, train with `init {text}`")
    if os.path.lexists(text):
        raise UserError(text, f"no run here{there(text, runs_dir)}")
    error = UserError(text, f"no such {'file, folder' if weights else 'folder'} or run{there(text, runs_dir)}")
    if weights and (found := ON_THE_HUB.fullmatch(text)) and not os.path.isdir(found["owner"]):
        error.add(f"; on Hugging Face's hub it is hf://{found['owner']}/{found['name']}")
    raise error


def is_foreign(text: str, runs_dir: str = "runs") -> bool:
    """Whether a text is the path of a weight file or folder, and not a run."""
    if text.startswith("hf://"):
        return True
    given = Run(local_copy(text))
    for folder in given.path.parents[:3]:
        if given.path.is_dir() and given.path.is_relative_to(Run(folder).checkpoints) and Run(folder).exists():
            step = given.path.relative_to(folder).parts[1:2]
            chosen = f" --step {step[0]}" if step else ""
            raise UserError(
                text,
                f"is inside the run {Run(folder)}",
                f"give {Run(folder)}, or a file that `python -m convert {shlex.quote(str(Run(folder)))} "
                f"X.safetensors{chosen}` writes",
            )
    _no_group(given.path)
    if given.exists():  # other libraries have a config.json, too
        return not (given.checkpoints.is_dir() or given.is_ours())
    return Path(text).exists() and not Run(local_copy(join(runs_dir, text))).exists()


def read_from(text: str) -> list[Path]:
    """The files and folders that a network, and the data of a run, are read from."""
    if is_foreign(text):
        path = Path(text)
        return [path, *path.parent.glob("*.json")] if path.is_file() else [path]
    folder = find(text, weights=True)
    return [folder.path, *folder.config().data.paths()]


def mean_of(which: str) -> int:
    """Of how many checkpoints the weights are the mean."""
    if which in ("best", "last"):
        return 0
    number = which.removeprefix("mean:")
    if number == which or not (number.isascii() and number.isdecimal()) or not 0 < int(number) < 10_000:
        raise UserError(
            Field("which"), f"is {which[:40]!r}", "choose best, last, or mean:K such as mean:5, of the last K kept"
        )
    return int(number)


def _no_group(path: Path) -> None:
    """Raise UserError if the folder holds a run for each seed or fold and is none itself."""
    if not Run(path).exists() and any((path / name).is_file() for name in (STUDY, OLD_SWEEP)):
        raise UserError(
            Run(path), "is a sweep, whose runs are in it", f"give one of them; vit-jax compare {Run(path)} lists them"
        )
    inside = [] if Run(path).exists() else members(path)
    if inside:
        raise UserError(
            Run(path),
            f"is a group of {len(inside)} runs, one for each {kind_of(inside[0])}",
            f"give one of them, such as {Run(inside[0])}",
        )
