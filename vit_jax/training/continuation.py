"""How a run that is there goes on: as it was, or to another length, as if that had been given at first."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import replace

from .. import runs
from ..config.run import RunConfig
from ..errors import Field, UserError
from ..runs.record import own_schedule
from ..runs.values import LENGTH, other_identity


def run_now(folder: runs.Run, run: RunConfig, resumed: bool) -> tuple[RunConfig, bool]:
    """(The run to train now in a folder, whether it goes on beyond the end that it had there); writes nothing."""
    if not folder.exists():
        if resumed:
            raise UserError(folder, "no run here", "leave resume out to begin one")
        return run, False
    now = folder.config()
    changed = other_identity(now, run)
    if changed.keys() - ({*LENGTH} if resumed else {}):
        raise runs.other_run(folder, changed)
    done, finished = (folder.complete_steps() or [0])[0], is_finished(folder)
    if not changed and not (resumed and finished and run.overfit_batches and run.max_steps != now.max_steps):
        if not finished:
            _check_schedule(folder)
        return run, False
    if _steps(folder, run.epochs, done) < done:
        has = done / _steps(folder, 1, done)
        raise UserError(Field("epochs"), f"is {run.epochs}, but {folder} has done {has:g}", "give more than that")
    if run.max_steps == now.max_steps and 0 < run.max_steps <= done:
        run = replace(run, max_steps=0)  # the budget of before is spent
    return run, True


def is_finished(folder: runs.Run) -> bool:
    """Whether a run has a summary, undamaged, of its end."""
    with contextlib.suppress(UserError):
        return (folder.summary() or {}).get("status") == "finished"
    return False


def _steps(folder: runs.Run, epochs: int, done: int) -> int:
    """The steps of so many epochs, by the log of a run; at least `done` where the log does not tell."""
    known = [row for row in folder.metrics() if row["step"] and row.get("epoch")]
    return round(epochs * known[-1]["step"] / known[-1]["epoch"]) if known else max(done, 1)


def _check_schedule(folder: runs.Run) -> None:
    """Raise UserError where an older version trains the run on by a schedule that begins anew, or by a fixed rate."""
    if way := own_schedule(folder.record()):
        path = shlex.quote(str(folder))
        raise UserError(
            folder,
            f"is being trained on by continue {way}, which is gone",
            f"give `resume {path}` more `epochs`, as if they had been given at first, or begin a new run from its "
            f"weights with `init {path}`",
        )
