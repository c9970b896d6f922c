"""The signals that end a run: what waits until the state is saved, and what ends at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import INTERRUPTED, Interrupted


@dataclass
class Caught:
    """The signal that was caught, if any.

    During training steps it waits until the loop has saved a checkpoint; at other times it ends the process at once.
    """

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

    Raises:
        Interrupted: by a signal while `Caught.waits` is False, or a second SIGINT, which end the block at once.
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
