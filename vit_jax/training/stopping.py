"""What a signal or a clock decides: to end, or to save. Several hosts decide it together, each at the same step.

Checkpoints are written while training waits, or in one thread beside it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import INTERRUPTED, Interrupted
from ..files.places import publish
from ..files.terminal import printable
from ..machine.hosts import Hosts

if TYPE_CHECKING:
    from ..weights.checkpoint import Checkpoints, SavedState
    from .job import Job
    from .log import Recording
    from .state import State

VOTES = (*INTERRUPTED, "time", "save")  # a signal; the time of the budget is over; the last save is long ago


@dataclass
class Caught:
    """The signal that was caught; in training steps it waits until a checkpoint is saved, else it ends the process."""

    name: str = ""  # of INTERRUPTED; '' for none
    waits: bool = False

    @contextlib.contextmanager
    def waiting(self, waits: bool = True) -> Iterator[None]:
        """Within the block, let signals wait, or not."""
        before, self.waits = self.waits, waits
        try:
            yield
        finally:
            self.waits = before


@contextlib.contextmanager
def signals() -> Iterator[Caught]:
    """Catch the signals of INTERRUPTED within the block, so that the loop can save and end.

    SIGHUP, that of a terminal which is closed, only where it would end the process: not under nohup. Outside the main
    thread Python cannot catch signals, so this does nothing there.
    """
    caught = Caught()

    def on_signal(number: int, frame: Any) -> None:
        again = caught.name == "SIGINT" and number == signal.SIGINT
        caught.name = signal.Signals(number).name
        if again or not caught.waits:
            raise KeyboardInterrupt  # not an Exception, which a library on the stack might catch

    old: dict[int, Any] = {}
    with contextlib.suppress(ValueError):
        for number in (getattr(signal, name) for name in INTERRUPTED if hasattr(signal, name)):
            if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) != signal.SIG_IGN:
                old[number] = signal.signal(number, on_signal)
    try:
        yield caught
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) or not caught.name:
            raise
        raise Interrupted(
            f"{caught.name}: ended at once; repeat the command to go on from the last checkpoint", caught.name
        ) from None
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@dataclass
class Agreement:
    """What is to happen after this step. With one host: what that one's signals and clocks say now.

    With several hosts each puts its votes into the inputs of a step, and reads what any of them votes for from the
    results of that step (`read`), so all know the same at the same step, whoever's signal or clock it was.
    """

    hosts: Hosts
    caught: Caught
    deadline: float  # in time.monotonic()
    save_seconds: float
    saved: float = field(default_factory=time.monotonic)
    agreed: frozenset[str] = frozenset()

    def own_votes(self) -> frozenset[str]:
        """What this host votes for now, of VOTES."""
        now = time.monotonic()
        late = {"time"} if now > self.deadline else set()
        due = {"save"} if now - self.saved > self.save_seconds else set()
        return frozenset({*filter(None, [self.caught.name]), *late, *due})

    def votes(self) -> np.ndarray | None:
        """`own_votes` as the input of a step, bool [k]; None with one host."""
        own = self.own_votes()
        return np.array([name in own for name in VOTES]) if self.hosts.several else None

    def read(self, votes: np.ndarray | None) -> None:
        """Take the result of a step with the votes of all hosts, int32 [k]; None: there is none."""
        if votes is not None:
            self.agreed |= {name for name, count in zip(VOTES, votes, strict=True) if count}

    @property
    def known(self) -> frozenset[str]:
        """What was voted for, as far as all know it."""
        return self.agreed if self.hosts.several else self.own_votes()

    @property
    def signal(self) -> str:
        """The signal that ends the run; '' for none."""
        return next((name for name in INTERRUPTED if name in self.known), "")

    def has_saved(self) -> None:
        """The state was saved just now."""
        self.saved, self.agreed = time.monotonic(), self.agreed - {"save"}


class Saving:
    """The last that follows a step: a checkpoint, where the run ends, after an evaluation, and when hosts vote for it.

    `step` is that of the newest checkpoint, -1 if there is none.
    """

    def __init__(self, job: Job, state: State, checkpoints: Checkpoints, recording: Recording, step: int):
        self.job, self.state, self.checkpoints, self.recording, self.step = job, state, checkpoints, recording, step
        self.saver = Saver(checkpoints, job.run.async_save, recording.progress.say)
        self.record = job.folder.record()
        self.clock = time.monotonic()  # when the state's `seconds` were last updated

    def save(self) -> None:
        """Save a checkpoint of this step, unless there is one. Raises CheckFailed where it is not finite."""
        job, state = self.job, self.state
        self.recording.settle()
        if self.step == state.step:
            return
        now = time.monotonic()
        state.seconds, self.clock = state.seconds + now - self.clock, now
        best = state.best["step"] if state.best else None
        arrays = job.engine_after(state.step).to_host(state.tree)
        if job.hosts.owner:
            self.saver.save(arrays, state.notes(job), best, job.run.keep, self.of_files())
            job.hooks.each("saved", state)
        self.step = state.step

    def of_files(self) -> dict[str, Any]:
        """What a checkpoint records of config.json and the log, so that damage to them is noticed."""
        return {"config": self.record, "log": self.recording.log.sync()}


class Saver:
    """Writes checkpoints by `Checkpoints.save`, one after the other and each whole, with `in_thread` in a thread.

    Then `save` returns as soon as it has copied the state, and what failed is raised by the next `check`, `save` or
    `drain`. As a context manager it waits, however its block ends, for the save that is being written; if the block
    ends by an exception, a failure of that save is only reported by `say`, which prints a line.
    """

    def __init__(self, checkpoints: Checkpoints, in_thread: bool, say: Callable[[str], None]):
        self.checkpoints, self.say = checkpoints, say
        self._thread = ThreadPoolExecutor(1, "saving") if in_thread else None
        self._writing: Future[None] | None = None

    def save(self, state: SavedState, notes: dict[str, Any], *rest: Any) -> None:
        """Do `Checkpoints.save`, once the save before has been written."""
        if self._thread is None:
            self._save(state, notes, *rest)
            return
        self.drain()
        # Training goes on and changes both.
        arguments = (on_host(state), copy.deepcopy(notes), *rest)
        self._writing = self._thread.submit(self._save, *arguments)

    def _save(self, state: SavedState, notes: dict[str, Any], *rest: Any) -> None:
        self.checkpoints.save(state, notes, *rest)
        publish(self.checkpoints.run.path)

    def check(self) -> None:
        """Raise what the save in the thread has failed with, if it has."""
        if self._writing is not None and self._writing.done():
            self.drain()

    def wait(self) -> None:
        """Wait until nothing is being written any more. An interrupt is raised only then."""
        interrupt: KeyboardInterrupt | None = None
        while self._writing is not None and not self._writing.done():
            try:
                concurrent.futures.wait([self._writing])
            except KeyboardInterrupt as error:  # otherwise the folder's lock would end before the save
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def drain(self) -> None:
        """`wait`, then raise what the save has failed with, if it has."""
        self.wait()
        written, self._writing = self._writing, None
        if written is not None:
            written.result()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.drain()
        except Exception as error:
            if kind is None:
                raise
            self.say(f"note     {printable(str(error))}")
        finally:
            if self._thread is not None:
                self._thread.shutdown()


def on_host(state: SavedState) -> SavedState:
    """A copy of a state as numpy arrays, which does not change when the state is donated."""
    import jax

    return jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else np.array(x, copy=True), state)
