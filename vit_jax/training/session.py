"""Everything before the first step: the run set up, its starting state, and its folder."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import runs
from ..config.lora import factor_shapes
from ..config.run import RunConfig
from ..errors import printable
from ..files.digests import text_digest
from ..machine.hosts.group import ALONE, Hosts
from ..runs.values import to_dict
from .announce import announce
from .resume import is_rewritten, starting_state
from .saving import Saver
from .setup import Setup, own_data, set_up
from .signals import Caught
from .stopping import Decision

if TYPE_CHECKING:
    from ..data.base import Data
    from ..tasks.base import Task
    from ..weights.checkpoint import Checkpoints, State
    from .engine.histograms import Histograms
    from .engine.step import Engine
    from .log import Log
    from .progress import Progress

NOTED = ("best", "stale", "due", "totals", "seconds", "cpu_seconds")  # fields of a session that a checkpoint keeps


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
    state: State  # on the devices
    step: int  # steps done
    saved: int  # step of the newest checkpoint, or -1
    record: dict[str, Any]  # the content of config.json
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

    @property
    def run(self) -> RunConfig:
        return self.setup.run

    @property
    def hosts(self) -> Hosts:
        return self.decision.hosts

    @property
    def engine(self) -> Engine:
        return self.setup.engine

    @property
    def task(self) -> Task:
        return self.setup.task

    @property
    def epoch(self) -> float:
        """Epochs done, with fractions."""
        return self.step / self.setup.order.steps_per_epoch


def open_session(
    run: RunConfig,
    preset: str,
    folder: runs.Run,
    caught: Caught,
    dataset: Data | None = None,
    hosts: Hosts = ALONE,
) -> Session:
    """Set a run up, restore or initialise its state, create its folder if it is new, and print what will be trained.

    `preset` is the preset's name for config.json; `dataset` is the data where it is open already. Raises UserError.
    """
    import jax

    from ..weights.checkpoint import Checkpoints
    from .engine.histograms import Histograms
    from .progress import Progress

    setup = set_up(run, dataset or own_data(run, folder), hosts)
    hosts.compare({"data": text_digest(setup.identity)} | setup.environment["versions"])
    run = setup.run
    announce(setup)
    checkpoints = Checkpoints(folder, factor_shapes(run))
    state, notes, init = starting_state(setup, folder, checkpoints, hosts)
    step = int(jax.device_get(setup.engine.gather(state).step))
    hosts.moved(step)
    _create_or_mend(folder, setup, preset, init)
    log = _open_log(folder, setup, step, notes)
    progress = Progress(
        setup.epochs, setup.order.steps_per_epoch, step + 1, setup.order.batch, setup.stop, unit=setup.task.unit
    )
    deadline = time.monotonic() + run.max_minutes * 60 if run.max_minutes else math.inf
    print(
        f"run      {folder}: {setup.epochs} epochs of {setup.order.steps_per_epoch} steps"
        + (f"; going on after step {step}" if step else ""),
        flush=True,
    )
    restored = {name: notes[name] for name in NOTED if name in notes}
    return Session(
        setup,
        folder,
        checkpoints,
        Saver(checkpoints, run.async_save, progress.say),
        log,
        progress,
        caught,
        Decision(hosts, caught, deadline, run.save_minutes * 60),
        state,
        step,
        saved=step if notes else -1,
        record=folder.record(),
        histograms=Histograms(setup.engine) if run.histograms else None,
        **restored,
    )


def _create_or_mend(folder: runs.Run, setup: Setup, preset: str, init: dict[str, Any]) -> None:
    """Create a new run's folder, with config.json; restore that of one that is there, where it was damaged."""
    if not folder.exists():
        folder.create(
            runs.record_of(
                setup.stated,
                preset,
                **setup.dataset.metadata(),
                **setup.identity,
                **({"init": init} if init else {}),
                environment=setup.environment,
            )
        )
    elif remark := folder.remark():
        print(f"note     {printable(remark)}; the file is restored")
        folder.write_record(folder.record())


def _open_log(folder: runs.Run, setup: Setup, step: int, notes: dict[str, Any]) -> Log:
    """The log of a run that goes on after `step`, without the rows that will be written again."""
    from .log import Log

    if remark := folder.log_remark(step):
        print(f"note     {printable(remark)}")
    folder.drop_metrics(lambda row: is_rewritten(row, step, notes))
    tensorboard = folder.path / "tensorboard" if setup.run.tensorboard else None
    return Log(folder.metrics_file, step, tensorboard, setup.run.wandb, folder.path.name, to_dict(setup.stated))
