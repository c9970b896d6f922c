"""The same command again: whether the weights of `init` are those that a run began with."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config.run import RunConfig
from ...errors import UserError
from ...files.places import join, local_copy
from ...runs import Run
from ...runs.check import is_name
from ...runs.several import members
from ...runs.values import other_identity
from .fitting import known_fields
from .opening import Unfit, digest, errors_about, opened_for


def check_unchanged(run: RunConfig, name: str) -> None:
    """Check that the weights are still those that the run of the same command began with."""
    same = (
        folder
        for folder in _runs_begun_from(run.init, run.dir, name)
        if other_identity(replace(folder.config(), seed=run.seed), run).keys()
        <= _init_of(folder).get("filled", {}).keys()
    )
    if folder := _first_changed(same, run.dir):
        raise UserError(
            f"init {run.init}",
            f"is no longer what {folder} began from",
            f"go on with that run by `resume {shlex.quote(str(folder))}`, or start another with `name`",
        )


@contextlib.contextmanager
def resumable(init: str, folder: str, name: str) -> Iterator[None]:
    """A context in which errors of weights that are gone or have changed name the run that began from them."""
    try:
        yield
    except Unfit as error:
        if found := _first_changed(_runs_begun_from(init, folder, name), folder):
            go_on = f"go on with that by `resume {shlex.quote(str(found))}`"
            error.add(f"; {found}, which began from it, no longer needs it: {go_on}")
        raise


def check_same(folder: Run, record: dict[str, Any]) -> None:
    """Check that a run that has saved nothing yet began from the same weights."""
    then = _init_of(folder).get("digest", record["digest"])
    if then != record["digest"]:
        began = folder.config()
        raise UserError(
            folder,
            f"its init {began.init or began.init_encoder} has changed since it began",
            "restore that, or start anew under another `name`",
        )


def _first_changed(runs: Iterable[Run], folder: str) -> Run | None:
    """The first of runs with the same `init` that began from other weights than that holds now."""
    now = None
    for run in runs:
        if now is None:
            then = replace(run.config(), dir=folder)
            try:
                with opened_for(then, known_fields(then.model)) as weights, errors_about(then.init):
                    now = digest(weights.arrays())
            except UserError:
                now = ""  # it is gone, or another network
        if now != _init_of(run)["digest"]:
            return run
    return None


def _runs_begun_from(init: str, folder: str, name: str) -> Iterator[Run]:
    """The runs that began from `init` in folders of this name, with or without a number, also those of groups of seeds.

    Those that have saved no step are left out: they cannot go on without their weights.
    """
    for run in _numbered_runs(folder, name) if is_name(name) else ():
        try:
            began = run.config().init == init and "digest" in _init_of(run) and run.complete_steps()
        except UserError:  # whoever needs that record says what is wrong with it
            continue
        if began:
            yield run


def _init_of(folder: Run) -> dict[str, Any]:
    """The entry `init` of a run's config.json; empty where there is none."""
    found = folder.record().get("init")
    return found if isinstance(found, dict) and isinstance(found.get("filled", {}), dict) else {}


def _numbered_runs(place: str, name: str) -> Iterator[Run]:
    """The runs in a folder of this name, or with a number appended, also those of a group of seeds."""
    for number in itertools.count(1):
        folder = Path(local_copy(join(place, name if number == 1 else f"{name}-{number}")))
        if not folder.exists():
            return
        yield from (Run(path) for path in (folder, *members(folder)) if (path / "config.json").is_file())
