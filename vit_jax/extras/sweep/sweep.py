"""A sweep: runs that differ in some fields, which Optuna chooses and may prune, and the best of them by validation.

runs/<sweep>/
    study.db    Optuna's study, which optuna.load_study and optuna-dashboard read
    trial-N/    a run, or with seeds the runs seed-S
"""

from __future__ import annotations

import contextlib
import math
import shlex
import statistics
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import runs
from ...config.hints import naming_gone
from ...config.run import RunConfig
from ...errors import CheckFailed, Field, Interrupted, UserError, about, as_user_error, require
from ...files.output import print_table
from ...files.places import is_kept, is_written, join, kept_at, local_copy
from ...files.reading import show_path
from ...files.terminal import print_wrapped, printable
from ...reports.compare import text_of
from ...reports.comparison import gather, is_number
from ...runs.check import check_run
from ...runs.values import flat, with_fields
from ...tasks.table import task_spec
from ...training.hooks import Event, Summary
from ...training.job import checked_arguments, open_data, plan, preflight, with_data
from ...training.train import steps
from ...weights.start import check as check_start
from ..report.tables import command_of
from .study import (
    ENDED,
    RETRIED,
    VALUES,
    Pruner,
    Range,
    Sampler,
    Search,
    folder_of,
    folder_of_sweep,
    newest,
    next_trial,
    open_study,
    read_range,
)

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

    from ...data.base import Data, GivenData

Steps = Callable[[RunConfig], Generator[Event, None, None]]  # as `steps`


@dataclass(frozen=True)
class Sweep:
    """What is to be trained, and where."""

    folder: Path
    search: Search
    run_of: Callable[[Mapping[str, Any]], RunConfig]  # the run with these values of its fields
    first: RunConfig
    metric: str  # of validation, by which runs are compared
    sign: int  # 1 if more of it is better, -1 if less is

    def runs(self, trial: FrozenTrial | Trial) -> list[RunConfig]:
        """The run of a trial, or one for each of several seeds, each with its folder in that of the sweep."""
        run, name = self.run_of(self.search.values(trial.params)), folder_of(trial)
        if not self.search.seeds:
            return [replace(run, dir=kept_at(self.folder), name=name)]
        place = kept_at(self.folder / name)
        return [
            replace(run, dir=place, name=f"seed-{s}", seed=s) for s in range(run.seed, run.seed + self.search.seeds)
        ]


@naming_gone
def sweep(
    run: RunConfig | str,
    values: Mapping[str, Any] | None = None,
    *,
    fields: Mapping[str, Any] | None = None,
    trials: int = 0,
    sampler: Sampler | BaseSampler = "tpe",
    pruner: Pruner | BasePruner = "none",
    seeds: int = 0,
    data: Any = None,
    class_names: Sequence[str] = (),
    preset: str = "run",
) -> dict[str, Any]:
    """Train a run with several values of some of its fields, and compare them by validation.

    The same call goes on where it was interrupted: what is finished is not trained again. Several processes that make
    it at the same time share the work. What is not described here is as of `train`.

    Args:
        run: a preset's name, or the config of all runs, whose `name` is that of the sweep's folder.
        values: {dotted name: its values}, such as {"optim.lr": [1e-3, 3e-3], "model.patch": [4, (2, 4)]}; with `trials`
            also the ends of a range, {"optim.lr": "1e-4..1e-2"}.
        fields: {dotted name: value} of what else changes in all runs; without `values` these.
        trials: how many combinations are trained, chosen by the sampler; 0: every one.
        sampler: how they are chosen: "tpe", "random", or a sampler of Optuna.
        pruner: ends runs that fall behind: "median", "halving", "hyperband", or a pruner of Optuna, which counts
            epochs; "none".
        seeds: train each combination with so many seeds, and compare the means; 0: once.

    Returns:
        {"folder", "metric", "points" (the best first, each with its "name", that of its folder, "fields", "ended" and
        "values", those of the metric by seeds), "best" (a name or None)}.

    Raises:
        UserError: for what the user can mend, before anything is trained, and where no combination could be trained.
        Interrupted: after a signal, once everything is saved.
    """
    values, fields = (fields, None) if values is None else (values, fields)
    preset = run if isinstance(run, str) and preset == "run" else preset
    run, given = checked_arguments(run, data, class_names)
    base = with_fields(run, fields or {})
    if not isinstance(values, Mapping) or not values:
        what = f"is {values!r}"[:200]
        raise UserError("values", what, 'give the values of fields, such as {"optim.lr": [1e-3, 3e-3]}')
    searched = {name: _values_of(name, each) for name, each in values.items()}
    search = Search(searched, trials, sampler, pruner, seeds)
    found = prepare(search, lambda values: with_fields(base, values), preset, given)
    return train_sweep(found, lambda each: steps(each, data=data, class_names=class_names, preset=preset))


