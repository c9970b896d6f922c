"""The signals that end a run: what waits until the state is saved, and what ends at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import Interrupted


@dataclass
class Caught:
    """The signal that was caught, if any.

    During training steps it waits until the loop has saved a checkpoint; at other times it ends the process at once.
    """

    name: str = ""  # "SIGINT", "SIGTERM"; '' for none
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
    """Catch SIGINT and SIGTERM within the block, so that the loop can save and end.

    A signal while `Caught.waits` is False, or a second SIGINT, ends the block at once with Interrupted. Outside the
    main thread Python cannot catch signals, so this does nothing there.
    """
    caught = Caught()

    def on_signal(number: int, frame: Any) -> None:
        again = caught.name == "SIGINT" and number == signal.SIGINT
        caught.name = signal.Signals(number).name
        if again or not caught.waits:
            raise KeyboardInterrupt  # not an Exception, which a library on the stack might catch

    old = {}
    with contextlib.suppress(ValueError):
        old = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
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
