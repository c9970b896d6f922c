"""Configs of runs on sentences: their data, and the metadata that config.json has of the data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .fields import are_texts, identity
from .run import DataConfig, RunConfig
from .vocabulary import FOLDER, SIDES, SPECIALS, WORDS

GIVEN = "pairs"  # the data.source of a run whose sentences were given in Python
LEAST = 512  # ids of a tokenizer that is trained: all bytes, the special ones, and some to learn
KINDS = (
    "tokenizer.json",
    "source/tokenizer.json",
    "source.spm",
    "merges.txt",
)  # files by which a folder has a tokenizer


@dataclass(frozen=True)
class SentenceData(DataConfig):
    """The source of pairs of sentences, and how they are grouped into batches."""

    source: str = identity(
        "numbers",
        "numbers (generated); pairs:FROM-TO:FOLDER (files train.FROM and train.TO, one sentence per line); or, "
        "of which validation and test are held out, pairs:FILE,FILE or tsv:FILE (source, tab, target)",
    )
    tokens: int = identity(768, "tokens per batch, padding included; all sentences of a batch are padded to one length")
    lengths: tuple[int, ...] = identity(
        (4, 8, 12, 16),
        "ascending lengths in tokens, <eos> included, to which sentences are padded; longer sentences are refused",
        at_least=2,
    )
    cut: bool = identity(False, "cut sentences that are longer than the last of lengths, rather than refuse them")
    tokenizer: str = identity(
        WORDS,
        "words, in lower case; bpe or unigram, trained on train, for any text (extra: text); or the folder of a "
        "tokenizer of Hugging Face (tokenizer.json; or source.spm, target.spm and vocab.json), or of a run's, which "
        "is RUN/tokenizer",
    )
    vocabulary: int = identity(
        8000, "bpe, unigram: most ids of the tokenizer, or of each where source and target have tables of their own"
    )
    bleu: Literal["13a", "none"] = identity(
        "13a",
        "where BLEU splits texts into words: as 13a, which is for raw text; or none: at spaces alone, in lower case, "
        "for files whose text is split into tokens already",
    )
    shuffle_sources: bool = identity(
        False, "control: give each training target the source of another; results must then be at chance"
    )


def from_its_folder(run: RunConfig, folder: Path) -> RunConfig:
    """The run, but its tokenizer is the one that its folder keeps, if it keeps one."""
    data: Any = run.data  # the row's own class
    kept = folder / FOLDER
    return replace(run, data=replace(data, tokenizer=str(kept))) if data.tokenizer != WORDS and kept.is_dir() else run


def beside_weights(folder: Path) -> dict[str, Any]:
    """The tokenizer beside weights, as a field of the run that starts from them; a run keeps its own in a folder.

    As an absolute path: the same command in another working directory is to continue the same run.
    """
    for place in (folder / FOLDER, folder):
        if any((place / name).is_file() for name in KINDS):
            return {"data.tokenizer": os.path.abspath(place)}
    return {}


def is_vocabulary(value: Any) -> bool:
    """Whether a JSON value has the form of a run's vocabularies, {source: ..., target: ...}.

    Each is a list of words, or of other tokenizers {"size": ids, "tokenizer": digest of its files}.
    """
    return isinstance(value, dict) and value.keys() == set(SIDES) and all(map(is_side, value.values()))


def is_side(value: Any) -> bool:
    """Whether a JSON value has the form of one side of a vocabulary."""
    if not isinstance(value, dict):
        return are_texts(value)
    return value.keys() == {"size", "tokenizer"} and type(value["size"]) is int and isinstance(value["tokenizer"], str)


def is_in_files(value: Mapping[str, Any]) -> bool:
    """Whether a run's vocabularies are those of a tokenizer, whose files it keeps."""
    return any(isinstance(value[side], Mapping) for side in SIDES)


def size_of_side(side: Any) -> int:
    """The number of ids of one side of a vocabulary."""
    return int(side["size"]) if isinstance(side, Mapping) else len(side)


def numbered_words(size: int) -> list[str]:
    """Entries for a vocabulary without words: the special tokens, then id4, id5, ..."""
    return [*SPECIALS[:size], *(f"id{i}" for i in range(len(SPECIALS), size))]


def other_words(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """A clause naming the first difference between two equally large vocabularies; else empty.

    It is empty too if either vocabulary has no words, only `numbered_words`.
    """
    for side in SIDES:
        a, b = given[side], wanted[side]
        if size_of_side(a) != size_of_side(b) or a == b or numbered_words(size_of_side(b)) in (a, b):
            continue
        if isinstance(a, Mapping) or isinstance(b, Mapping):
            return f"its {side} tokenizer is another than here"
        i = next(i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
        return f"its {side} id {i} is {a[i]!r} and here it is {b[i]!r}"
    return ""
