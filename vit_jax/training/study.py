"""The study of a sweep: Optuna chooses its trials and keeps them; locks tell which of them are being trained."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import Field, UserError
from ..files.locks import is_locked, lock_file
from ..files.reading import show_path
from ..runs.mirror import publish_file
from ..runs.several import STUDY

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

Sampler = Literal["tpe", "random"]
Pruner = Literal["none", "median", "halving", "hyperband"]
WANTED = "choose another `name`"
SECONDS = 60.0  # for which a process waits while others write the study
TICK = 0.05  # seconds between two tries to lock
FOLDER, ENDED, VALUES = "folder", "ended", "values"  # what is noted of a trial
RETRIED = "failed: "  # begins how a trial ended that the same command tries again


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`: whole ones if both are, others on a logarithmic scale if they are above 0."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


def read_range(name: str, text: str) -> Range | None:
    """The range that a text such as 1e-4..1e-2 states; None if it states none."""
    found = re.fullmatch(r"([^.]\S*?)\.\.(\S+)", text)
    try:
        low, high = (int(each) if re.fullmatch(r"-?\d+", each) else float(each) for each in found.groups())  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        return None
    if not -math.inf < low < high < math.inf:
        raise UserError(Field(name), f"is {text}", "give the lower end first, such as 1e-4..1e-2")
    return Range(low, high)


@dataclass(frozen=True)
class Space:
    """The values of the fields of a sweep: each in a list, or in a range of which Optuna chooses."""

    fields: Mapping[str, Sequence[Any] | Range]
    trials: int  # 0: every combination

    def combinations(self) -> list[dict[str, Any]]:
        """Every combination of the values; none where Optuna chooses them."""
        if self.trials:
            return []
        lists = [each for each in self.fields.values() if not isinstance(each, Range)]
        return [dict(zip(self.fields, values, strict=True)) for values in itertools.product(*lists)]

    def to_check(self) -> list[dict[str, Any]]:
        """Every combination, or where Optuna chooses them each value beside the first ones of the other fields."""
        ends = {name: [each.low, each.high] if isinstance(each, Range) else each for name, each in self.fields.items()}
        first = {name: each[0] for name, each in ends.items()}
        alone = [first, *({**first, name: value} for name, each in ends.items() for value in each[1:])]
        return alone if self.trials else self.combinations()

    def distributions(self) -> dict[str, BaseDistribution]:
        """What Optuna is told of each field. Numbers of which every combination is trained are those of a range, so
        that more may be added.
        """
        return {name: self._distribution(each) for name, each in self.fields.items()}

    def _distribution(self, values: Sequence[Any] | Range) -> BaseDistribution:
        from optuna import distributions

        if not isinstance(values, Range):
            if self.trials or any(type(value) not in (int, float) for value in values):
                return distributions.CategoricalDistribution([*map(choice, values)])
            values = Range(min(values), max(values))
        if isinstance(values.low, int) and isinstance(values.high, int):
            return distributions.IntDistribution(values.low, values.high)
        return distributions.FloatDistribution(values.low, values.high, log=values.low > 0)

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the fields, as a run has them, of the parameters of a trial."""
        lists = {name: () if isinstance(each, Range) else each for name, each in self.fields.items()}
        known = {name: {choice(value): value for value in each} for name, each in lists.items()}
        return {name: known.get(name, {}).get(value, value) for name, value in params.items()}


def choice(value: Any) -> Any:
    """A value of a field as Optuna keeps it: 4,8 for a tuple."""
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else value


def sampler_of(given: Sampler | BaseSampler, seed: int) -> BaseSampler:
    """The sampler with a name, or one that was made in Python."""
    from optuna import samplers

    named = {
        "tpe": lambda: samplers.TPESampler(seed=seed),
        "random": lambda: samplers.RandomSampler(seed=seed),
    }
    return _by_name("sampler", given, named)


def pruner_of(given: Pruner | BasePruner, epochs: int) -> BasePruner:
    """The pruner with a name, or one that was made in Python. What they count is epochs."""
    from optuna import pruners

    named = {
        "none": pruners.NopPruner,
        "median": pruners.MedianPruner,
        "halving": lambda: pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        "hyperband": lambda: pruners.HyperbandPruner(min_resource=1, max_resource=epochs),
    }
    return _by_name("pruner", given, named)


def _by_name(argument: str, given: Any, named: Mapping[str, Callable[[], Any]]) -> Any:
    if not isinstance(given, str):
        return given
    if given not in named:
        raise UserError(Field(argument), f"is {given[:60]!r}", f"give {', '.join(named)}, or one of Optuna's own")
    return named[given]()