def _values_of(name: str, values: Any) -> list[Any] | Range:
    """The values of a field as `with_fields` takes them, none of numpy. Raises UserError where there are none."""
    if isinstance(values, str) and (found := read_range(name, values)):
        return found
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UserError(Field(name), f"is {values!r}", "give a list of its values, or a range such as 1e-4..1e-2")
    every = [tuple(v) if isinstance(v, list) else v.item() if isinstance(v, np.generic) else v for v in values]
    if not every:
        raise UserError(Field(name), "has no values", "give one or more")
    return every


# ------------------------------------------------------------------------------------------------------- checks


def prepare(
    search: Search, run_of: Callable[[Mapping[str, Any]], RunConfig], preset: str, given: GivenData | None = None
) -> Sweep:
    """A sweep all of whose runs can be trained, as far as is known before. Writes nothing."""
    with require("optuna", "sweep"):
        import optuna  # noqa: F401
    search.check()
    checked = {title(values): run_of(values) for values in search.to_check()}
    first = next(iter(checked.values()))
    _check_fields(search, first)
    for each, run in checked.items():
        with about(each):
            preflight(check_run(run))
            if run.init or run.init_encoder:
                check_start(run)
    folder = folder_of_sweep(search, run_of, first, preset)
    runs.check_place(folder)
    metric, sign = _check_data(checked, given)
    return Sweep(folder, search, run_of, first, metric, sign)


def title(values: Mapping[str, Any]) -> str:
    """A combination of values, in words."""
    return ", ".join(f"{name} {text_of(value)}" for name, value in values.items())


def _check_fields(search: Search, run: RunConfig) -> None:
    """Raise UserError on a field that no sweep can have, or a value that it has twice."""
    known = flat(run)
    for name, values in search.fields.items():
        several = f"is {values}" if isinstance(values, Range) else f"has {len(values)} values"
        if known[name][1]:
            raise UserError(Field(name), f"{several}, but it changes no result of a run", "give it one value")
        if isinstance(values, Range):
            continue
        if twice := [value for i, value in enumerate(values) if value in values[:i]]:
            raise UserError(Field(name), f"has the value {text_of(twice[0])} twice", "give it once")


def _check_data(checked: Mapping[str, RunConfig], given: GivenData | None) -> tuple[str, int]:
    """The metric by which runs choose their best checkpoint, and 1 if more of it is better, -1 if less is.

    Where they differ, as a sampling of classes makes them, it is one that a setting asked for, before that of the task.
    Raises UserError where a run does not fit its data, or that cannot be opened or has no validation.
    """
    from ...tasks.computed import task_of

    opened: tuple[Any, Data] | None = None  # one at a time: it may be large
    metrics = dict[str, int]()
    for name, run in sorted(checked.items(), key=lambda each: repr(_read_as(each[1]))):
        with about(name):
            if opened is None or opened[0] != _read_as(run):
                opened = _read_as(run), open_data(run, given=given, fetch=False)
            data = opened[1]
            its = check_run(with_data(run, data))
            plan(its, data)
            if "validation" not in data.splits:
                what = f"is {run.data.validation:g}, and a sweep compares by validation"
                raise UserError(Field("data.validation"), what, "give a share of train")
            metrics.update([task_of(its, data.metadata()).selection_metric])
    usual = next(iter(task_spec(run.task).main_metrics))
    return next((each for each in metrics.items() if each[0] != usual), (usual, metrics.get(usual, 1)))


