"""The study of a sweep: Optuna chooses its trials and keeps them; locks tell which of them are being trained."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ... import runs
from ...config.run import RunConfig
from ...errors import Field, UserError
from ...files.atomic import is_locked, lock_file
from ...files.places import check_dir, join, local_copy, publish_several
from ...files.reading import show_path
from ...runs.check import check_name
from ...runs.choice import same_identity
from ...runs.several import OLD_SWEEP, STUDY, is_run, members
from ...runs.values import flat

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

Sampler = Literal["tpe", "random"]
Pruner = Literal["none", "median", "halving", "hyperband"]
MOST = 1000  # combinations: whoever asks for more has hardly counted them
WANTED = "choose another `name`"
SECONDS = 60.0  # for which a process waits while others write the study
TICK = 0.05  # seconds
FOLDER, ENDED, VALUES = "folder", "ended", "values"
RETRIED = "failed: "  # begins how a trial ended that the same command tries again


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`: whole ones if both are, others on a logarithmic scale if they are above 0."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"

    @property
    def scale(self) -> str:
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return "whole numbers" if whole else "numbers by factors" if self.low > 0 else "numbers"


def read_range(name: str, text: str) -> Range | None:
    """The range that a text such as 1e-4..1e-2 states; None if it states none."""
    ends = text.split("..")
    try:
        low, high = (int(end) if re.fullmatch(r"-?\d+", end) else float(end) for end in ends)
    except ValueError:
        return None
    if not -math.inf < low < high < math.inf:
        raise UserError(Field(name), f"is {text}", "give the lower end first, such as 1e-4..1e-2")
    return Range(low, high)


@dataclass(frozen=True)
class Search:
    """The values of the fields of a sweep, and how it goes through them."""

    fields: Mapping[str, Sequence[Any] | Range]
    trials: int = 0  # 0: every combination
    sampler: Sampler | BaseSampler = "tpe"
    pruner: Pruner | BasePruner = "none"
    seeds: int = 0  # 0: one run a trial

    def combinations(self) -> list[dict[str, Any]]:
        """Every combination of the values; none where Optuna chooses them."""
        lists = [each for each in self.fields.values() if not isinstance(each, Range)]
        return [] if self.trials else [dict(zip(self.fields, each, strict=True)) for each in itertools.product(*lists)]

    def to_check(self) -> list[dict[str, Any]]:
        """Every combination, or where Optuna chooses them each value beside the first ones of the other fields."""
        ends = {name: [each.low, each.high] if isinstance(each, Range) else each for name, each in self.fields.items()}
        first = {name: each[0] for name, each in ends.items()}
        alone = [first, *({**first, name: value} for name, each in ends.items() for value in each[1:])]
        return alone if self.trials else self.combinations()

    def check(self) -> None:
        """Raise UserError where it makes no sense."""
        for name, count in (("seeds", self.seeds), ("trials", self.trials)):
            if count < 0:
                raise UserError(Field(name), f"is {count}", "give 0 or more")
        for name, given, known in (("sampler", self.sampler, Sampler), ("pruner", self.pruner, Pruner)):
            if isinstance(given, str) and given not in get_args(known):
                raise UserError(Field(name), f"is {given[:60]!r}", f"give one of {', '.join(get_args(known))}")
        if self.seeds and self.pruner != "none":
            what = f"is {self.seeds} and pruner is {self.pruner}, which follows a single run"
            raise UserError(Field("seeds"), what, "leave one of them out")
        if self.seeds and "seed" in self.fields:
            raise UserError(Field("seed"), f"has several values and seeds is {self.seeds}", "leave one of them out")
        ranges = [name for name, each in self.fields.items() if isinstance(each, Range)]
        if ranges and not self.trials:
            raise UserError(Field(ranges[0]), f"is {self.fields[ranges[0]]}", "say with `trials N` how many are tried")
        count = math.prod(len(each) for each in self.fields.values() if not isinstance(each, Range))
        if count > MOST and not self.trials:
            remedy = "give fewer values, or `trials N` to try some"
            raise UserError(f"the sweep has {count:,} combinations", remedy=remedy)

    def spaces(self) -> dict[str, Range | list[Any]]:
        """What Optuna chooses of. Numbers of which every combination is trained are a range, which may become wider."""
        found: dict[str, Range | list[Any]] = {}
        for name, values in self.fields.items():
            if isinstance(values, Range):
                found[name] = values
            elif not self.trials and all(type(value) in (int, float) for value in values):
                found[name] = Range(min(values), max(values))
            else:
                found[name] = [*map(choice, values)]
        return found

    def suggest(self, trial: Trial) -> None:
        """Have a trial choose the values that it does not have yet."""
        for name, space in self.spaces().items():
            if not isinstance(space, Range):
                trial.suggest_categorical(name, space)
            elif space.scale == "whole numbers":
                trial.suggest_int(name, int(space.low), int(space.high))
            else:
                trial.suggest_float(name, space.low, space.high, log=space.low > 0)

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the fields, as a run has them, of the parameters of a trial."""
        lists = {name: () if isinstance(each, Range) else each for name, each in self.fields.items()}
        known = {name: {choice(value): value for value in each} for name, each in lists.items()}
        return {name: known.get(name, {}).get(value, value) for name, value in params.items()}

    def sampler_for(self, seed: int) -> BaseSampler:
        """The sampler of one trial. One with a name is made anew, so that what it draws depends on the seed and the
        trials before, and not on where the sweep was interrupted.
        """
        from optuna import samplers

        named = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler}
        return named[self.sampler](seed=seed) if isinstance(self.sampler, str) else self.sampler

    def pruner_for(self, epochs: int) -> BasePruner:
        """The pruner of runs with so many epochs, which it counts."""
        from optuna import pruners

        named: dict[str, Callable[[], BasePruner]] = {
            "none": pruners.NopPruner,
            "median": pruners.MedianPruner,
            "halving": lambda: pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
            "hyperband": lambda: pruners.HyperbandPruner(min_resource=1, max_resource=epochs),
        }
        return named[self.pruner]() if isinstance(self.pruner, str) else self.pruner


