"""Batches made ahead of the loop by a background thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from .contract import Order, Split

DEPTH = 2  # batches made ahead: one is being made while one waits
Batch = dict[str, np.ndarray]
A = TypeVar("A")
B = TypeVar("B")


def batches(split: Split, order: Order, start: int, stop: int) -> Generator[Batch, None, None]:
    """The batches of steps start..stop-1: {'image': uint8 [B, h, w, C], 'label': int32 [B]}, or what else the split makes."""
    return _ahead(lambda step: split.batch(order.indices(step)), range(start, stop))


def whole(split: Split, batch: int) -> Generator[tuple[Batch, int], None, None]:
    """Every example once, in order: batches of one size and how many of their examples are real.

    The last batch repeats the last example up to that size.
    """
    last = len(split) - 1

    def make(start: int) -> tuple[Batch, int]:
        indices = np.minimum(np.arange(start, start + batch), last)
        return split.examples(indices), min(batch, len(split) - start)

    return _ahead(make, range(0, len(split), batch))


def _ahead(make: Callable[[A], B], items: Iterable[A]) -> Generator[B, None, None]:
    """map(make, items), made up to DEPTH items ahead by one thread that ends with the iterator.

    It ends whether the iterator is exhausted, closed, dropped or raises; what `make` raises comes
    out where its result would have.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="vit-jax-batches")
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