def _read_as(run: RunConfig) -> tuple[Any, ...]:
    """What the sizes of the data depend on."""
    return run.data, run.model.pixels()


# ------------------------------------------------------------------------------------------------------- training


def describe(sweep: Sweep) -> str:
    """A sweep in a few lines: its fields and their values, the number of its trials, its folder."""
    search = sweep.search
    texts = {name: each if isinstance(each, Range) else ", ".join(map(text_of, each))
             for name, each in search.fields.items()}  # fmt: skip
    count = sweep.search.trials or len(sweep.search.combinations())
    more = f", {search.seeds} seeds each" if search.seeds else ""
    lines = [*(f"{name} {text}" for name, text in texts.items()), f"{count} trials{more}, in {show_path(sweep.folder)}"]
    return "\n".join(f"{'' if i else 'sweep':8} {printable(line)}" for i, line in enumerate(lines))


def train_sweep(sweep: Sweep, steps_of: Steps) -> dict[str, Any]:
    """Train what is not trained yet, then print the table. Returns what `sweep` does."""
    print(describe(sweep), flush=True)
    search, first = sweep.search, sweep.first
    with open_study(sweep.folder, search, sweep.metric, sweep.sign) as study:
        study.pruner = search.pruner_for(first.epochs)
        while True:
            with next_trial(study, sweep.folder, search, first.seed) as trial:
                if trial is None:
                    break
                print(f"\n{folder_of(trial)}  {printable(title(trial.params))}", flush=True)
                _train_trial(study, trial, sweep, steps_of)
        points = _points(study, sweep)
    ended = [str(point["ended"]) for point in points]
    if all(each.startswith(RETRIED) for each in ended):
        reason = ended[0].removeprefix(RETRIED)
        raise UserError("no trial of the sweep could be trained", f"{points[0]['name']}: {reason}")
    show(sweep.folder, sweep.metric, points)
    best = points[0]["name"] if points[0]["values"] else None
    return {"folder": kept_at(sweep.folder), "metric": sweep.metric, "points": points, "best": best}


def _train_trial(study: Study, trial: Trial, sweep: Sweep, steps_of: Steps) -> None:
    """Train the runs of a trial, and tell the study what came of it."""
    from optuna.trial import TrialState

    each = sweep.runs(trial)
    _check_unused(each)
    try:
        summaries = [_followed(study, trial, sweep, run, steps_of) for run in each]
    except Interrupted as error:
        said = str(error)
        raise Interrupted(f"{said.partition(';')[0]}; go on with: the same sweep", said.partition(":")[0]) from None
    except Exception as error:
        known = error if isinstance(error, CheckFailed) else as_user_error(error)
        if known is None:
            raise
        print(printable(str(known)))
        ended = f"diverged: {known}" if isinstance(known, CheckFailed) else f"{RETRIED}{known}"
        trial.set_user_attr(ENDED, ended)
        study.tell(trial, state=TrialState.FAIL)
        return
    done = [summary for summary in summaries if summary is not None]
    if len(done) == len(each):
        values = [value for _, value in done]
        trial.set_user_attr(VALUES, values)
        trial.set_user_attr(ENDED, ", ".join(sorted({status for status, _ in done})))
        study.tell(trial, statistics.fmean(values))


def _check_unused(each: Sequence[RunConfig]) -> None:
    """Raise UserError where another process writes a run in a store, which has no locks."""
    for run in each:
        place = join(run.dir, run.name)
        if is_kept(place) and is_written(Path(local_copy(place))):
            raise UserError(place, "in use by another process", "wait for it, or choose another `name`")


