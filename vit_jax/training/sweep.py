"""A sweep: a run with each combination of values of some fields, every one a whole run, and the best by validation."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import runs
from ..config.run import RunConfig
from ..errors import CheckFailed, Field, UserError, about
from ..files.atomic import make_folder, write_json
from ..files.locks import lock_file
from ..files.reading import show_path
from ..files.terminal import printable
from ..reports.sweep import PICTURE, rank, show
from ..runs.check import check_run
from ..runs.ending import FINISHED, ending
from ..runs.mirror import here, join, kept_at, publish_file
from ..runs.points import Point, budgets, check_points, choose_sweep, survivors, value_text
from ..runs.several import SWEEP
from ..runs.values import with_fields
from ..weights.start.start import check as check_start
from .preflight import checked_arguments, preflight
from .setup import open_data, plan, with_data
from .train import train

if TYPE_CHECKING:
    from ..data.base import Data, Given

Unit = tuple[Point, RunConfig]  # a run of a point
Trainer = Callable[[Sequence[Unit]], dict[str, str]]  # trains them; returns {point: why it could not be trained}


@dataclass(frozen=True)
class Sweep:
    """What is to be trained, and where."""

    folder: Path
    fields: dict[str, list[Any]]  # {dotted name: its values}
    rungs: list[list[Point]]  # without halving one; with it all points at each number of epochs, the fewest first
    seeds: int

    def units(self, points: Sequence[Point]) -> list[Unit]:
        """The runs of these points."""
        return [(point, run) for point in points for run in point.runs(self.folder, self.seeds)]


def sweep(
    run: RunConfig | str,
    fields: Mapping[str, Iterable[Any]],
    *,
    seeds: int = 0,
    halving: bool = False,
    data: Any = None,
    class_names: Sequence[str] = (),
    preset: str = "run",
) -> dict[str, Any]:
    """Train a run with each combination of values of some fields, one after the other, and compare them.

    The same call goes on where it was interrupted: what is finished is not trained again.

    Args:
        run: a preset's name, or the config of all of them, whose `name` is that of the sweep's folder.
        fields: {dotted name: its values}, such as {"optim.lr": [1e-3, 3e-3], "model.patch": [4, (2, 4)]}.
        seeds: train each combination with so many seeds, and compare the means; 0: once.
        halving: successive halving: train all for few epochs, the best third anew for three times as many, and so on,
            until the last have all of `run.epochs`.
        data: as of `train`.
        class_names: as of `train`.
        preset: names the folder of a run without a name.

    Returns:
        The content of sweep.json: "metric", "fields", "points" (the best first, each with its "name", "fields",
        "ended" and "values", those of the metric by seeds) and "best" (a name or None); and "folder".

    Raises:
        UserError: for what the user can mend, before anything is trained, and where no combination could be trained.
        Interrupted: after a signal, once everything is saved.
    """
    preset = run if isinstance(run, str) and preset == "run" else preset
    run, given = checked_arguments(run, data, class_names)
    if not isinstance(fields, Mapping) or not fields:
        raise UserError(
            "fields", f"is {fields!r}"[:200], 'give the values of fields, such as {"optim.lr": [1e-3, 3e-3]}'
        )
    if seeds < 0:
        raise UserError(Field("seeds"), f"is {seeds}", "give 0 or more")
    values = {name: _values_of(name, each) for name, each in fields.items()}
    points = [
        Point(chosen := dict(zip(values, combination, strict=True)), with_fields(run, chosen))
        for combination in itertools.product(*values.values())
    ]
    found = prepare(points, values, run.name or f"{preset}-sweep", bool(run.name), seeds, halving, given)

    def train_here(units: Sequence[Unit]) -> dict[str, str]:
        failures = {}
        for i, (point, each) in enumerate(units, 1):
            print(f"\n{i} of {len(units)}  {printable(point.name)}", flush=True)
            try:
                train(each, data=data, class_names=class_names, preset=preset)
            except (UserError, CheckFailed) as error:
                print(printable(str(error)))
                failures[point.name] = str(error)
        return failures

    return train_sweep(found, train_here)


def _values_of(name: str, values: Any) -> list[Any]:
    """The values of a field as `with_fields` takes them, none of numpy. Raises UserError where there are none."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UserError(Field(name), f"is {values!r}", "give a list of its values")
    found = [tuple(v) if isinstance(v, list) else v.item() if isinstance(v, np.generic) else v for v in values]
    if not found:
        raise UserError(Field(name), "has no values", "give one or more")
    return found


def prepare(
    points: Sequence[Point],
    values: Mapping[str, Sequence[Any]],
    name: str,
    named: bool,
    seeds: int = 0,
    halving: bool = False,
    given: Given | None = None,
) -> Sweep:
    """A sweep all of whose points can be trained, as far as is known before. Writes nothing."""
    check_points(points, values)
    if seeds and "seed" in values:
        raise UserError(
            Field("seed"), f"has {len(values['seed'])} values and seeds is {seeds}", "leave one of them out"
        )
    if halving and "epochs" in values:
        raise UserError(Field("epochs"), "has several values, and halving chooses them", "leave one of them out")
    rungs = [list(points)]
    if halving:
        rungs = [[p.for_epochs(n) for p in points] for n in budgets(len(points), points[0].run.epochs)]
    for point in itertools.chain(*rungs):
        with about(f"point {point.name}"):
            preflight(check_run(point.run))
            if point.run.init or point.run.init_encoder:
                check_start(point.run)
    folder = choose_sweep(points[0].run.dir, name, named, [*itertools.chain(*rungs)], seeds)
    runs.check_place(folder)
    _check_data([*itertools.chain(*rungs)], given, halving)
    return Sweep(folder, {field: [*each] for field, each in values.items()}, rungs, seeds)


