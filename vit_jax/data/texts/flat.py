"""Many sentences as one flat array of ids, which may lie in a file that is larger than memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...files.digests import parts_digest

CHUNK = 1 << 14  # sentences that are padded at a time where all of them are gone through


@dataclass(frozen=True)
class Flat:
    """n sentences: that of number i is `ids[starts[i] : starts[i] + lengths[i]]`."""

    ids: np.ndarray  # uint16 or int32 [all tokens]; may be a memory map
    starts: np.ndarray  # int64 [n]
    lengths: np.ndarray  # int32 [n]

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, indices: np.ndarray) -> Flat:
        """The sentences of these numbers, in this order."""
        return Flat(self.ids, self.starts[indices], self.lengths[indices])

    def padded(self, indices: np.ndarray, width: int, pad: int) -> np.ndarray:
        """Some sentences, filled up: indices int [k] -> int32 [k, width]."""
        places = np.arange(width)
        real = places < self.lengths[indices][:, None]
        out = np.full(real.shape, pad, np.int32)
        out[real] = self.ids[(self.starts[indices][:, None] + places)[real]]
        return out

    def digest(self, width: int, pad: int) -> str:
        """The `array_digest` of all sentences, padded as by `padded`."""
        chunks = (np.arange(i, min(i + CHUNK, len(self))) for i in range(0, len(self), CHUNK))
        return parts_digest(np.dtype(np.int32), (len(self), width), (self.padded(i, width, pad) for i in chunks))


def dtype_of(size: int) -> np.dtype:
    """The dtype that holds the ids of a vocabulary of this size."""
    return np.dtype(np.uint16 if size <= 1 << 16 else np.int32)


def from_lengths(ids: np.ndarray, lengths: np.ndarray) -> Flat:
    """Sentences that follow each other: ids int32 [all tokens], lengths int32 [n]."""
    return Flat(ids, np.cumsum(lengths, dtype=np.int64) - lengths, lengths)


def gather_sentences(sentences: Iterable[np.ndarray], size: int) -> Flat:
    """Sentences of ids of a vocabulary of this size, in memory."""
    rows = [row.astype(dtype_of(size)) for row in sentences]
    return from_lengths(np.concatenate([*rows, np.zeros(0, dtype_of(size))]), np.array([*map(len, rows)], np.int32))
