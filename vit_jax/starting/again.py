"""The same command again: whether the weights of `init` are those that a run began with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import RunConfig, differences
from ..errors import UserError
from ..interop import Weights
from ..runs import Run
from .fitting import told
from .opening import digest, opened_for, runs_from, worded


def check_unchanged(run: RunConfig, name: str) -> None:
    """Raise UserError where the weights are no longer those that the run of the same command began with.

    That run is in the folder `name`, or `name` with a number, of run.dir, and differs from this one at most in what
    weights fill in.
    """
    now = ""
    for folder in _numbered(Path(run.dir) / name):
        then = folder.config()
        began = _init_of(folder)
        other = differences(replace(then, seed=run.seed), run).keys() - began.get("filled", {}).keys()
        if then.init != run.init or other or "digest" not in began:
            continue
        if not now:
            with opened_for(then, told(then.model)) as weights, worded(run.init, run.dir):
                now = digest(weights.arrays())
        if now != began["digest"]:
            raise UserError(
                f"init {run.init}: has changed since {folder} began from it; "
                f"go on with that run by --resume {folder}, or start another with --name"
            )


def check_same(folder: Run, record: dict[str, Any]) -> None:
    """Raise UserError where a run that has saved nothing yet began from other weights than those of `record`."""
    then = _init_of(folder).get("digest", record["digest"])
    if then != record["digest"]:
        raise UserError(
            f"{folder}: its init {folder.config().init} has changed since it began; "
            "restore that, or start anew under another --name"
        )


def changed_since(run: RunConfig, weights: Weights) -> str:
    """A clause naming a run that began from other weights of the name `run.init`; empty where there is none."""
    now = ""
    for folder in runs_from(run.init, run.dir):
        if then := _init_of(folder).get("digest"):
            now = now or digest(weights.arrays())
            if then != now:
                return f"; it has changed since {folder} began from it: go on with that by --resume {folder}"
    return ""


def _init_of(folder: Run) -> dict[str, Any]:
    """The entry `init` of a run's config.json; empty where there is none."""
    found = folder.record().get("init")
    return found if isinstance(found, dict) and isinstance(found.get("filled", {}), dict) else {}


def _numbered(path: Path) -> Iterator[Run]:
    """The runs in a folder of this name, or with a number appended, also those of a group of seeds."""
    number, folder = 1, path
    while folder.exists():
        yield from (
            Run(file.parent) for file in (folder / "config.json", *folder.glob("seed-*/config.json")) if file.is_file()
        )
        number += 1
        folder = path.with_name(f"{path.name}-{number}")
