"""Configs of runs on sentences: their data, and the metadata that config.json has of the data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from ...config.fields import are_texts, identity
from ...config.outputs import APART, FOLDER, SPECIALS, WORDS
from ...config.run import DataConfig
from ...errors import UserError
from ...files.atomic import read_json
from ...text.classes import Spoken
from ...text.older import OF_BYTES, OLDER
from ...text.vocabulary import splits_marks

TEXTS = "texts:"  # begins a data.source of texts without targets
GIVEN = "pairs"  # the data.source of a run whose sentences were given in Python
LEAST = 512  # ids of a tokenizer that is trained: all bytes, the special ones, and some to learn
KINDS = ("tokenizer.json", "source/tokenizer.json", "source.spm", *OLDER)  # files by which a folder has a tokenizer


@dataclass(frozen=True)
class SentenceData(DataConfig):
    """The source of pairs of sentences, and how they are grouped into batches."""

    given = GIVEN

    source: str = identity(
        "numbers",
        "numbers (generated); pairs:FROM-TO:FOLDER (files train.FROM and train.TO, one sentence per line); or "
        "pairs:FILE,FILE or tsv:FILE (source, tab, target), from which validation and test are held out; "
        "wds:FROM-TO:PATTERN, parquet: likewise (shards with the texts FROM and TO); texts:PATH (a file, or a "
        "folder of .txt files, one text per line) to pretrain on, with corrupt",
        place=True,
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
        "tokenizer of Hugging Face (tokenizer.json, or the vocabulary of its class), or of a run's, which is "
        "RUN/tokenizer",
        place=True,
    )
    source_language: str = identity(
        "", "with a tokenizer of several languages: the code of that of sources; empty: as its files say"
    )
    target_language: str = identity("", "with such a tokenizer: the code of the language of targets; empty: likewise")
    prefix: str = identity(
        "", "text before every source, as in 'translate English to German: '; predict and evaluate put it there, too"
    )
    task: str = identity(
        "",
        "the name of a task in task_specific_params of the config.json beside the tokenizer, as translation_en_to_de: "
        "its prefix, and for predict and evaluate its settings of a search (num_beams, max_length, ...)",
    )
    vocabulary: int = identity(
        8000, "bpe, unigram: most ids of the tokenizer, or of each where source and target have tables of their own"
    )
    bleu: Literal["13a", "none"] = identity(
        "13a",
        "where BLEU splits texts into words: as 13a, which is for raw text; or none: at spaces alone, in lower case, "
        "for files whose text is split into tokens already",
    )
    corrupt: Literal["none", "spans"] = identity(
        "none",
        "with texts:PATH: what is removed from a text and has to be restored: spans, each replaced by a sentinel of "
        "the tokenizer (15 % of the tokens: span corruption, as in T5). Longer texts are cut into several",
    )
    corrupt_length: float = identity(3.0, "with corrupt spans: mean tokens of a span; ByT5: 20", at_least=1)
    shuffle_sources: bool = identity(
        False, "control: give each training target the source of another; results must then be at chance"
    )

    @property
    def spoken(self) -> Spoken:
        """The languages of both sides."""
        return Spoken(self.source_language, self.target_language)

    def in_folder(self, folder: Path) -> Self:
        """The same, with the tokenizer that a run's folder keeps."""
        return replace(self, tokenizer=tokenizer_of_run(self.tokenizer, folder))

    @classmethod
    def fields_with_weights(cls, folder: Path) -> dict[str, Any]:
        """The tokenizer in the folder of weights, and what a run there was trained to read before every source."""
        return tokenizer_with_weights(folder) | prefix_with_weights(folder)


def tokenizer_of_run(tokenizer: str, folder: Path) -> str:
    """data.tokenizer of a run: the one that its folder keeps, if it keeps one; of words, how those of it are split."""
    kept = folder / FOLDER
    if tokenizer != WORDS:
        return str(kept) if kept.is_dir() else tokenizer
    try:
        record = read_json(folder / "config.json")
    except UserError:  # what reads it to train or to predict says more
        return WORDS
    words = record.get("vocabulary", record.get("words"))
    lists: list[Any] = [*words.values()] if isinstance(words, dict) else [words]
    return APART if any(are_texts(each) and splits_marks(each) for each in lists) else WORDS


def tokenizer_with_weights(folder: Path) -> dict[str, Any]:
    """The tokenizer beside weights, as a field of the run that starts from them. Returns {field: an absolute path, by
    which the same command in another working directory continues the same run}; empty where there is none.
    """
    for place in (folder / FOLDER, folder):
        if any((place / name).is_file() for name in KINDS) or _names_bytes(place):
            return {"data.tokenizer": os.path.abspath(place)}
    return {}


def prefix_with_weights(folder: Path) -> dict[str, str]:
    """data.prefix and data.task of the run whose folder this is; empty where there is none, or it has none."""
    try:
        data = read_json(folder / "config.json")["config"]["data"]
        return {f"data.{name}": data[name] for name in ("prefix", "task") if data.get(name)}
    except (UserError, KeyError, TypeError, AttributeError):  # what opens the weights says more
        return {}


def _names_bytes(folder: Path) -> bool:
    """Whether the files in a folder name the tokenizer whose tokens are bytes, which has no file of its own."""
    for name in ("tokenizer_config.json", "config.json"):
        with contextlib.suppress(UserError):  # what opens the tokenizer, or the weights, says more
            if (folder / name).is_file() and (stated := read_json(folder / name).get("tokenizer_class")):
                return bool(stated == OF_BYTES)
    return False


def is_side(value: Any) -> bool:
    """Whether a JSON value has the form of one side of a vocabulary."""
    if not isinstance(value, dict):
        return are_texts(value)
    return value.keys() == {"size", "tokenizer"} and type(value["size"]) is int and isinstance(value["tokenizer"], str)


def size_of_side(side: Any) -> int:
    """The number of ids of one side of a vocabulary."""
    return int(side["size"]) if isinstance(side, Mapping) else len(side)


def numbered_words(size: int) -> list[str]:
    """Entries for a vocabulary without words: the special tokens, then id4, id5, ..."""
    return [*SPECIALS[:size], *(f"id{i}" for i in range(len(SPECIALS), size))]
