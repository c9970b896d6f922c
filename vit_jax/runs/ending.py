"""How a run ended, for whoever compares runs afterwards.

summary.json tells of a run that came to its end or to the end of a budget, ending.json of one that a signal or an error
has ended before. A run that has neither, while no process trains it, was lost: killed, or cut off from power.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import CheckFailed, Interrupted, UserError
from ..files.atomic import is_locked, read_json, write_json
from ..files.places import is_written
from .folder import Run

LONGEST = 300
PROVENANCE = "provenance.json"  # convert writes it into a run that it makes
FINISHED, RUNNING, LOST, CONVERTED = "finished", "running", "lost", "converted, not trained"


def ending(folder: Run, summary: Mapping[str, Any] | None, rows: Sequence[Any]) -> str:
    """How a run with this summary (None: it has none) and these rows of its log ended."""
    if not rows and (folder.path / PROVENANCE).is_file():
        return CONVERTED
    if summary is not None:
        return str(summary["status"])
    if is_locked(folder.lock_file) or is_written(folder.path):
        return RUNNING
    with contextlib.suppress(UserError, KeyError):
        return str(read_json(folder.ending_file)["status"])[:LONGEST]
    return LOST


@contextlib.contextmanager
def recorded_ending(folder: Run) -> Iterator[None]:
    """A context in which a run is trained: how it ended before is forgotten, and what ends it is recorded."""
    for file in (folder.ending_file, folder.summary_file):
        file.unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):  # the error itself may be that nothing can be written
            write_json(folder.ending_file, {"status": _status_of(error)})
        raise


def _status_of(error: BaseException) -> str:
    if isinstance(error, GeneratorExit):
        return "stopped: the loop over its steps was left"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, CheckFailed):
        return f"diverged: {reason.partition(';')[0]}"[:LONGEST]
    if isinstance(error, Interrupted):
        return f"stopped: {reason.partition(':')[0]}"
    return f"stopped: {reason}"[:LONGEST]
