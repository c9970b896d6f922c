"""Train a network: set up, loop, finish. `python -m vit_jax.train [PRESET] [--field value ...]`.

As a library, `train(run)` does the same and returns the summary. Read session, loop, finish.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import replace
from typing import Any

from .. import backend, runs
from ..config import RunConfig, check_run, task_row
from .finish import finish, show, splits
from .loop import loop, signals
from .session import set_up

__all__ = ["train", "train_seeds"]


def train(run: RunConfig, *, preset: str = "run", folder: runs.Run | None = None) -> dict[str, Any]:
    """Train a run to its end or its budget, going on from its last checkpoint where there is one.

    Without `folder` the run is kept in run.dir under run.name, or under the preset's name with a
    number where that is taken. Returns what summary.json holds. Raises UserError on what the user
    can mend, CheckFailed on a loss that is not finite, Interrupted after a signal (all is saved).
    """
    check_run(run)
    if folder is None:
        folder = runs.choose(run, run.name or preset, named=bool(run.name))
    with folder.lock(), contextlib.ExitStack() as stack:
        stack.callback(_leave_no_trace, folder)
        summary = folder.summary()
        if summary and summary["status"] == "finished":
            print(f"{folder}: this run is finished; choose another --name or --seed to train anew")
            show(folder, summary)
            return summary
        caught = stack.enter_context(signals())
        backend.prepare()
        stack.enter_context(backend.precision(run.compute_dtype))
        session = set_up(run, preset, folder, caught)
        stack.callback(session.log.close)
        return finish(session, loop(session))


def _leave_no_trace(folder: runs.Run) -> None:
    """Remove the folder of a run that did not even begin."""
    if not folder.exists():
        with contextlib.suppress(OSError):  # it was not ours alone
            (folder.path / ".lock").unlink()
            folder.path.rmdir()


def train_seeds(run: RunConfig, seeds: int, *, preset: str = "run") -> dict[str, Any]:
    """Train `seeds` runs that differ in their seed; the summary has the mean and spread of each metric."""
    group = runs.choose(run, run.name or preset, named=bool(run.name), seeds=seeds)
    numbers = list(range(run.seed, run.seed + seeds))
    members = [
        train(replace(run, seed=seed), preset=preset, folder=runs.Run(group.path / f"seed-{seed}")) for seed in numbers
    ]
    ended = sorted({member["status"] for member in members})
    summary: dict[str, Any] = {"status": ", ".join(ended), "seeds": numbers, "metrics": spread(members)}
    runs.write_json(group.summary_file, summary)
    print(f"\n{group}: {seeds} seeds, mean and standard deviation")
    told = ("seconds", *task_row(run.task).headlines)
    for name, row in summary["metrics"].items():
        if name.endswith(told):
            print(f"  {name:28} {row['mean']:.4f} +- {row['std']:.4f}")
    return summary


def spread(summaries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """{metric: {mean, std (with n-1), values}} of the numbers that all summaries have."""
    rows = [_numbers({**splits(s), "seconds": s["seconds"]}) for s in summaries]
    table = {}
    for name in rows[0]:
        if all(name in row for row in rows):
            values = [row[name] for row in rows]
            std = statistics.stdev(values) if len(values) > 1 else 0.0
            table[name] = {"mean": statistics.fmean(values), "std": std, "values": values}
    return table


def _numbers(value: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a nested dict as {dotted name: number}."""
    flat: dict[str, float] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat |= _numbers(item, f"{prefix}{key}.")
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            flat[prefix + key] = float(item)
    return flat
