"""Where a set of files first differs from what it was: short digests of its stretches, which a run keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

PARTS = 64  # most stretches of a split


class Listing(NamedTuple):
    """The n examples of a source's split, in stretches of equal length."""

    parts: list[str]
    n: int
    name: Callable[[int], str]  # of an example, in messages

    @classmethod
    def of(cls, digests: np.ndarray, name: Callable[[int], str]) -> Listing:
        """That of examples with these digests, uint8 [n, bytes]."""
        every = _every(len(digests))
        stretches = (digests[start : start + every] for start in range(0, len(digests), every))
        return cls([hashlib.blake2b(part.tobytes(), digest_size=4).hexdigest() for part in stretches],
                   len(digests), name)  # fmt: skip

    def first_difference(self, then: Any) -> str:
        """A clause on the first stretch that is not as it was in the `parts` of as many examples; else empty."""
        if not isinstance(then, list) or len(then) != len(self.parts):
            return ""
        i = next((i for i, pair in enumerate(zip(self.parts, then, strict=True)) if pair[0] != pair[1]), -1)
        every = _every(self.n)
        among = f"one of the {every} from {self.name(i * every)} on" if every > 1 else self.name(i)
        return f"its first example that is not as it was is {among}" if i >= 0 else ""


def _every(n: int) -> int:
    """Examples in a stretch."""
    return max(1, -(-n // PARTS))