def choice(value: Any) -> Any:
    """A value of a field as Optuna keeps it: 4,8 for a tuple."""
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else value


def folder_of_sweep(
    search: Search, run_of: Callable[[Mapping[str, Any]], RunConfig], run: RunConfig, preset: str
) -> Path:
    """The folder of a sweep, which is free or has this sweep already; of its runs one is looked at."""
    name = check_name(run.name or f"{preset}-sweep")
    check_dir(run.dir)
    folder = Path(local_copy(join(run.dir, name)))
    shown = show_path(folder)
    if is_run(folder) or members(folder):
        raise UserError(shown, "is a run and no sweep", WANTED)
    if (folder / OLD_SWEEP).is_file():
        raise UserError(shown, "is a sweep of an earlier version, whose runs can be read but not added to", WANTED)
    inside = sorted(folder.iterdir()) if folder.is_dir() else [folder] if os.path.lexists(folder) else []
    if not (folder / STUDY).is_file() and any(not path.name.startswith(".") for path in inside):
        raise UserError(shown, "exists and is no sweep", WANTED)
    found = (runs.Run(path) for each in inside for path in (each, *members(each)) if is_run(path))
    if there := next(found, None):
        known = {name: value for name, (value, _) in flat(there.config()).items()}
        if other := search.fields.keys() - known.keys():
            raise UserError(shown, f"holds another sweep, whose runs have no {sorted(other)[0]}", WANTED)
        its = run_of({name: known[name] for name in search.fields})
        same_identity(there, replace(its, seed=known["seed"]) if there.path.parent != folder else its)
    return folder


