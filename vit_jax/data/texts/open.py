"""Pairs of sentences, or texts to corrupt: opened from a source, split, and encoded."""

from __future__ import annotations

import contextlib
import importlib.metadata
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...config.outputs import APART, TRAINED, WORDS
from ...errors import Field, UserError, require
from ...files.digests import text_digest
from ...plugins import CORRUPTIONS
from ...text.record import digest, make_tokenizers
from ...text.spoken import prefix_of
from ...text.tokenizer import Tokenizer
from ...text.vocabulary import closed_vocabulary
from ..base import GivenData, Other, choose_split, not_given
from ..items import source_named
from ..order import SHUFFLE, hold_out, lacking, permutation
from . import numbers
from .config import GIVEN, TEXTS, SentenceData
from .corpus import (
    Corpus,
    Encoder,
    TextEncoder,
    build_corpus,
    corpus_folder,
    cut_remark,
    find_corpus,
    link_corpus,
)
from .pairs import FORMS, Chosen, InFiles, InTexts, Pairs, are_in_files, find_pairs_of_items, read_pairs
from .sentences import Flat, Sentences, Texts, gather_sentences

SPLITTING = 2  # raised with each change of how words are split, after which corpora in the cache are others


def open_sentences(
    data: SentenceData,
    *,
    one_vocabulary: bool = False,
    wanted: Mapping[str, int] | None = None,
    seed: int = 0,
    given: GivenData | None = None,
) -> Texts:
    """Open, check and split pairs of sentences."""
    texts, (source, target), corpora = _open_pairs(data, one_vocabulary, seed, given)
    told = read_pairs(data.source)["train"].remarks if given is None and are_in_files(data.source) else ()
    if target.files:
        with require("sacrebleu"):  # which chooses the best checkpoint
            import sacrebleu  # noqa: F401
    _check_sizes(data, wanted or {}, source, target)
    splits, cuts, content = {}, [], []
    for name, pairs in texts.items():
        found = corpora.get(name) or _encode(data, pairs, source, target, seed)
        splits[name] = _make_split(data, pairs, name, found, seed)
        cuts += [cut] if (cut := cut_remark(name, found.cut, len(pairs), data.lengths[-1])) else []
        content.append([*found.digests])
    identity: dict[str, Any] = {
        "name": data.source.partition(":")[0],
        "sizes": {name: len(split) for name, split in splits.items()},
        "vocabulary": digest(source, target),
        "content": text_digest(content),
    }
    measured = [name for name in ("validation", "test") if name in splits and data.corrupt == "none"]
    remarks = (*told, *cuts)
    for name in measured:
        chance = splits[name].chance
        remarks += (f"{name}: always giving the most frequent target has an exact match of {chance:.4f}",)
    if data.shuffle_sources:
        train = splits["train"]
        shuffled = train.flat_source.take(permutation(len(train), SHUFFLE, seed))
        splits["train"] = train.of(shuffled, train.flat_target)
        remarks += ("a control: the sources of train are shuffled among its targets, so they carry no information",)
    return Texts(source, target, splits=splits, identity=identity, remarks=remarks)


def open_other_pairs(
    data: SentenceData, wanted: str, source: Tokenizer, target: Tokenizer, given: GivenData | None
) -> Other:
    """Pairs of sentences that a trained network is only evaluated on."""
    found = _find(data, given)
    if given.whole if given is not None else [*found] == ["train"]:
        found = {"all": found["train"]}
    name = choose_split("data", found, wanted)
    pairs = found[name]
    data = data if isinstance(pairs, InTexts) else replace(data, corrupt="none")
    corpus = _encode(data, pairs, source, target, 0)
    told = pairs.remarks if isinstance(pairs, InFiles) else ()
    cut = cut_remark(name, corpus.cut, len(pairs), data.lengths[-1])
    split = _make_split(data, pairs, name, corpus, 0)
    return Other(name, split, sum(map(len, found.values())), (*told, *filter(None, [cut])))


