"""Batches, made in advance by background threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import TypeVar

import numpy as np

from .base import Order, Rows, Split

DEPTH = 2  # batches made in advance: one is being made while another is ready
MAKERS = 2  # threads that make batches of images that are decoded for them: one goes on while another waits
Batch = dict[str, np.ndarray]
Outputs = tuple[dict[str, np.ndarray], np.ndarray]  # {name: [k, ...]} of k examples, and their numbers, int64 [k]
A = TypeVar("A")
B = TypeVar("B")


def batches(split: Split, order: Order, start: int, stop: int, rows: Rows = None) -> Generator[Batch, None, None]:
    """The training batches of some steps, made ahead in threads -> an iterator over {name: [B, ...]}."""

    reading = split.ahead(order, start, stop, rows) if hasattr(split, "ahead") else None

    def make(step: int) -> Batch:
        return _rows(split, split.batch, reading.plan(step) if reading else order.indices(step), rows)

    with closing(reading) if reading else nullcontext():
        yield from prefetch(make, range(start, stop), _makers(split))


def evaluation_batches(
    split: Split, batch: int, rows: Rows = None, some: range | None = None
) -> Generator[tuple[Batch, np.ndarray], None, None]:
    """The batches of a whole split.

    They come in order, or, where examples have lengths, the short ones first: then those of a batch are about equally
    long, and padded little.
    """
    lengths = getattr(split, "longest", None)
    every = np.arange(len(split)) if lengths is None else np.argsort(lengths, kind="stable")

    starts = range(0, len(split), batch)
    starts = starts if some is None else starts[some.start : some.stop]
    parts = [every[start : start + batch] for start in starts]
    padded = [np.pad(indices, (0, batch - len(indices)), mode="edge") for indices in parts]
    reading = split.ahead_in_order(padded, rows) if hasattr(split, "ahead_in_order") else None

    def make(i: int) -> tuple[Batch, np.ndarray]:
        if reading:
            reading.plan(i)
        return _rows(split, split.examples, padded[i], rows), parts[i]

    with closing(reading) if reading else nullcontext():
        yield from prefetch(make, range(len(starts)), _makers(split))


def in_order(parts: Sequence[Outputs]) -> dict[str, np.ndarray]:
    """Outputs of all examples of a split in the order of the split, from those of parts of it."""
    places = np.argsort(np.concatenate([order for _, order in parts]))
    return {name: np.concatenate([out[name] for out, _ in parts])[places] for name in parts[0][0]}


def _rows(split: Split, make: Callable[[np.ndarray], Batch], indices: np.ndarray, rows: Rows) -> Batch:
    """The rows of the batch that `make` gives for these examples; no others are read, unless they are in memory."""
    if rows is None:
        return make(indices)
    if hasattr(split, "longest"):  # how far they are padded depends on the whole batch
        whole = make(indices)
        chosen = rows(len(next(iter(whole.values()))))
        return {name: x[chosen] for name, x in whole.items()}
    return make(indices[rows(len(indices))])


def _makers(split: Split) -> int:
    images = getattr(split, "images", None)  # other splits hold no images
    return MAKERS if images is not None and not images.in_memory else 1


def prefetch(make: Callable[[A], B], items: Iterable[A], makers: int = 1) -> Generator[B, None, None]:
    """Like map(make, items), but `makers` threads make up to DEPTH results in advance.

    The threads end with the iterator: when that is exhausted, closed, deleted or raises. An exception of `make` is
    raised in place of its result.
    """
    pool = ThreadPoolExecutor(makers, thread_name_prefix="vit-jax-batches")
    waiting: deque[Future[B]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > DEPTH:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
