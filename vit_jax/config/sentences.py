"""Configs of runs on sentences: their data, and the metadata that config.json has of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .fields import are_texts, identity
from .run import DataConfig

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0 to 3 of an open vocabulary; a closed one has no <unk>
SIDES = ("source", "target")
GIVEN = "pairs"  # the data.source of a run whose sentences were given in Python


@dataclass(frozen=True)
class SentenceData(DataConfig):
    """The source of pairs of sentences, and how they are grouped into batches."""

    source: str = identity(
        "numbers", "numbers (generated), or pairs:FROM-TO:FOLDER (files train.FROM and train.TO, one sentence per line)"
    )
    tokens: int = identity(768, "tokens per batch, padding included; all sentences of a batch are padded to one length")
    lengths: tuple[int, ...] = identity(
        (4, 8, 12, 16),
        "ascending lengths in tokens, <eos> included, to which sentences are padded; longer sentences are refused",
    )
    shuffle_sources: bool = identity(
        False, "control: give each training target the source of another; results must then be at chance"
    )


def is_vocabulary(value: Any) -> bool:
    """Whether a JSON value has the form of a run's vocabularies: {source: entries, target: entries}."""
    return isinstance(value, dict) and value.keys() == set(SIDES) and all(map(are_texts, value.values()))


def numbered_words(size: int) -> list[str]:
    """Entries for a vocabulary without words: the special tokens, then id4, id5, ..."""
    return [*SPECIALS[:size], *(f"id{i}" for i in range(len(SPECIALS), size))]


def other_words(given: Mapping[str, Sequence[str]], wanted: Mapping[str, Sequence[str]]) -> str:
    """A clause naming the first difference between two equally large vocabularies; else empty.

    It is empty too if either vocabulary has no words, only `numbered_words`.
    """
    for side in SIDES:
        a, b = list(given[side]), list(wanted[side])
        if len(a) == len(b) and a != b and numbered_words(len(b)) not in (a, b):
            i = next(i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
            return f"its {side} id {i} is {a[i]!r} and here it is {b[i]!r}"
    return ""