@contextlib.contextmanager
def open_study(folder: Path, space: Space, metric: str, sign: int, seeds: int) -> Iterator[Study]:
    """The study in a folder, made where it is missing; `sign` is 1 if more of the metric is better, else -1."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    told = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with locked(folder):
            study = _opened(folder, metric, sign)
            _check_study(study, show_path(folder), space, metric, seeds)
            _retry(study)
        yield study
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        what = f"is no study that can be read and written ({str(error).splitlines()[0][:100]})"
        raise UserError(show_path(folder / STUDY), what, "restore it, or choose another `name`") from error
    finally:
        optuna.logging.set_verbosity(told)


def _opened(folder: Path, metric: str, sign: int) -> Study:
    """The study in a folder, old or new."""
    import optuna
    from sqlalchemy.engine import URL

    url = URL.create("sqlite", database=str((folder / STUDY).absolute())).render_as_string()
    try:
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": SECONDS}})
    except RuntimeError as error:  # it is of another version of Optuna
        raise optuna.exceptions.StorageInternalError(str(error)) from error
    if optuna.get_all_study_names(storage):
        return optuna.load_study(study_name=None, storage=storage)
    direction = "maximize" if sign > 0 else "minimize"
    return optuna.create_study(storage=storage, study_name=folder.name, direction=direction)


def _check_study(study: Study, shown: str, space: Space, metric: str, seeds: int) -> None:
    """Raise UserError where a study is of another sweep."""
    trials = [trial for trial in study.get_trials() if trial.params]
    own, there = {"metric": metric, "seeds": seeds}, study.user_attrs
    for name, value in own.items():
        if trials and there.get(name, value) != value:
            raise UserError(shown, f"holds a sweep with {name} {there[name]}, and this has {value}", WANTED)
        study.set_user_attr(name, value)
    for trial in trials:
        if trial.params.keys() != space.fields.keys():
            raise UserError(shown, f"holds a sweep over {', '.join(trial.params)}", WANTED)
        for name, new in space.distributions().items():
            old = trial.distributions[name]
            if type(old) is not type(new) or (old != new if hasattr(old, "choices") else old.log != new.log):
                values = ", ".join(map(str, getattr(old, "choices", (f"{old.low}..{old.high}",))))
                raise UserError(shown, f"holds a sweep over {name} {values}", f"give these, or {WANTED}")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A context in which this process alone takes a trial of a sweep: it waits for others."""
    with lock_file(folder / ".lock", lambda process: time.sleep(TICK)):
        yield


def folder_of(trial: FrozenTrial | Trial) -> str:
    """The name of the folder of a trial, which one that tries again has from that which failed."""
    return str(trial.user_attrs.get(FOLDER, f"trial-{trial.number}"))


def newest(study: Study) -> dict[str, FrozenTrial]:
    """{folder: the last trial that has it}."""
    return {folder_of(trial): trial for trial in study.get_trials()}


def _retry(study: Study) -> None:
    """Have the trials that failed, but not by diverging, tried again."""
    for name, trial in newest(study).items():
        if trial.user_attrs.get(ENDED, "").startswith(RETRIED):
            study.enqueue_trial(trial.params, user_attrs={FOLDER: name})


@contextlib.contextmanager
def next_trial(study: Study, folder: Path, space: Space, sampler: Any, seed: int) -> Iterator[Trial | None]:
    """A context in which this process has a trial: one whose process was killed, one that waits, or a new one; None if
    all are done, or other processes have them.
    """
    with contextlib.ExitStack() as stack:
        with locked(folder):
            trial = _killed(study, folder, sampler, seed) or _new(study, space, sampler, seed)
            if trial is not None:
                for name, distribution in space.distributions().items():
                    _suggest(trial, name, distribution)
                file = _lock_of(folder, trial.number)
                stack.enter_context(lock_file(file, lambda process: time.sleep(TICK)))
                stack.callback(file.unlink, missing_ok=True)
        publish_file(folder, STUDY)
        yield trial
    publish_file(folder, STUDY)


def _lock_of(folder: Path, number: int) -> Path:
    return folder / f".trial-{number}.lock"


def _killed(study: Study, folder: Path, sampler: Any, seed: int) -> Trial | None:
    """A trial that no process has any more, as Optuna's own Trial: what it has reported and drawn stays with it."""
    from optuna.trial import Trial, TrialState

    running = (TrialState.RUNNING,)
    free = {each.number for each in study.get_trials(states=running) if not is_locked(_lock_of(folder, each.number))}
    for each in study.get_trials(states=running):  # once more: one of them may just have ended
        if each.number in free:
            study.sampler = sampler_of(sampler, seed + each.number)
            return Trial(study, each._trial_id)
    return None


def _new(study: Study, space: Space, sampler: Any, seed: int) -> Trial | None:
    """The next trial. A sampler with a name is made anew for each, so that what it draws depends on its number alone,
    and not on where the sweep was interrupted.
    """
    from optuna.trial import TrialState

    trials = study.get_trials()
    if all(trial.state != TrialState.WAITING for trial in trials):
        known = [trial.params for trial in trials]
        kept = [{name: choice(value) for name, value in each.items()} for each in space.combinations()]
        left = [each for each in kept if each not in known]
        if not left and len(newest(study)) >= space.trials:
            return None
        if left:
            study.enqueue_trial(left[0])
    study.sampler = sampler_of(sampler, seed + len(trials))
    return study.ask()


def _suggest(trial: Trial, name: str, distribution: Any) -> None:
    """Have a trial choose a value, unless it has one."""
    from optuna import distributions

    if isinstance(distribution, distributions.CategoricalDistribution):
        trial.suggest_categorical(name, distribution.choices)
    elif isinstance(distribution, distributions.IntDistribution):
        trial.suggest_int(name, distribution.low, distribution.high)
    else:
        trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