def _open_pairs(
    data: SentenceData, one: bool, seed: int, given: GivenData | None
) -> tuple[dict[str, Pairs], tuple[Tokenizer, Tokenizer], dict[str, Corpus]]:
    """({split: pairs}, both tokenizers, with `one` of the same ids, {split: its ids} where they are in the cache)."""
    found = _find(data, given)
    if "train" not in found:
        raise UserError("data", f"has no train split, only {', '.join(found)}", "give one to train on")
    pairs = _with_held_out(data, found, seed)
    if given is None and data.source == "numbers" and data.tokenizer == WORDS:
        both = closed_vocabulary((*numbers.ENGLISH, *numbers.GERMAN))
        apart = closed_vocabulary(numbers.ENGLISH), closed_vocabulary(numbers.GERMAN)
        return pairs, (both, both) if one else apart, {}
    if given is not None and data.tokenizer == "unigram":
        raise UserError(
            Field("data.tokenizer"),
            "is unigram, which no two trainings make alike to the last digit, so a run on data given in Python could "
            "not go on with it",
            "give bpe, or the folder of a tokenizer",
        )
    train = pairs["train"]

    def tokenizers() -> tuple[Tokenizer, Tokenizer]:
        left, right = (data.prefix + source for source, _ in train), map(operator.itemgetter(1), train)
        return make_tokenizers(data.tokenizer, data.vocabulary, left, right, one, data.spoken, data.task)

    files = found["train"]
    if not isinstance(files, InFiles | InTexts):
        return pairs, tokenizers(), {}
    # What decides the ids of train. A tokenizer that is trained is decided by the same.
    own = None if data.tokenizer in (WORDS, APART, *TRAINED) else tokenizers()
    kind = [data.tokenizer, data.vocabulary, SPLITTING] if own is None else digest(*own)
    held = {name: getattr(data, name) for name in ("test", "validation") if name in pairs and name not in found}
    key = {"tokenizer": kind, "held": held, "seed": seed if held else 0, "one": one}
    key |= _cache_key(data, files, own[0] if own else None, seed)
    corpus, sides = _open_cached(data, train, key, (lambda: own) if own is not None else tokenizers, seed)
    found_there = {"train": corpus}
    for name in held if isinstance(files, InTexts) else ():  # pairs are in memory anyway, as references
        found_there[name], _ = _open_cached(data, pairs[name], {**key, "split": name}, lambda: sides, seed)
    return pairs, sides, {name: each for name, each in found_there.items() if each is not None}


def _cache_key(data: SentenceData, files: InFiles | InTexts, own: Tokenizer | None, seed: int) -> dict[str, Any]:
    """What decides the ids of train besides the tokenizer and what is held out."""
    key = {"form": data.source.partition(":")[0], "files": files.digests, "longest": data.lengths[-1], "cut": data.cut}
    key |= {"versions": _versions()}
    if prefix := prefix_of(data.prefix, data.task, own.files if own else {}):
        key |= {"prefix": prefix}
    if isinstance(files, InTexts):
        assert own is not None  # no other has sentinels
        key |= {"longest": _corruption(data, own, seed)[1]}
    return key


def _open_cached(
    data: SentenceData,
    train: Pairs,
    key: Mapping[str, Any],
    tokenizers: Callable[[], tuple[Tokenizer, Tokenizer]],
    seed: int,
) -> tuple[Corpus | None, tuple[Tokenizer, Tokenizer]]:
    """(the corpus of train in the cache, its tokenizers); without the corpus where it cannot be written there."""
    folder = corpus_folder(key)
    corpus = find_corpus(folder)
    if corpus is None:
        sides = tokenizers()
        try:
            build_corpus(folder, sides, _encoder(data, train, *sides, seed), lambda *both: _digests(data, sides, *both))
        except OSError:  # a full disk, or a home that cannot be written: then all is in memory
            return None, sides
        corpus = find_corpus(folder)
        if corpus is None:
            return None, sides
    if data.tokenizer in TRAINED:
        # A run keeps the tokenizer that was trained for it, and when it goes on looks for what that has encoded.
        link_corpus(corpus_folder({**key, "tokenizer": digest(*corpus.sides)}), folder)
    return corpus, corpus.sides


