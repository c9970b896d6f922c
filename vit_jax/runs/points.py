"""The points of a sweep: which runs it trains, and where they lie. Free of jax.

runs/<sweep>/
    sweep.json       the fields, their values, and how each point ended
    sweep.png        the result over each field
    lr=0.001,depth=4/    a point: a run, or with --seeds the runs seed-S
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config.run import RunConfig
from ..errors import Field, UserError
from ..files.atomic import read_json
from .check import check_name
from .choice import same_identity
from .folder import Run
from .mirror import check_dir, copy_of, here, join, kept_at
from .several import SWEEP, is_run, members
from .values import flat

FAILED = "failed: "  # begins how a point ended that has no run
GROWTH = 3  # of successive halving (Li et al. 2018, arXiv 1603.06560): the epochs grow by it, one in as many goes on
LONGEST = 60  # letters of a value in the name of a folder
WANTED = "choose another `name`"


@dataclass(frozen=True)
class Point:
    """One combination of values of the fields of a sweep."""

    fields: dict[str, Any]
    run: RunConfig
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder: lr=0.001,depth=4."""
        short = [name.rpartition(".")[2] for name in self.fields]
        names = self.fields if len({*short}) < len(short) else short
        return ",".join(f"{name}={value_text(value)}" for name, value in zip(names, self.fields.values(), strict=True))

    def for_epochs(self, epochs: int) -> Point:
        """The point of another number of epochs, which its name tells."""
        words = (*self.words, "--epochs", str(epochs)) if self.words else ()
        return Point({**self.fields, "epochs": epochs}, replace(self.run, epochs=epochs), words)

    def runs(self, sweep: Path, seeds: int) -> list[RunConfig]:
        """Its run, or one for each of several seeds, each with its folder in that of the sweep."""
        if not seeds:
            return [replace(self.run, dir=kept_at(sweep), name=self.name)]
        first, place = self.run.seed, kept_at(sweep / self.name)
        return [replace(self.run, dir=place, name=f"seed-{s}", seed=s) for s in range(first, first + seeds)]


def value_text(value: Any) -> str:
    """The value of a field as a part of a folder's name: 0.001, 4x8, kernel+bias, true."""
    if isinstance(value, tuple):
        texts = [value_text(each) for each in value]
        return ("x" if all(isinstance(each, int | float) for each in value) else "+").join(texts) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return re.sub(r"[^\w.+-]+", "-", str(value)).strip("-")[-LONGEST:] or "none"


def check_points(points: Sequence[Point], of: Mapping[str, Sequence[Any]]) -> None:
    """Raise UserError where a sweep over these values of fields makes no sense, or has a point twice."""
    execution = {name: is_execution for name, (_, is_execution) in flat(points[0].run).items()}
    for name, values in of.items():
        if execution[name]:
            raise UserError(
                Field(name), f"has {len(values)} values, but it changes no result of a run", "give it one value"
            )
        if twice := [value for i, value in enumerate(values) if value in values[:i]]:
            raise UserError(Field(name), f"has the value {value_text(twice[0])} twice", "give it once")
    names = sorted(point.name.casefold() for point in points)  # some file systems take a and A for the same
    if alike := next((name for name, other in itertools.pairwise(names) if name == other), ""):
        raise UserError(f"two points of the sweep would both be called {alike}", remedy="give values that differ more")


def failed_points(sweep: Path) -> dict[str, str]:
    """{point: why} of the points in a folder that could not be trained; empty of a folder that is no sweep."""
    with contextlib.suppress(UserError, KeyError, TypeError):
        points = read_json(sweep / SWEEP)["points"] if (sweep / SWEEP).is_file() else []
        return {
            str(point["name"]): str(point["ended"])
            for point in points
            if str(point["ended"]).startswith(FAILED) and not is_run(sweep / point["name"])
        }
    return {}


def budgets(points: int, epochs: int) -> list[int]:
    """The epochs of each rung of successive halving."""
    count = 1
    while GROWTH**count <= min(points, epochs):
        count += 1
    if count == 1:
        raise UserError(
            Field("halving"),
            f"is True, but there are {points} points of {epochs} epochs",
            f"give {GROWTH} or more of both, or leave it out",
        )
    return [round(epochs / GROWTH**k) for k in reversed(range(count))]


def survivors(points: int) -> int:
    """How many of so many points go on to the next rung."""
    return max(1, points // GROWTH)


def choose_sweep(place: str, name: str, named: bool, points: Sequence[Point], seeds: int) -> Path:
    """The folder of a sweep: one that has the same sweep already, or points of it, or a new one."""
    check_name(name)
    check_dir(place)
    number = 1
    while True:
        folder = Path(here(join(place, name if number == 1 else f"{name}-{number}")))
        try:
            _check_fits(folder, points, seeds)
        except UserError:
            if named:
                raise
            number += 1
        else:
            return folder


def _check_fits(folder: Path, points: Sequence[Point], seeds: int) -> None:
    """Raise UserError unless a folder is free or has only points of this sweep."""
    shown = Run(folder)
    if is_run(folder) or members(folder):
        raise UserError(shown, "is a run and no sweep", WANTED)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not (folder / SWEEP).is_file():
        raise UserError(shown, "exists and is no sweep", WANTED)
    known = {point.name: point for point in points}
    for inside in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not (is_run(inside) or members(inside)):
            continue
        if inside.name not in known:
            raise UserError(shown, f"holds another sweep, with the point {inside.name}", WANTED)
        if is_run(inside) == bool(seeds):
            raise UserError(shown, f"holds a sweep {'without' if seeds else 'with'} `seeds`", WANTED)
        for run in known[inside.name].runs(folder, seeds):
            if (there := Run(copy_of(join(run.dir, run.name)))).exists():
                same_identity(there, run)
