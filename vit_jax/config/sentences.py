"""What a run on sentences has: its data, and what config.json keeps so that its network can be used without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .fields import are_texts, identity
from .run import DataConfig

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0 to 3 of an open vocabulary; a closed one has no <unk>
SIDES = ("source", "target")


@dataclass(frozen=True)
class SentenceData(DataConfig):
    """Where pairs of sentences come from, and how they are cut into batches."""

    source: str = identity(
        "numbers", "numbers, or pairs:FROM-TO:FOLDER (files train.FROM and train.TO, a sentence a line)"
    )
    tokens: int = identity(768, "tokens a batch, padding included; a batch is of one length")
    lengths: tuple[int, ...] = identity(
        (4, 8, 12, 16), "ascending lengths to which sentences are padded, an end included; the last one is the longest"
    )
    shuffle_sources: bool = identity(
        False, "give each target of train the source of another, a control that must fall to chance"
    )


def is_vocabulary(value: Any) -> bool:
    """Whether a JSON value is what a run keeps of its words: {source: entries, target: entries}."""
    return isinstance(value, dict) and value.keys() == set(SIDES) and all(map(are_texts, value.values()))


def numbered_words(size: int) -> list[str]:
    """The entries of a vocabulary whose words nobody knows."""
    return [*SPECIALS[:size], *(f"id{i}" for i in range(len(SPECIALS), size))]


def other_words(theirs: Mapping[str, Sequence[str]], ours: Mapping[str, Sequence[str]]) -> str:
    """A clause where two networks' ids are as many but stand for other words; none where either only numbers them."""
    for side in SIDES:
        a, b = list(theirs[side]), list(ours[side])
        if len(a) == len(b) and a != b and numbered_words(len(b)) not in (a, b):
            i = next(i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
            return f"its {side} id {i} is {a[i]!r} and here it is {b[i]!r}"
    return ""
