"""A split of pairs of sentences as ids, in batches of a fixed number of tokens, and the data of a run on them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...files.digests import parts_digest
from ...text.record import record_tokenizers
from ...text.tokenizer import Tokenizer
from ..base import Data, Order
from ..order import TokenOrder

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


class Sentences:
    """The n pairs of one split as ids."""

    def __init__(
        self,
        flat_source: Flat,
        flat_target: Flat,
        lengths: Sequence[int],
        tokens: int,
        title: str,
        pads: tuple[int, int],
        texts: Callable[[], Sequence[str]],
    ):
        self.flat_source, self.flat_target, self.lengths, self.tokens = flat_source, flat_target, tuple(lengths), tokens
        self.title, self.pads, self.texts = title, pads, texts
        # + 1: the decoder's inputs begin with a begin, and its labels end with an end.
        self.longest: np.ndarray = np.maximum(flat_source.lengths, flat_target.lengths + 1)  # int [n]
        # int [n], the length that each pair is padded to.
        self.padded: np.ndarray = np.array(self.lengths, np.int32)[np.searchsorted(self.lengths, self.longest)]

    def __len__(self) -> int:
        return len(self.flat_source)

    @property
    def source(self) -> np.ndarray:
        """All sources, padded: int32 [n, L]. Of a large split more than its batches ever need at once."""
        return self.flat_source.padded(np.arange(len(self)), self.lengths[-1], self.pads[0])

    @property
    def target(self) -> np.ndarray:
        """All targets, padded: int32 [n, L-1]."""
        return self.flat_target.padded(np.arange(len(self)), self.lengths[-1] - 1, self.pads[1])

    @functools.cached_property
    def references(self) -> Sequence[str]:
        """The targets as texts."""
        return self.texts()

    def subset(self, indices: np.ndarray) -> Sentences:
        """A split of only these pairs."""
        few = self.of(self.flat_source.take(indices), self.flat_target.take(indices))
        few.texts = lambda: [self.references[i] for i in indices]
        return few

    def of(self, source: Flat, target: Flat) -> Sentences:
        """A split of other ids in the place of these, with the same references."""
        return Sentences(source, target, self.lengths, self.tokens, self.title, self.pads, self.texts)

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"source": int32 [k, l], "target": int32 [k, l-1]}, where l is the greatest padded length of these pairs."""
        length = int(self.padded[indices].max())
        return {
            "source": self.flat_source.padded(indices, length, self.pads[0]),
            "target": self.flat_target.padded(indices, length - 1, self.pads[1]),
        }

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The training batch of some pairs: indices int [k] -> int32 [B, l]."""
        found = self.examples(indices)
        fill = ((0, self.tokens // found["source"].shape[1] - len(indices)), (0, 0))
        pairs = zip(found.items(), self.pads, strict=True)
        return {name: np.pad(ids, fill, constant_values=pad) for (name, ids), pad in pairs}

    def ordered(self, order: TokenOrder) -> Order:
        """The order in which training takes these pairs."""
        return order

    def name(self, i: int) -> str:
        """The name of pair i in messages."""
        return f"{self.title}[{i}]"

    @property
    def chance(self) -> float:
        """The exact match of always giving the most frequent target, the best answer that ignores the source."""
        return max(Counter(row.tobytes() for row in self.target).values()) / len(self)


@dataclass(frozen=True)
class Texts(Data):
    """Pairs of sentences and their tokenizers."""

    source: Tokenizer
    target: Tokenizer

    @property
    def contents(self) -> str:
        """The sizes of the vocabularies, as printed."""
        return f"{len(self.source):,} source and {len(self.target):,} target ids"

    def metadata(self) -> dict[str, Any]:
        """What a run keeps of the tokenizers."""
        return record_tokenizers(self.source, self.target)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the vocabularies, as fields of the network's config."""
        return {
            "source_vocabulary": len(self.source),
            "target_vocabulary": len(self.target),
            "outputs": len(self.target),
        }

    @property
    def rows(self) -> dict[int, int]:
        """{length: pairs of a training batch of that length}."""
        train = self.splits["train"]
        return {length: train.tokens // length for length in train.lengths}

    def step_sizes(self, batch: int) -> dict[str, int]:
        """{the setting: pairs of a training batch} for each length; `batch`, that of evaluation, is not used."""
        tokens = self.splits["train"].tokens
        return {f"data.tokens {tokens} // length {length}": rows for length, rows in self.rows.items()}

    def order(self, batch: int, seed: int, batches: int = 0) -> Order:
        """The order of training."""
        train = self.splits["train"]
        few = train.padded[: batches * self.rows[train.lengths[-1]] or None]
        return train.ordered(TokenOrder(few, self.rows, seed))