def _check_data(points: Sequence[Point], given: Given | None, halving: bool) -> None:
    """Raise UserError where a point does not fit its data, or that cannot be opened, or serves no halving."""
    opened: tuple[Any, Data] | None = None  # one at a time: it may be large
    for point in sorted(points, key=lambda point: repr(_read_as(point.run))):
        with about(f"point {point.name}"):
            if opened is None or opened[0] != _read_as(point.run):
                opened = _read_as(point.run), open_data(point.run, given=given, fetch=False)
            plan(check_run(with_data(point.run, opened[1])), opened[1])
            if halving and "validation" not in opened[1].splits:
                what = f"is {point.run.data.validation:g}, and halving chooses by validation"
                raise UserError(Field("data.validation"), what, "give a share of train")


def _read_as(run: RunConfig) -> tuple[Any, ...]:
    """What the sizes of the data depend on."""
    return run.data, run.model.pixels()


def describe(sweep: Sweep) -> str:
    """A sweep in a few lines: its fields and their values, the number of its points, its folder."""
    count = len(sweep.rungs[0])
    lines = [f"{name} {', '.join(map(value_text, values))}" for name, values in sweep.fields.items()]
    more = f", {sweep.seeds} seeds each" if sweep.seeds else ""
    lines.append(f"{count} points{more}, in {show_path(sweep.folder)}")
    if len(sweep.rungs) > 1:
        epochs, left = [rung[0].run.epochs for rung in sweep.rungs], [count]
        for _ in epochs[1:]:
            left.append(survivors(left[-1]))
        lines.append(", then ".join(f"{n} for {e} epochs" for n, e in zip(left, epochs, strict=True)))
    return "\n".join(f"{'' if i else 'sweep':8} {printable(line)}" for i, line in enumerate(lines))


def is_done(run: RunConfig) -> bool:
    """Whether a run of a sweep needs no more training: it is finished, or has diverged and would again."""
    folder = runs.Run(here(join(run.dir, run.name)))
    if not folder.exists():
        return False
    try:
        return ending(folder, folder.summary(), folder.metrics()).startswith((FINISHED, "diverged"))
    except UserError:
        return False


def train_sweep(sweep: Sweep, trainer: Trainer) -> dict[str, Any]:
    """Train what is not trained yet, then print the table, draw the picture and write sweep.json.

    Each rung of successive halving trains anew. Most schedules depend on the length of a run, so that the first third
    of a long run tells less than a whole run of a third; and to go on would save only a fifth of the steps.
    """
    print(describe(sweep), flush=True)
    with _own_sweep(sweep.folder):
        chosen, failures, outcomes = [*range(len(sweep.rungs[0]))], dict[str, str](), None
        for rung in sweep.rungs:
            points = [rung[i] for i in chosen]
            try:
                failures |= trainer(_left(sweep.units(points)))
            finally:  # also where it was interrupted
                for _, run in sweep.units(points):
                    here(join(run.dir, run.name))  # other processes may have trained it
                now = rank(sweep.folder, points, sweep.seeds, failures)
                outcomes = now.before(outcomes)
                record = {"fields": sweep.fields, **outcomes.record()}
                _write(sweep.folder, record)
            best = [each.point for each in now.each[: survivors(len(points))] if each.values]
            chosen = [i for i in chosen if rung[i] in best]
            if not chosen:
                break
        assert outcomes is not None
        if not any(each.line for each in outcomes.each):
            name, reason = next(iter(failures.items()))
            raise UserError("no point of the sweep could be trained", f"{name}: {reason}")
        show(outcomes)
        publish_file(sweep.folder, PICTURE)
    return {**record, "folder": kept_at(sweep.folder)}


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    """Write sweep.json."""
    write_json(folder / SWEEP, record)
    publish_file(folder, SWEEP)


def _left(units: Sequence[Unit]) -> list[Unit]:
    """The runs that are to be trained. Prints how many are not."""
    left = [unit for unit in units if not is_done(unit[1])]
    if len(left) < len(units):
        print(f"         {len(units) - len(left)} of {len(units)} runs are done already", flush=True)
    return left


@contextlib.contextmanager
def _own_sweep(folder: Path) -> Iterator[None]:
    """A context in which this process has locked the folder of a sweep, which has a record."""

    def refuse(process: str) -> None:
        raise UserError(show_path(folder), f"in use by process {process}", "wait for it, or choose another `name`")

    make_folder(folder)
    if not (folder / SWEEP).exists():
        _write(folder, {})
    with lock_file(folder / ".lock", refuse):
        yield
