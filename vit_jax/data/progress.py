"""The progress of fetching and preparing a set: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

PLAIN = 10.0  # seconds


@contextlib.contextmanager
def progress(title: str, total: int, unit: str, scale: float = 1.0) -> Iterator[Callable[[int], None]]:
    """A context that shows how much is done."""
    with _bar(title, total, unit, scale) if sys.stdout.isatty() else _lines(title, total, unit, scale) as show:
        yield show


@contextlib.contextmanager
def _bar(title: str, total: int, unit: str, scale: float) -> Iterator[Callable[[int], None]]:
    from rich import progress as columns

    amounts = columns.TextColumn("{task.fields[amounts]}")
    with columns.Progress(
        columns.TextColumn("{task.description}", markup=False),
        columns.BarColumn(),
        amounts,
        columns.TimeRemainingColumn(),
    ) as bar:
        task = bar.add_task(title, total=total, amounts="")

        def show(done: int) -> None:
            bar.update(task, completed=done, amounts=_amounts(done, total, unit, scale))

        yield show


@contextlib.contextmanager
def _lines(title: str, total: int, unit: str, scale: float) -> Iterator[Callable[[int], None]]:
    begun = time.monotonic()
    due, first = begun + PLAIN, -1
    print(f"{title}  {_amount(total, scale)} {unit}", flush=True)

    def show(done: int) -> None:
        nonlocal due, first
        now, first = time.monotonic(), done if first < 0 else first
        if now >= due:
            due = now + PLAIN
            left = (total - done) * (now - begun) / max(done - first, 1)
            print(f"{title}  {_amounts(done, total, unit, scale)}, about {left:,.0f} s left", flush=True)

    yield show


def _amounts(done: int, total: int, unit: str, scale: float) -> str:
    return f"{_amount(done, scale)} of {_amount(total, scale)} {unit}"


def _amount(amount: int, scale: float) -> str:
    return f"{amount:,}" if scale == 1 else f"{amount / scale:.3g}"
