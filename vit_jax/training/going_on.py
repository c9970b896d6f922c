"""How a run that is there goes on: as it was, or, after its end, in another segment."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from .. import runs
from ..config.run import BY_LENGTH, RunConfig
from ..errors import Field, UserError
from ..machine.hosts.group import Hosts
from ..runs.segments import SEGMENT_FIELDS, Continuation, Segment
from ..runs.values import other_identity


def planned_segments(folder: runs.Run, run: RunConfig, continuation: str | None) -> list[Segment]:
    """The segments of a run in this folder, of which the last is the one to train now; writes nothing."""
    if not folder.exists():
        if continuation is not None:
            raise UserError(folder, "no run here", "leave resume out to begin one")
        return [Segment(run)]
    segments = folder.segments()
    now = segments[-1]
    changed = other_identity(now.run, run)
    if continuation is None and changed:  # else it is asked for as it is now
        runs.same_identity(folder, run)
        run = replace(run, **{name: getattr(now.run, name) for name in SEGMENT_FIELDS})
    if continuation is None:
        return [*segments[:-1], replace(now, run=run)]
    if changed.keys() - {*SEGMENT_FIELDS}:
        raise runs.other_run(folder, changed)
    after, summary = (folder.complete_steps() or [0])[0], _finished(folder, segments)
    run = _with_length(folder, run, now, after) if summary else run
    stopped_early = bool(summary) and after < _steps(folder, now.run.epochs, after)
    overfit = bool(summary) and bool(run.overfit_batches) and run.max_steps != now.run.max_steps
    if other_identity(now.run, run) or overfit or (stopped_early and continuation):
        return _with_new(folder, segments, run, after, summary, continuation)
    if continuation not in ("", now.continuation):
        what = f"is {continuation}, but no epochs are added to the {now.run.epochs} of {folder}"
        raise UserError(Field("continue"), what, "give more of them with `epochs` too, or leave it out")
    return [*segments[:-1], replace(now, run=run)]


def _with_new(
    folder: runs.Run, segments: list[Segment], run: RunConfig, after: int, summary: dict[str, Any], continuation: str
) -> list[Segment]:
    """The segments with a new one. Raises UserError where it asks for less than is done, or leaves the rate open."""
    now = segments[-1]
    if _steps(folder, run.epochs, after) < after:
        done = after / _steps(folder, 1, after)
        raise UserError(Field("epochs"), f"is {run.epochs}, but {folder} has done {done:g}", "give more than that")
    if run.max_steps == now.run.max_steps and 0 < run.max_steps <= after:
        run = replace(run, max_steps=0)  # the budget of before is spent
    chosen = cast(Continuation, continuation or _only_choice(folder, run, segments))
    if after == now.after and not summary:  # no step of the last one is done: it has not begun
        return [*segments[:-1], replace(now, run=run, continuation=chosen if len(segments) > 1 else "")]
    return [*segments[:-1], replace(now, ended=summary), Segment(run, after, chosen)]


def shared_segments(hosts: Hosts, run: RunConfig, planned: list[Segment]) -> list[Segment]:
    """The segments of a run, at all hosts."""
    fields = (*SEGMENT_FIELDS, "max_steps")
    told = hosts.share(
        [[each.after, each.continuation, {name: getattr(each.run, name) for name in fields}] for each in planned]
    )
    return planned or [Segment(replace(run, **values), after, continuation) for after, continuation, values in told]


def _finished(folder: runs.Run, segments: list[Segment]) -> dict[str, Any]:
    """The summary of the last segment if that is finished; else empty."""
    with contextlib.suppress(UserError):
        summary = folder.summary() or {}
        if is_of(summary, segments) and summary["status"] == "finished":
            return summary
    return {}


def is_of(summary: Mapping[str, Any], segments: Sequence[Segment]) -> bool:
    """Whether a summary is of the last of these segments, and not of one before."""
    return bool(summary) and summary.get("segment", 0) == len(segments) - 1


def _with_length(folder: runs.Run, run: RunConfig, now: Segment, after: int) -> RunConfig:
    """The run with as many epochs as its max_steps needs, where that goes beyond the end of a finished run."""
    asked = run.max_steps != now.run.max_steps and run.epochs == now.run.epochs and not run.overfit_batches
    if not asked or run.max_steps <= after:
        return run
    return replace(run, epochs=max(run.epochs, math.ceil(run.max_steps / _steps(folder, 1, after))))


def _steps(folder: runs.Run, epochs: int, after: int) -> int:
    """The steps of so many epochs, by the log of a run; at least `after` where the log does not tell."""
    known = [row for row in folder.metrics() if row["step"] and row.get("epoch")]
    return round(epochs * known[-1]["step"] / known[-1]["epoch"]) if known else max(after, 1)


def _only_choice(folder: runs.Run, run: RunConfig, segments: Sequence[Segment]) -> str:
    """What the learning rate does where it makes no difference: it goes on. Raises UserError where it makes one."""
    schedule, now = run.optim.schedule, segments[-1]
    plain = schedule not in BY_LENGTH and all(each.continuation in ("", "extended") for each in segments)
    if plain or run.overfit_batches or run.epochs == now.run.epochs:
        return "extended"
    rates = [row["lr"] for row in folder.metrics() if row.get("lr") is not None]
    last = f"the last rate, {rates[-1]:.3g}, is kept" if rates else "the last rate is kept"
    said = {
        "again": "the schedule begins anew for the added epochs",
        "extended": f"as if {run.epochs} epochs had been given at first, to which the rate jumps",
        "constant": last,
    }
    command = f"python -m vit_jax.train --resume {shlex.quote(str(folder))} --epochs {run.epochs}"
    choices = ", or ".join(f"`{command} --continue {choice}` ({what})" for choice, what in said.items())
    raise UserError(
        folder,
        f"its schedule {schedule} was made for {now.run.epochs} epochs, so {run.epochs} can mean three things",
        f"choose {choices}; in Python continue_={'again'!r} and so on",
    )
