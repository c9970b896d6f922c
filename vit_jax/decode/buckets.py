"""Inputs of many lengths in batches of few shapes, so that few programs are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .search import Found

ROOMS = (64, 256)  # tokens that there is room for at first, and for answers that are longer


class Answers(NamedTuple):
    """The n answers to one input, as `Found` has them for several."""

    tokens: np.ndarray  # int32 [n, T]; T may differ from input to input
    scores: np.ndarray  # float32 [n]
    lengths: np.ndarray  # int32 [n]


# (ids int32 [B, S], which input each of them is int32 [B], room) -> the answers
Run = Callable[[np.ndarray, np.ndarray, int], Found]


def in_buckets(
    run: Run, inputs: Sequence[np.ndarray], pad: int, lengths: Sequence[int], longest: int, batch: int
) -> list[Answers]:
    """The answers to inputs in their order, by few shapes of a compiled program: inputs int32 [N].

    An input is padded to the first of the lengths that holds it. It is searched with little room at first, because a
    cache with much of it is slow, and again with more where the answer needs it, at last with `longest`.
    """
    found: dict[int, Answers] = {}
    for length, members in _group_by_length(inputs, lengths).items():
        for room in rooms(length, longest):
            again = []
            for numbers in _batches(members, batch):
                ids = np.full((len(numbers), length), pad, np.int32)
                for line, i in zip(ids, numbers, strict=True):
                    line[: len(inputs[i])] = inputs[i]
                tokens, scores, lasting, complete = map(np.asarray, run(ids, np.array(numbers, np.int32), room))
                found |= {i: Answers(tokens[row], scores[row], lasting[row]) for row, i in enumerate(numbers)}
                again += [i for row, i in enumerate(numbers) if not complete[row]]
            members = sorted(set(again), key=members.index)
            if not members:
                break
    return [found[i] for i in range(len(inputs))]


def lengths_to(longest: int, most: int = 0) -> tuple[int, ...]:
    """The lengths that inputs of at most `longest` tokens are padded to: 16, 32, 64, ... and that.

    Where inputs have up to `most` tokens, which are more, the last is the power of two that holds them.
    """
    longest = longest if most <= longest else 1 << (most - 1).bit_length()
    return (*(16 << i for i in range(longest.bit_length()) if 16 << i < longest), longest)


def rooms(length: int, longest: int) -> tuple[int, ...]:
    """The tokens that there is room for, at first and when that was not enough, in answers to inputs of a length."""
    return (*(room for room in ROOMS if 1.5 * length <= room < longest), longest)


def _group_by_length(inputs: Sequence[np.ndarray], lengths: Sequence[int]) -> dict[int, list[int]]:
    """{length: the numbers of the inputs that are padded to it, the short ones first}."""
    groups: dict[int, list[int]] = {}
    for i in sorted(range(len(inputs)), key=lambda i: len(inputs[i])):
        fitting = next((length for length in lengths if len(inputs[i]) <= length), None)
        if fitting is None:
            raise ValueError(f"an input has {len(inputs[i])} tokens, more than the greatest length {lengths[-1]}")
        groups.setdefault(fitting, []).append(i)
    return groups


def _batches(members: list[int], batch: int) -> Iterator[list[int]]:
    """The members in batches of one size: `batch`, or of a few members the next power of two.

    The last member fills the last batch up: a copy of it takes as many steps as it does.
    """
    size = min(batch, 1 << (len(members) - 1).bit_length())
    for begin in range(0, len(members), size):
        some = members[begin : begin + size]
        yield some + some[-1:] * (size - len(some))