def _followed(study: Study, trial: Trial, sweep: Sweep, run: RunConfig, steps_of: Steps) -> tuple[str, float] | None:
    """Train a run -> (how it ended, its value of the metric), or None: its trial is pruned."""
    from optuna.trial import TrialState

    folder, summary = runs.Run(local_copy(join(run.dir, run.name))), Summary()
    reported = set(study.get_trials()[trial.number].intermediate_values)

    def is_behind(rows: Iterable[Mapping[str, Any]]) -> bool:
        wanted = {"split": "validation", "weights": "ema" if run.ema else "raw"}
        for row in rows:
            epoch = round(row.get("epoch", 0))
            if wanted.items() <= row.items() and is_number(row.get(sweep.metric)) and epoch not in reported:
                reported.add(epoch)
                trial.report(row[sweep.metric], epoch)
                if trial.should_prune() and epoch < run.epochs:  # after the last, nothing is saved by it
                    return True
        return False

    with contextlib.closing(steps_of(run)) as events:
        # What a process that was killed had measured, but not reported, comes first.
        alone = not sweep.search.seeds
        behind = alone and folder.exists() and is_behind(folder.metrics())
        while not behind and (event := next(events, None)):
            summary = event.summary or summary
            found = {"split": event.split, "weights": event.weights, "epoch": event.epoch, **event.metrics}
            behind = alone and event.kind == "evaluation" and is_behind([found])
        if behind:  # before it saves: killed there, it is not trained on
            trial.set_user_attr(ENDED, "pruned")
            study.tell(trial, state=TrialState.PRUNED)
            print("pruned: others were better after as many epochs")
            return None
    return summary["status"], _value(sweep.metric, run, summary, folder.metrics())


def _value(metric: str, run: RunConfig, summary: Summary, rows: Sequence[Mapping[str, Any]]) -> float:
    """The metric of a run's best weights on validation; of the last ones, where its budget ended before an epoch."""
    found: Mapping[str, Any] = summary["best"] or summary["validation"]["ema" if run.ema else "raw"]
    if metric not in found:
        place = {"split": "validation", "step": found["step"], "weights": found["weights"]}
        found = next(row for row in rows if place.items() <= row.items())
    return float(found[metric])


def _points(study: Study, sweep: Sweep) -> list[dict[str, Any]]:
    """What came of each trial, the best first."""
    points = [
        {
            "name": name,
            "fields": sweep.search.values(trial.params),
            "ended": trial.user_attrs.get(ENDED) or trial.state.name.lower(),
            "values": trial.user_attrs.get(VALUES, []),
        }
        for name, trial in newest(study).items()
        if trial.params
    ]
    return sorted(points, key=lambda point: -sweep.sign * statistics.fmean(point["values"] or [-sweep.sign * math.inf]))


def show(folder: Path, metric: str, points: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of the trials of a sweep, and how to repeat the best one."""
    name = f"validation {metric.replace('_', ' ')}"
    means = [f"{statistics.fmean(point['values']):.4f}" if point["values"] else "-" for point in points]
    fields = [[field, *(text_of(point["fields"][field]) for point in points)] for field in points[0]["fields"]]
    results = [[name, *means], ["ended", *(point["ended"].partition(":")[0] for point in points)]]
    print()
    titles = ["trial", *(point["name"] for point in points)]
    print_table(titles, [fields, results])
    for point in points:
        if ":" in point["ended"] and not point["values"]:
            print_wrapped(printable(f"note: {point['name']}: {point['ended']}"))
    best = points[0]
    if not best["values"]:
        print("best       none: no trial has a result on validation")
        return
    spread = f" +- {statistics.stdev(best['values']):.4f}" if len(best["values"]) > 1 else ""
    print(printable(f"best       {best['name']}: {name} {means[0]}{spread}"))
    print("next:")
    shown = show_path(folder)
    out = " --out report.html" if is_kept(shown) else ""
    line = gather([str((folder / best["name"]).absolute())], damaged=True).lines[0]
    for command in (command_of(line), f"python -m vit_jax report {shlex.quote(shown)}{out}"):
        print(printable(f"  {command}"))
