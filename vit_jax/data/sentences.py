"""Pairs of sentences as ids: opened from a source, split, and put into batches of a fixed number of tokens."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config import SentenceData
from ..config.sentences import GIVEN
from ..errors import UserError
from ..runs import array_digest, text_digest
from ..text import Vocabulary, closed, counted, words
from . import numbers
from .contract import Given, not_given
from .order import SHUFFLE, TEST, VALIDATION, TokenOrder, hold_out, permutation

Pairs = list[tuple[str, str]]  # (source sentence, target sentence)


class Sentences:
    """The n pairs of one split as ids, padded with 0.

    Args:
        source: int32 [n, L], L = lengths[-1].
        target: int32 [n, L-1], without BOS and EOS.
        lengths: the lengths to which sentences are padded, ascending.
        tokens: tokens of a training batch, padding included.
        title: the split's name, for messages.
    """

    def __init__(self, source: np.ndarray, target: np.ndarray, lengths: Sequence[int], tokens: int, title: str):
        self.source, self.target, self.lengths, self.tokens, self.title = source, target, tuple(lengths), tokens, title
        # + 1: the decoder's inputs begin with BOS, and its labels end with EOS.
        longest = np.maximum((source != 0).sum(1), (target != 0).sum(1) + 1)
        # int [n], the length that each pair is padded to.
        self.padded: np.ndarray = np.array(self.lengths)[np.searchsorted(self.lengths, longest)]

    def __len__(self) -> int:
        return len(self.source)

    def subset(self, indices: np.ndarray) -> Sentences:
        """A split of only these pairs."""
        return Sentences(self.source[indices], self.target[indices], self.lengths, self.tokens, self.title)

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"source": int32 [k, L], "target": int32 [k, L-1]}."""
        return {"source": self.source[indices], "target": self.target[indices]}

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"source": int32 [B, l], "target": int32 [B, l-1]}, where l is the greatest padded length of these pairs.

        B = tokens // l: rows of padding fill the batch up, so that there is one shape per length.
        """
        length = int(self.padded[indices].max())
        fill = ((0, self.tokens // length - len(indices)), (0, 0))
        return {
            "source": np.pad(self.source[indices, :length], fill),
            "target": np.pad(self.target[indices, : length - 1], fill),
        }

    def name(self, i: int) -> str:
        """The name of pair i in messages."""
        return f"{self.title}[{i}]"

    @property
    def chance(self) -> float:
        """The exact match of always giving the most frequent target, the best answer that ignores the source."""
        return max(Counter(row.tobytes() for row in self.target).values()) / len(self)


@dataclass(frozen=True)
class Texts:
    """Pairs of sentences and their vocabularies, as the `Data` of a run (see contract.py)."""

    name: str
    source: Vocabulary
    target: Vocabulary
    splits: dict[str, Sentences]  # train, then validation, test and others where there are any
    identity: dict[str, Any]
    remarks: tuple[str, ...]

    @property
    def contents(self) -> str:
        """The sizes of the vocabularies, as printed."""
        return f"{len(self.source):,} source and {len(self.target):,} target ids"

    def same_as(self, recorded: dict[str, Any] | None) -> bool:
        """Whether a run that recorded this identity began with this data; None: not known, of a converted run."""
        return recorded in (None, self.identity)

    def metadata(self) -> dict[str, Any]:
        """The vocabularies, for config.json."""
        return {"vocabulary": {"source": list(self.source.entries), "target": list(self.target.entries)}}

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

    def order(self, batch: int, seed: int, batches: int = 0) -> TokenOrder:
        """The order of training, over the first pairs that fill `batches` batches of the greatest length (0: all)."""
        train = self.splits["train"]
        return TokenOrder(train.padded[: batches * self.rows[train.lengths[-1]] or None], self.rows, seed)


def open_sentences(
    data: SentenceData,
    *,
    one_vocabulary: bool = False,
    wanted: Mapping[str, int] | None = None,
    seed: int = 0,
    given: Given | None = None,
) -> Texts:
    """Open, check and split pairs of sentences.

    Args:
        data: the config of the data.
        one_vocabulary: whether both sides share one vocabulary.
        wanted: {source_vocabulary, target_vocabulary, outputs} of the network; 0 or absent: that of the data.
        seed: determines the validation split.
        given: pairs from Python, in place of `data.source`.
    Raises UserError.
    """
    texts, (source, target) = _open_pairs(data, one_vocabulary, seed, given)
    _check_sizes(data, wanted or {}, source, target)
    splits = {name: _encoded(data, pairs, name, source, target) for name, pairs in texts.items()}
    identity: dict[str, Any] = {
        "name": data.source.partition(":")[0],
        "sizes": {name: len(split) for name, split in splits.items()},
        "vocabulary": text_digest([source.entries, target.entries]),
        "content": text_digest([[array_digest(split.source), array_digest(split.target)] for split in splits.values()]),
    }
    remarks = tuple(
        f"{name}: always giving the most frequent target has an exact match of {splits[name].chance:.4f}"
        for name in ("validation", "test")
        if name in splits
    )
    if data.shuffle_sources:
        train = splits["train"]
        shuffled = train.source[permutation(len(train), SHUFFLE, seed)]
        splits["train"] = Sentences(shuffled, train.target, train.lengths, train.tokens, train.title)
        remarks += ("a control: the sources of train are shuffled among its targets, so they carry no information",)
    return Texts(identity["name"], source, target, splits, identity, remarks)


def open_other_pairs(
    data: SentenceData, wanted: str, source: Vocabulary, target: Vocabulary, given: Given
) -> tuple[str, Sentences, int]:
    """Pairs that a trained network is only evaluated on: (the split's name, its pairs, pairs of all splits).

    `wanted` is the split; empty: test, else validation, else the first. The vocabularies are the network's. Raises
    UserError.
    """
    found = {"all": _given(given)["train"]} if given.whole else _given(given)
    name = wanted or next((name for name in ("test", "validation") if name in found), next(iter(found)))
    if name not in found:
        raise UserError(f"there is no split {name!r}: data has {', '.join(found)}; choose one of them")
    return name, _encoded(data, found[name], name, source, target), sum(map(len, found.values()))


def _open_pairs(
    data: SentenceData, one: bool, seed: int, given: Given | None
) -> tuple[dict[str, Pairs], tuple[Vocabulary, Vocabulary]]:
    """({split: pairs}, (source vocabulary, target vocabulary)); with `one`, both are the same object."""
    if given is None and data.source == GIVEN:
        raise not_given(GIVEN, "[(source, target), ...]")
    if given is None and data.source == "numbers":
        pairs = _with_held_out(data, numbers.pairs(), seed)
        both = closed((*numbers.ENGLISH, *numbers.GERMAN))
        return pairs, (both, both) if one else (closed(numbers.ENGLISH), closed(numbers.GERMAN))
    if given is None and not data.source.startswith("pairs:"):
        raise UserError(f"data.source is {data.source}, which has no sentences: give numbers or pairs:FROM-TO:FOLDER")
    found = _files(data.source) if given is None else _given(given)
    if "train" not in found:
        raise UserError(f"data: has no train split, only {', '.join(found)}; give one to train on")
    pairs = _with_held_out(data, found, seed)
    left, right = ([pair[side] for pair in pairs["train"]] for side in (0, 1))
    if one:
        both = counted([*left, *right])
        return pairs, (both, both)
    return pairs, (counted(left), counted(right))


def _given(given: Given) -> dict[str, Pairs]:
    """Pairs that were given in Python, as {split: pairs}. Raises UserError."""
    if given.class_names:
        raise UserError("class_names: texts have no classes; leave it out")
    found = given.splits(("train", "validation", "test"))
    for name, pairs in found.items():
        texts = isinstance(pairs, Sequence) and all(
            isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
            for pair in pairs
        )
        if not texts or not pairs:
            what, fault = "" if given.whole else f"{name} ", "is empty" if texts else "is no list of pairs of texts"
            raise UserError(f"data: {what}{fault}; give [(source, target), ...]")
    return {name: [(source, target) for source, target in pairs] for name, pairs in found.items()}


def _with_held_out(data: SentenceData, pairs: dict[str, Pairs], seed: int) -> dict[str, Pairs]:
    """The splits of a source, and those that it lacks, held out from train: test independently of the seed."""
    for name, share, salt in (("test", data.test, (TEST,)), ("validation", data.validation, (VALIDATION, seed))):
        if name in pairs or not share:
            continue
        train = pairs["train"]
        stay, held = hold_out(np.zeros(len(train), np.int64), share, *salt)
        if not len(held):
            raise UserError(
                f"data.{name} {share} of {len(train)} pairs leaves {name} empty: "
                "give a larger share, or 0 for no such split"
            )
        pairs = {**pairs, "train": [train[i] for i in stay], name: [train[i] for i in held]}
    order = ("train", "validation", "test", *pairs)
    return {name: pairs[name] for name in dict.fromkeys(order) if name in pairs}


_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}


def _files(source: str) -> dict[str, Pairs]:
    """The pairs of `pairs:FROM-TO:FOLDER`, as {split: pairs}. Raises UserError.

    A split is two files, such as train.FROM and train.TO (or .gz), with line i of one and line i of the other as pair
    i. Names that begin with test are read as test.
    """
    languages, _, path = source.removeprefix("pairs:").partition(":")
    left, dash, right = languages.partition("-")
    folder = Path(path).expanduser()
    if not (left and dash and right and path):
        raise UserError(f"data.source is {source}: give pairs:FROM-TO:FOLDER, such as pairs:en-de:multi30k")
    if not folder.is_dir():
        raise UserError(f"data.source {source}: there is no folder {path}; check the path")
    found: dict[str, Pairs] = {}
    for split, names in _NAMES.items():
        stems = sorted(
            {
                p.name.removesuffix(".gz").removesuffix(f".{left}")
                for p in folder.iterdir()
                if p.name.removesuffix(".gz").endswith(f".{left}")
            }
        )
        for stem in (s for s in stems if s in names or (split == "test" and s.startswith("test"))):
            one, two = (_lines(source, folder, f"{stem}.{language}") for language in (left, right))
            if len(one) != len(two):
                raise UserError(
                    f"data.source {source}: {stem} has {len(one)} lines of {left} and {len(two)} of {right}; "
                    "give as many of both, line i of one being the translation of line i of the other"
                )
            found.setdefault(split, list(zip(one, two, strict=True)))
    if not found.get("train"):
        raise UserError(
            f"data.source {source}: has no pairs in train.{left} and train.{right} (or .gz); put them there"
        )
    return found


def _lines(source: str, folder: Path, name: str) -> list[str]:
    path = folder / name if (folder / name).is_file() else folder / f"{name}.gz"
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            # Not splitlines, which would also split at characters such as U+2028.
            return file.read().decode("utf-8").removesuffix("\n").split("\n")
    except (OSError, EOFError, ValueError) as error:
        raise UserError(
            f"data.source {source}: {name} cannot be read ({error}); give UTF-8 text with one sentence per line"
        ) from error


def _check_sizes(data: SentenceData, wanted: Mapping[str, int], source: Vocabulary, target: Vocabulary) -> None:
    for name, size in (
        ("source_vocabulary", len(source)),
        ("target_vocabulary", len(target)),
        ("outputs", len(target)),
    ):
        if wanted.get(name, 0) not in (0, size):
            raise UserError(
                f"model.{name} is {wanted[name]} but data.source {data.source} has {size} ids: "
                f"give --model.{name.replace('_', '-')} 0"
            )


def _encoded(data: SentenceData, pairs: Pairs, split: str, source: Vocabulary, target: Vocabulary) -> Sentences:
    """Encode the pairs of a split. Raises UserError naming the first pair that is empty or too long."""
    longest = data.lengths[-1]
    ids = np.zeros((len(pairs), longest), np.int32), np.zeros((len(pairs), longest - 1), np.int32)
    for i, texts in enumerate(pairs):
        for side, (text, vocabulary) in enumerate(zip(texts, (source, target), strict=True)):
            found, room = len(words(text)), longest - side
            if not found or found > room:
                what = "is empty" if not found else f"has {found} words, which is more than {room}"
                raise UserError(
                    f"data.source {data.source}: {split}[{i}] {text[:40]!r} {what}; "
                    "mend it, or raise the last of --data.lengths"
                )
            ids[side][i, :found] = vocabulary.encode(text)
    return Sentences(*ids, data.lengths, data.tokens, split)
