"""Several runs by one name: groups, which `train --seeds` and `train --folds` make, and folders of runs."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from ..config.dotted import replace_fields
from ..config.hints import similar
from ..config.run import RunConfig
from ..errors import Field, UserError
from ..files.places import is_kept, join, local_copy
from .folder import Run
from .values import flat

SHOWN = 5
VARIED = {"seed": "seed", "fold": "data.fold"}  # {kind of group, as in seed-3: the field that differs}
STUDY, OLD_SWEEP = "study.db", "sweep.json"  # in the folder of a sweep; of one of an earlier version


def find_runs(name: str, runs_dir: str, named: bool) -> list[Path]:
    """The folders of runs and of groups that a name stands for."""
    if not name:
        raise UserError("the name of a run is empty", remedy="give the folder of one, or its name")
    if is_kept(name) or (named and is_kept(runs_dir)):
        url = join(runs_dir, name)
        if not (inside := _runs_inside(Path(local_copy(url)))):
            raise UserError(url, "no run is here, or in it", "train one, or give the URL of one")
        return inside
    plain = named and name not in (".", "..") and Path(name).name == name
    places = [path for path in (Path(name), Path(runs_dir) / name) if _runs_inside(path)] if plain else [Path(name)]
    if len({os.path.realpath(path) for path in places}) > 1:
        raise UserError(name, f"is both ./{name} and {Path(runs_dir) / name}", "give one of these paths")
    if places and (inside := _runs_inside(places[0])):
        return inside
    if not named:
        raise UserError(f"{Path(runs_dir)}/ holds no runs", remedy="train one, or give the paths of runs")
    what = "is no run, and holds none" if os.path.lexists(name) else "no such run, or folder of runs"
    raise UserError(name, f"{what}{there(name, runs_dir)}")


def there(name: str, runs_dir: str) -> str:
    """A clause with the runs and groups in a folder."""
    found, place = sorted(path.name for path in _runs_inside(Path(runs_dir))), Path(runs_dir)
    if not found:
        return f"; {place}/ holds none: train one, or give its path"
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return similar(name, found) or f"; {place}/ holds {', '.join(found[:SHOWN])}{more}"


def members_of(resume: str | os.PathLike[str] | Run, runs_dir: str = "runs") -> list[Run]:
    """The runs of a group."""
    if isinstance(resume, Run):
        return []
    text = os.fspath(resume)
    places = dict.fromkeys((text, join(runs_dir, text)))  # of a URL or an absolute path the same
    return [Run(path) for place in places for path in members(Path(local_copy(place)))]


def of_folds(run: RunConfig, folds: int) -> RunConfig:
    """The run of the first of several folds."""
    known = flat(run)
    if "data.folds" not in known:
        raise UserError(Field("folds"), f"is {folds}, and the task {run.task} has none", "leave it out")
    if known["data.folds"][0] not in (0, folds) or known["data.fold"][0]:
        raise UserError(Field("folds"), f"is {folds}, and data.folds or data.fold is given", "leave one of them out")
    return replace_fields(run, {"data.folds": folds})


def _runs_inside(path: Path) -> list[Path]:
    """A path if it is a run or a group, else those inside it."""
    if is_run(path) or members(path):
        return [path]
    try:
        inside = sorted((p for p in path.iterdir() if p.is_dir()), key=natural_order) if path.is_dir() else []
    except OSError:
        return []
    return [each for each in inside if is_run(each) or members(each)]


def is_run(path: Path) -> bool:
    """Whether a folder is a run, maybe one whose config.json is gone, or has the config.json of another program."""
    return (path / "config.json").exists() or any((path / "digests").glob("[0-9]*.json"))


def members(path: Path) -> list[Path]:
    """The runs of a group, in order of their seeds or folds."""
    inside: set[Path] = set()
    for kind in VARIED:
        inside |= {file.parent for file in path.glob(f"{kind}-*/config.json")}
        inside |= {file.parents[1] for file in path.glob(f"{kind}-*/digests/[0-9]*.json")}  # a copy of it is in them
    return sorted(inside, key=lambda folder: (len(folder.name), folder.name))


def kind_of(member: Path) -> str:
    """The kind of the group that a run is in; empty if it is in none."""
    kind = member.name.partition("-")[0]
    return kind if kind in VARIED and member in members(member.parent) else ""


def without_runs(path: Path) -> list[str]:
    """The names of the folders of seeds or folds in a group that hold no run."""
    folders = {each.name for kind in VARIED for each in path.glob(f"{kind}-[0-9]*") if each.is_dir()}
    return sorted(folders - {folder.name for folder in members(path)}, key=lambda name: (len(name), name))


def titles(paths: list[Path]) -> dict[Path, str]:
    """{path: the shortest end of it that no other of them has}."""
    longest = max((len(path.parts) for path in paths), default=0)
    ends = [Counter(path.parts[-n:] for path in paths) for n in range(1, longest + 1)]  # by their number of parts
    found = {}
    for path in paths:
        count = next(n for n, several in enumerate(ends, 1) if several[path.parts[-n:]] == 1)
        found[path] = "/".join(path.parts[-count:])
    return found


def natural_order(path: Path) -> list[tuple[int, str]]:
    """The key to sort by names as people do: run-2 before run-10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]
