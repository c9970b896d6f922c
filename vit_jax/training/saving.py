"""When checkpoints are written: while training waits, or in one thread beside it."""

from __future__ import annotations

import concurrent.futures
import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files.terminal import printable

if TYPE_CHECKING:
    from ..weights.checkpoint import Checkpoints, State


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

    def save(self, state: State, notes: dict[str, Any], *rest: Any) -> None:
        """Do `Checkpoints.save`, once the save before has been written."""
        if self._thread is None:
            self._save(state, notes, *rest)
            return
        self.drain()
        # Training goes on and changes both.
        arguments = (on_host(state), copy.deepcopy(notes), *rest)
        self._writing = self._thread.submit(self._save, *arguments)

    def _save(self, state: State, notes: dict[str, Any], *rest: Any) -> None:
        self.checkpoints.save(state, notes, *rest)
        self.checkpoints.run.publish()

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


def on_host(state: State) -> State:
    """A copy of a state as numpy arrays, which does not change when the state is donated."""
    import jax

    return jax.tree.map(lambda x: x if isinstance(x, np.ndarray) else np.array(x, copy=True), state)
