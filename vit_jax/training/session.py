"""A run in training: what the loop works on, what it tells of its steps, and what it ends with."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from .. import runs
from ..config.run import RunConfig
from ..errors import UserError
from ..machine.hosts import Hosts
from ..machine.numerics import fixed_settings
from .hooks import Hooks
from .setup import Setup, engine_at
from .stopping import Caught, Decision, Saver

if TYPE_CHECKING:
    from ..tasks.base import Task
    from ..tasks.predictor import Predictor
    from ..weights.checkpoint import Checkpoints
    from .engine.engine import Engine
    from .engine.step import TrainState
    from .log import Log
    from .progress import Progress

T = TypeVar("T")


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


def exhausted(steps: Generator[Any, None, T]) -> T:
    """What a generator returns after its last event."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


NOTED = ("best", "stale", "due", "totals", "seconds", "cpu_seconds")


@dataclass
class Session:
    """A run in training: its setup, its files, and the state that the loop updates."""

    setup: Setup
    folder: runs.Run
    checkpoints: Checkpoints
    saver: Saver
    log: Log
    progress: Progress
    caught: Caught
    decision: Decision
    state: TrainState  # on the devices
    step: int  # steps done
    saved: int  # step of the newest checkpoint, or -1
    record: dict[str, Any]
    # {"step", the selection metric, "loss", "weights": "raw" or "ema"} of the best validation so far.
    best: dict[str, Any] | None = None
    stale: int = 0  # epochs since the best validation
    due: bool = False  # the evaluation after this step has not been done yet
    # {"steps": number of steps, metric: its sum over them} since the last row of metrics.jsonl.
    totals: dict[str, float] = field(default_factory=lambda: {"steps": 0})
    seconds: float = 0.0  # spent on the run up to the newest checkpoint, by all processes
    clock: float = field(default_factory=time.monotonic)  # when `seconds` was last updated
    # Of the training steps alone, by all processes: without compilation (first steps), evaluations and saving.
    cpu_seconds: float = 0.0
    events: list[Event] = field(default_factory=list)  # not told yet

    @property
    def run(self) -> RunConfig:
        return self.setup.run

    @property
    def hosts(self) -> Hosts:
        return self.decision.hosts

    @property
    def engine(self) -> Engine:
        """That of the next step."""
        return engine_at(self.setup.stages, self.step)

    @property
    def hooks(self) -> Hooks:
        return self.setup.hooks

    @property
    def task(self) -> Task:
        return self.setup.task

    @property
    def epoch(self) -> float:
        """Epochs done, with fractions."""
        return self.step / self.setup.order.steps_per_epoch

    def record_event(
        self, kind: Literal["step", "evaluation"], step: int, metrics: Mapping[str, float], **of: str
    ) -> None:
        """Note a step or an evaluation, to be told."""
        epoch, now = step / self.setup.order.steps_per_epoch, functools.partial(network, self)
        self.events.append(Event(kind, step, epoch, metrics, **of, _now=now))  # type: ignore[arg-type]

    def new_events(self) -> Iterator[Event]:
        """What has happened since the last call."""
        while self.events:
            yield self.events.pop(0)


def network(s: Session) -> Predictor:
    """A run's network with its newest weights, copied: the next step takes their memory."""
    import jax

    from ..weights.load import predictor_of

    with fixed_settings(s.run.compute_dtype):
        tree = jax.tree.map(jax.numpy.copy, s.engine.gather(s.state).parameters)
        return predictor_of(s.run, s.engine.devices.to_host(tree), s.setup.dataset.metadata(), s.step, s.folder.path)
