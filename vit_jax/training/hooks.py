"""What is told of a run: to a loop over its steps as events, and to hooks, ours and those of other packages.

Hooks are in HOOKS of vit_jax/plugins.py; one of another package is named in the field `hooks`. One that fails is left
out from then on, in a sentence: the run goes on, and loses nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .. import runs
from ..config.run import RunConfig
from ..errors import Field, UserError
from ..figures.parts import Part
from ..files.terminal import print_note
from ..plugins import HOOKS, raised_in

if TYPE_CHECKING:
    from ..tasks.predictor import Predictor


class Summary(TypedDict, total=False):
    """The content of summary.json, and the run's folder.

    It also has an entry for each other split that was measured at the end. Where a run has a budget, `status` is
    "stopped: max_steps" or the like, else "finished".
    """

    status: str
    step: int
    epoch: float
    seconds: float
    best: dict[str, Any] | None  # of validation: step, the metric that chose it, loss and which weights
    train: dict[str, dict[str, float]]  # {which weights: metrics}
    validation: dict[str, dict[str, float]]
    test: dict[str, dict[str, float]]
    notes: list[str]
    sample: str
    tokens_per_second: float
    padding: float
    mfu: float
    folder: str


@dataclass(frozen=True)
class Event:
    """Something that has happened in a run.

    A step is told once its metrics are read, while the devices may do the next one; an evaluation after the step that
    it follows; the end last, with the summary of the run.
    """

    kind: Literal["step", "evaluation", "end"]
    step: int
    epoch: float  # with fractions
    metrics: Mapping[str, float] = field(default_factory=dict)  # of this step's batch, or of the split
    split: str = ""  # of an evaluation
    weights: str = ""  # of an evaluation: raw, or ema, their average
    summary: Summary | None = None
    _now: Callable[[], Predictor] | None = field(default=None, repr=False, compare=False)

    def network(self) -> Predictor:
        """A copy of the network with its newest weights, as `vit_jax.load` returns one."""
        if self._now is None:
            raise UserError("the run has ended", remedy="open it with vit_jax.load(event.summary['folder'])")
        return self._now()


class Hook:
    """What a feature does around a run; each method that it does not define does nothing.

    The order is `check`, `begin`, then `before` and `step` for steps that are due, `row` and `saved` where they fall,
    `drawn`, `end` and `close`. Of several hosts the owner of the run's folder alone has hooks, so none may be due
    there, or compute with the arrays of a state, which is that of training/state.py.

    Args:
        argument: what stands after the name in the field `hooks`, as NAME:ARGUMENT.
    """

    def __init__(self, argument: str = ""):
        self.argument = argument

    @staticmethod
    def asked_for(run: RunConfig) -> bool:
        """Whether a run has this hook without naming it; asked of ours alone."""
        return False

    def check(self, run: RunConfig) -> None:
        """Before any data is opened. Raises UserError where the run cannot have this hook."""

    def begin(self, folder: runs.Run, run: RunConfig, step: int) -> None:
        """Before this process does more steps than `step`. Raises UserError to end the run."""

    def due(self, step: int) -> bool:
        """Whether this step, counted from 1, is to be done alone, between `before` and `step`."""
        return False

    def before(self, state: Any, batch: Mapping[str, Any]) -> None:
        """Before a step that is due, with its batch on the host."""

    def step(self, state: Any, metrics: Mapping[str, Any]) -> None:
        """After a step that is due; its metrics, on the device, may not be there yet."""

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """When metrics.jsonl gets a row, of training (names begin with `train/`) or of an evaluation: {`train/loss`,
        `test_ema/accuracy`: ...}. What a run measures as `max_steps` stops it is in its summary alone.
        """

    def histograms(self, step: int, groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        """When histograms.jsonl gets a row: {`parameters` | `gradients`: {name: histogram}}."""

    def saved(self, state: Any) -> None:
        """When a checkpoint of a state is being written."""

    def drawn(self, plots: Path, parts: Sequence[Part]) -> None:
        """When figures of a network are in a folder, at the end of a run or after an evaluation: what they show."""

    def end(self, folder: runs.Run, again: bool) -> None:
        """When a run, or a group, has its summary (`folder.summary()`), also where `max_steps` stopped it.

        With `again` it is shown once more and nothing else is called: what an earlier end has not done is done now.
        """

    def close(self) -> None:
        """When the process has done its part of the run, however that ended."""


class Hooks:
    """The hooks of a run."""

    def __init__(self, run: RunConfig):
        self.of = {name: hook() for name in HOOKS.ours if (hook := HOOKS[name]).asked_for(run)}
        for text in run.hooks:
            name, _, argument = text.partition(":")
            if name in HOOKS.ours or name in self.of:
                what, remedy = ("is there twice", "once") if name in self.of else ("is a field of its own", f"`{name}`")
                raise UserError(Field("hooks"), f"{name!r} {what}", f"give {remedy}")
            if name not in HOOKS:
                known = [*HOOKS.others]
                remedy = f"give {' or '.join(known)}" if known else "install the package that has it"
                raise UserError(Field("hooks"), f"{name!r} is none", remedy)
            hook = HOOKS[name]
            with HOOKS.blaming(name):
                self.of[name] = hook(argument)

    def due(self, step: int) -> bool:
        """Whether some hook wants a step."""
        return any(self.each("due", step))

    def each(self, what: str, *arguments: Any) -> list[Any]:
        """Call a method of all hooks -> what it returns. A UserError of `check` and `begin` is raised."""
        results = []
        for name, hook in [*self.of.items()]:
            try:
                results.append(getattr(hook, what)(*arguments))
            except (Exception, SystemExit) as error:
                if name in HOOKS.ours or (what in ("check", "begin") and isinstance(error, UserError)):
                    raise
                where = f"the hook {name!r} of the package {HOOKS.plugins()[name].package}"
                why = f"has failed in {what} ({type(error).__name__}: {error}) at {raised_in(error)}"
                print_note(f"{where} {why}; the run goes on without it")
                del self.of[name]
                with contextlib.suppress(Exception):
                    hook.close()
        return results
