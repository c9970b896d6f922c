"""Pairs of sentences as ids: opened from a source, split, and put into batches of a fixed number of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import SentenceData
from ..config.sentences import GIVEN, WORDS
from ..errors import UserError
from ..runs import array_digest, text_digest
from ..text import Tokenizer, closed, digest, kept, made, needed
from . import numbers
from .contract import Given, not_given
from .order import SHUFFLE, TEST, VALIDATION, TokenOrder, hold_out, permutation
from .pairs import FORMS, Pairs, are_in_files, read_pairs


class Sentences:
    """The n pairs of one split as ids, padded.

    Args:
        source: int32 [n, L], L = lengths[-1].
        target: int32 [n, L-1], without begin and end.
        lengths: the lengths to which sentences are padded, ascending.
        tokens: tokens of a training batch, padding included.
        title: the split's name, for messages.
        pads: what sources and targets are padded with.
        references: the targets as texts, of which translations are scored.
    """

    def __init__(
        self,
        source: np.ndarray,
        target: np.ndarray,
        lengths: Sequence[int],
        tokens: int,
        title: str,
        pads: tuple[int, int],
        references: Sequence[str] = (),
    ):
        self.source, self.target, self.lengths, self.tokens, self.title = source, target, tuple(lengths), tokens, title
        self.pads, self.references = pads, references
        # + 1: the decoder's inputs begin with a begin, and its labels end with an end.
        longest = np.maximum((source != pads[0]).sum(1), (target != pads[1]).sum(1) + 1)
        # int [n], the length that each pair is padded to.
        self.padded: np.ndarray = np.array(self.lengths)[np.searchsorted(self.lengths, longest)]

    def __len__(self) -> int:
        return len(self.source)

    def subset(self, indices: np.ndarray) -> Sentences:
        """A split of only these pairs."""
        few = self.of(self.source[indices], self.target[indices])
        few.references = [self.references[i] for i in indices] if self.references else ()
        return few

    def of(self, source: np.ndarray, target: np.ndarray) -> Sentences:
        """A split of other ids in the place of these, with the same references."""
        return Sentences(source, target, self.lengths, self.tokens, self.title, self.pads, self.references)

    def examples(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"source": int32 [k, L], "target": int32 [k, L-1]}."""
        return {"source": self.source[indices], "target": self.target[indices]}

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """{"source": int32 [B, l], "target": int32 [B, l-1]}, where l is the greatest padded length of these pairs.

        B = tokens // l: rows of padding fill the batch up, so that there is one shape per length.
        """
        length = int(self.padded[indices].max())
        fill = ((0, self.tokens // length - len(indices)), (0, 0))
        pairs = zip((self.source[indices, :length], self.target[indices, : length - 1]), self.pads, strict=True)
        source, target = (np.pad(ids, fill, constant_values=pad) for ids, pad in pairs)
        return {"source": source, "target": target}

    def name(self, i: int) -> str:
        """The name of pair i in messages."""
        return f"{self.title}[{i}]"

    @property
    def chance(self) -> float:
        """The exact match of always giving the most frequent target, the best answer that ignores the source."""
        return max(Counter(row.tobytes() for row in self.target).values()) / len(self)


@dataclass(frozen=True)
class Texts:
    """Pairs of sentences and their tokenizers, as the `Data` of a run (see contract.py)."""

    name: str
    source: Tokenizer
    target: Tokenizer
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
        """What a run keeps of the tokenizers."""
        return kept(self.source, self.target)

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
    if target.files:
        with needed("sacrebleu"):  # which chooses the best checkpoint
            import sacrebleu  # noqa: F401
    _check_sizes(data, wanted or {}, source, target)
    splits, cuts = {}, []
    for name, pairs in texts.items():
        splits[name], cut = _encoded(data, pairs, name, source, target)
        cuts += [cut] if cut else []
    identity: dict[str, Any] = {
        "name": data.source.partition(":")[0],
        "sizes": {name: len(split) for name, split in splits.items()},
        "vocabulary": digest(source, target),
        "content": text_digest([[array_digest(split.source), array_digest(split.target)] for split in splits.values()]),
    }
    remarks = tuple(cuts) + tuple(
        f"{name}: always giving the most frequent target has an exact match of {splits[name].chance:.4f}"
        for name in ("validation", "test")
        if name in splits
    )
    if data.shuffle_sources:
        train = splits["train"]
        shuffled = train.source[permutation(len(train), SHUFFLE, seed)]
        splits["train"] = train.of(shuffled, train.target)
        remarks += ("a control: the sources of train are shuffled among its targets, so they carry no information",)
    return Texts(identity["name"], source, target, splits, identity, remarks)


def open_other_pairs(
    data: SentenceData, wanted: str, source: Tokenizer, target: Tokenizer, given: Given | None
) -> tuple[str, Sentences, int, tuple[str, ...]]:
    """Pairs that a trained network is only evaluated on: (the split's name, its pairs, pairs of all splits, remarks).

    They are `given`, or in `data.source`. `wanted` is the split; empty: test, else validation, else the first. The
    tokenizers are the network's. Raises UserError.
    """
    found = _found(data, given)
    if given.whole if given is not None else [*found] == ["train"]:
        found = {"all": found["train"]}
    name = wanted or next((name for name in ("test", "validation") if name in found), next(iter(found)))
    if name not in found:
        raise UserError(f"there is no split {name!r}: data has {', '.join(found)}; choose one of them")
    pairs, cut = _encoded(data, found[name], name, source, target)
    return name, pairs, sum(map(len, found.values())), (cut,) if cut else ()


def _open_pairs(
    data: SentenceData, one: bool, seed: int, given: Given | None
) -> tuple[dict[str, Pairs], tuple[Tokenizer, Tokenizer]]:
    """({split: pairs}, (source tokenizer, target tokenizer)); with `one`, both have the same ids."""
    found = _found(data, given)
    if "train" not in found:
        raise UserError(f"data: has no train split, only {', '.join(found)}; give one to train on")
    pairs = _with_held_out(data, found, seed)
    if given is None and data.source == "numbers" and data.tokenizer == WORDS:
        both = closed((*numbers.ENGLISH, *numbers.GERMAN))
        return pairs, (both, both) if one else (closed(numbers.ENGLISH), closed(numbers.GERMAN))
    if given is not None and data.tokenizer == "unigram":
        raise UserError(
            "data.tokenizer is unigram, which no two trainings make alike to the last digit, so a run on data given in "
            "Python could not go on with it: give bpe, or the folder of a tokenizer"
        )
    left, right = ([pair[side] for pair in pairs["train"]] for side in (0, 1))
    return pairs, made(data.tokenizer, data.vocabulary, left, right, one)


def _found(data: SentenceData, given: Given | None) -> dict[str, Pairs]:
    """{split: pairs} as they were given in Python, or as `data.source` has them. Raises UserError."""
    if given is not None:
        return _given(given)
    if data.source == GIVEN:
        raise not_given(GIVEN, "[(source, target), ...]")
    if data.source == "numbers":
        return numbers.pairs()
    if not are_in_files(data.source):
        raise UserError(f"data.source is {data.source}, which has no sentences: give numbers, {FORMS}")
    return read_pairs(data.source)


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


def _check_sizes(data: SentenceData, wanted: Mapping[str, int], source: Tokenizer, target: Tokenizer) -> None:
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


def _encoded(
    data: SentenceData, pairs: Pairs, split: str, source: Tokenizer, target: Tokenizer
) -> tuple[Sentences, str]:
    """(the pairs of a split as ids, a remark where sentences were cut).

    Raises UserError naming the first sentence that is empty, or too long and not to be cut.
    """
    sides, longest = (source, target), data.lengths[-1]
    rooms = longest, longest - 1  # the decoder says an end, too
    arrays = [np.full((len(pairs), room), side.ids.pad, np.int32) for side, room in zip(sides, rooms, strict=True)]
    cut = 0
    for ids, room, tokenizer, texts in zip(arrays, rooms, sides, zip(*pairs, strict=True), strict=True):
        where = f"data.source {data.source}: {split}"
        if (empty := next((i for i, text in enumerate(texts) if not text.strip()), None)) is not None:
            raise UserError(f"{where}[{empty}] {texts[empty]!r} is empty; mend it, or leave the pair out")
        for i, found in enumerate(tokenizer.encode_all(texts)):
            if len(found) > room and not data.cut:
                raise UserError(
                    f"{where}[{i}] {texts[i][:40]!r} has {len(found)} {tokenizer.unit}, which is more than {room}; "
                    "mend it, raise the last of --data.lengths, or add --data.cut to cut all such sentences"
                )
            cut += len(found) > room
            its = tokenizer.cut(found, room) if len(found) > room else found
            ids[i, : len(its)] = its
    remark = f"{split}: {cut:,} of {2 * len(pairs):,} sentences are longer than {longest} and were cut" if cut else ""
    pads, references = (source.ids.pad, target.ids.pad), [pair[1].strip() for pair in pairs]
    return Sentences(arrays[0], arrays[1], data.lengths, data.tokens, split, pads, references), remark