def _versions() -> list[str]:
    """The versions of what makes ids of texts."""
    found = []
    for name in ("vit-jax", "tokenizers", "sentencepiece"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def _find(data: SentenceData, given: GivenData | None) -> Mapping[str, Pairs]:
    """{split: pairs} as they were given in Python, or as `data.source` has them. Raises UserError."""
    if given is not None:
        return _read_given(given)
    if data.source == GIVEN:
        raise not_given(GIVEN, "[(source, target), ...]")
    if data.source == "numbers":
        return numbers.pairs()
    if source_named(data.source):
        return find_pairs_of_items(data.source)
    if data.source.startswith(TEXTS):
        return {"train": InTexts(data.source)}
    if not are_in_files(data.source):
        raise UserError(Field("data.source"), f"is {data.source}, which has no sentences", f"give numbers, {FORMS}")
    return read_pairs(data.source)


def _read_given(given: GivenData) -> dict[str, Pairs]:
    """Pairs that were given in Python, as {split: pairs}. Raises UserError."""
    if given.class_names:
        raise UserError("class_names", "texts have no classes", "leave it out")
    found = given.splits()
    out: dict[str, Pairs] = {}
    for name, value in found.items():
        sequence = hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, str)
        pairs = [_pair(value[i]) for i in range(len(value))] if sequence else []
        if not pairs or None in pairs:
            what, fault = "" if given.whole else f"{name} ", "is no list of pairs of texts" if pairs else "is empty"
            fault = fault if sequence else "is no list of pairs of texts"
            raise UserError("data", f"{what}{fault}", "give [(source, target), ...]")
        out[name] = [pair for pair in pairs if pair]
    return out


def _pair(given: Any) -> tuple[str, str] | None:
    """A pair of texts that was given as two, or as a dict with source and target, also within `translation`."""
    if isinstance(given, Mapping):
        inside = given.get("translation", given)
        given = [inside[side] for side in ("source", "target") if side in inside]
        given = list(inside.values()) if not given and len(inside) == 2 else given
    if isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(text, str) for text in given):
        return given[0], given[1]
    return None


def _with_held_out(data: SentenceData, pairs: Mapping[str, Pairs], seed: int) -> dict[str, Pairs]:
    """The splits of a source, and those that it lacks, held out from train: test independently of the seed."""
    for name, share, salt in lacking(data, [*pairs], seed):
        train = pairs["train"]
        _, held = hold_out(np.zeros(len(train), np.int64), share, *salt)
        if not len(held):
            for _ in train:  # a file that has other than pairs is said to have that first
                pass
            raise UserError(
                Field(f"data.{name}"),
                f"{share} of {len(train)} pairs leaves {name} empty",
                "give a larger share, or 0 for no such split",
            )
        mask = np.zeros(len(train), bool)
        mask[held] = True
        pairs = {**pairs, "train": Chosen(train, ~mask), name: Chosen(train, mask)}
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
                Field(f"model.{name}"),
                f"is {wanted[name]} but data.source {data.source} has {size} ids",
                f"give `model.{name} 0`",
            )


def _corruption(data: SentenceData, source: Tokenizer, seed: int) -> tuple[Any, int]:
    """(the corruption of a run, the most tokens of a text). Raises UserError."""
    found = CORRUPTIONS[data.corrupt].load()(data, source, seed)
    return found, found.longest(data.lengths[-1], len(source.after))


def _encoder(data: SentenceData, pairs: Pairs, source: Tokenizer, target: Tokenizer, seed: int) -> Encoder:
    """What goes through a split of pairs, or of texts."""
    if data.corrupt == "none":
        return Encoder(data, pairs, source, target)
    return TextEncoder(data, pairs, source, target, _corruption(data, source, seed)[1])


def _encode(data: SentenceData, pairs: Pairs, source: Tokenizer, target: Tokenizer, seed: int) -> Corpus:
    """The pairs or texts of a split as ids, in memory. Raises UserError as `Encoder` does."""
    encoder = _encoder(data, pairs, source, target, seed)
    rows = [*encoder]
    flat = [
        gather_sentences((row for some in rows for row in some[side]), len(tokenizer))
        for side, tokenizer in enumerate((source, target))
    ]
    sides = source, target
    return Corpus(sides, flat[0], flat[1], encoder.cut, _digests(data, sides, *flat))


def _digests(data: SentenceData, sides: tuple[Tokenizer, Tokenizer], source: Flat, target: Flat) -> tuple[str, str]:
    """What identifies the ids of a split: the digests of the padded arrays of both sides."""
    longest = max(data.lengths[-1], int(source.lengths.max(initial=0)))
    return source.digest(longest, sides[0].ids.pad), target.digest(longest - 1, sides[1].ids.pad)


def _make_split(data: SentenceData, pairs: Pairs, name: str, corpus: Corpus, seed: int) -> Sentences:
    source, target = corpus.sides
    pads = source.ids.pad, target.ids.pad
    if data.corrupt != "none":
        corruption, _ = _corruption(data, source, seed)
        denoised: Sentences = corruption.split(corpus.source, source.after, data.lengths, data.tokens, name, pads)
        return denoised

    def texts() -> list[str]:
        return [text.strip() for _, text in pairs]

    return Sentences(corpus.source, corpus.target, data.lengths, data.tokens, name, pads, texts)
