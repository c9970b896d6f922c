"""A run in training: what the loop works on."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .. import runs
from ..config.run import RunConfig
from ..machine.hosts.group import Hosts
from ..machine.numerics import fixed_settings
from .events import Event
from .hooks import Hooks
from .saving import Saver
from .setup import Setup
from .stopping import Caught, Decision

if TYPE_CHECKING:
    from ..tasks.base import Task
    from ..tasks.predictor import Predictor
    from ..weights.checkpoint import Checkpoints
    from .engine.engine import Engine
    from .engine.histograms import Histograms
    from .engine.step import TrainState
    from .log import Log
    from .progress import Progress

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
    histograms: Histograms | None = None  # where the run asks for them
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
        return self.setup.engine_at(self.step)

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