@contextlib.contextmanager
def open_study(folder: Path, search: Search, metric: str, sign: int) -> Iterator[Study]:
    """The study in a folder, made where it is missing; `sign` is 1 if more of the metric is better, else -1."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    told = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with locked(folder):
            study = _opened(folder, sign)
            _check_study(study, folder, search, metric)
            for name, trial in newest(study).items():
                if trial.user_attrs.get(ENDED, "").startswith(RETRIED):
                    study.enqueue_trial(trial.params, user_attrs={FOLDER: name})
        yield study
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        what = f"is no study that can be read and written ({str(error).splitlines()[0][:100]})"
        raise UserError(show_path(folder / STUDY), what, f"restore it, or {WANTED}") from error
    finally:
        optuna.logging.set_verbosity(told)


def _opened(folder: Path, sign: int) -> Study:
    import optuna
    from sqlalchemy.engine import URL

    url = URL.create("sqlite", database=str((folder / STUDY).absolute())).render_as_string()
    try:
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": SECONDS}})
    except RuntimeError as error:  # it is of another version of Optuna
        raise optuna.exceptions.StorageInternalError(str(error)) from error
    if optuna.get_all_study_names(storage):
        return optuna.load_study(study_name=None, storage=storage)
    return optuna.create_study(
        storage=storage, study_name=folder.name, direction="maximize" if sign > 0 else "minimize"
    )


def _check_study(study: Study, folder: Path, search: Search, metric: str) -> None:
    """Raise UserError where a study is of another sweep; a new one notes of which it is."""
    spaces = {name: each.scale if isinstance(each, Range) else each for name, each in search.spaces().items()}
    own: dict[str, Any] = {"metric": metric, "seeds": search.seeds, "fields": spaces}
    for name, value in own.items():
        if (there := study.user_attrs.get(name, value)) != value:
            raise UserError(show_path(folder), f"holds a sweep with {name} {there}, and this has {value}", WANTED)
        study.set_user_attr(name, value)


def _wait(process: str) -> None:
    time.sleep(TICK)


def locked(folder: Path) -> contextlib.AbstractContextManager[None]:
    """A context in which this process alone takes a trial of a sweep: it waits for others."""
    return lock_file(folder / ".lock", _wait)


def folder_of(trial: FrozenTrial | Trial) -> str:
    """The name of the folder of a trial, which one that tries again has from that which failed."""
    return str(trial.user_attrs.get(FOLDER, f"trial-{trial.number}"))


def newest(study: Study) -> dict[str, FrozenTrial]:
    """{folder: the last trial that has it}."""
    return {folder_of(trial): trial for trial in study.get_trials()}


@contextlib.contextmanager
def next_trial(study: Study, folder: Path, search: Search, seed: int) -> Iterator[Trial | None]:
    """A context in which this process has a trial: one whose process was killed, one that waits, or a new one; None if
    all are done, or other processes have them.
    """
    with contextlib.ExitStack() as stack:
        with locked(folder):
            trial = _killed(study, folder, search, seed) or _new(study, search, seed)
            if trial is not None:
                search.suggest(trial)
                file = _lock_of(folder, trial.number)
                stack.enter_context(lock_file(file, _wait))
                stack.callback(file.unlink, missing_ok=True)
        publish_several(folder, STUDY)
        yield trial
    publish_several(folder, STUDY)


def _lock_of(folder: Path, number: int) -> Path:
    return folder / f".trial-{number}.lock"


def _killed(study: Study, folder: Path, search: Search, seed: int) -> Trial | None:
    """A trial that no process has any more; what it has reported and drawn stays with it."""
    from optuna.trial import Trial, TrialState

    running = (TrialState.RUNNING,)
    free = {each.number for each in study.get_trials(states=running) if not is_locked(_lock_of(folder, each.number))}
    for each in study.get_trials(states=running):  # once more: one of them may just have ended
        if each.number in free:
            study.sampler = search.sampler_for(seed + each.number)
            return Trial(study, each._trial_id)  # Optuna itself would fail it, and count what it reported twice
    return None


def _new(study: Study, search: Search, seed: int) -> Trial | None:
    """The next trial; None if there are enough."""
    from optuna.trial import TrialState

    trials = study.get_trials()
    if all(trial.state != TrialState.WAITING for trial in trials):
        every = [{name: choice(value) for name, value in each.items()} for each in search.combinations()]
        known = [trial.params for trial in trials]
        if left := [each for each in every if each not in known]:
            study.enqueue_trial(left[0])
        elif len(newest(study)) >= search.trials:
            return None
    study.sampler = search.sampler_for(seed + len(trials))
    return study.ask()
