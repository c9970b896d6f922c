"""Parts of words as ids, by the library `tokenizers`: a tokenizer.json of Hugging Face, and our own BPE and unigram."""

from __future__ import annotations

import base64
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..config.outputs import SPECIALS
from ..errors import UserError, report_damage, require
from ..files.lines import quote
from .tokenizer import Ids, Tokenizer

PIECES = "tokenizer.json"
# GPT-2's, but for combining marks and joiners, which belong to the letter before them.
WORD = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}[\p{L}\p{M}\x{200C}\x{200D}]*| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MOST = 1 << 24  # letters of a text as its tokenizer normalises it
LONGEST = 1 << 16  # letters of a letter that is normalised, and of an id that is decoded
UNKEPT = "\N{REPLACEMENT CHARACTER}"  # what a part of a character's bytes decodes to


class Pieces(Tokenizer):
    """One side of a tokenizer.json.

    `tokenizer` is of the library. What it appends to a target is left to the loss, and where the first token of a
    target is forced, as the language is, that stands in place of the tokenizer's own beginning, which is that of a
    source. `kept` and `files` are what a run keeps of it.
    """

    def __init__(self, tokenizer: Any, ids: Ids, target: bool, kept: Any, files: Mapping[str, bytes]):
        self.tokenizer, self.ids, self.target, self.kept, self.files = tokenizer, ids, target, kept, files
        self.growth = growth(tokenizer.normalizer)
        around, one = self.ids_of(["", "a"])
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(around, one, strict=False))
        before = len(list(same))
        after = around[before:]  # what stands behind any sentence
        self.dropped = len(after) if target and after[:1] == [ids.end] else 0
        self.after = [] if self.dropped else after
        forced = ids.forced_begin if target else None
        self.begin, self.skipped = ([], 0) if forced is None else ([forced], before)
        upper, lower = self.ids_of(["A b", "a b"])
        self.cased = upper != lower

    def number(self, token: str) -> int | None:
        return cast(int | None, self.tokenizer.token_to_id(token))

    def encode(self, text: str) -> np.ndarray:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        found = [self.begin + ids[self.skipped : len(ids) - self.dropped] for ids in self.ids_of(texts)]
        return [check_ids(text, ids, self) for text, ids in zip(texts, found, strict=True)]

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of the library for each text."""
        for text in texts:
            if len(text) * self.growth > MOST:
                what = f"may have more than {MOST:,} letters as its tokenizer normalises it"
                raise UserError(f"the text {quote(text)}", what, "give a shorter one, or another tokenizer")
        whose = f"the text {quote(texts[0])}" if len(texts) == 1 else "a text"
        with report_damage(whose, "cannot be split by its tokenizer", "leave it out, or give another tokenizer"):
            return [found.ids for found in self.tokenizer.encode_batch(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        return self.text_of(self.ids.until_end(ids))

    def text_of(self, ids: list[int], skip_special: bool = True) -> str:
        """The text of the library for ids."""
        with report_damage("a text", "cannot be made of its ids by the tokenizer", "give another tokenizer"):
            return cast(str, self.tokenizer.decode(ids, skip_special_tokens=skip_special))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The text of each id; of one that is only a part of a character, its name in the vocabulary."""
        return [self.token(int(i)) for i in ids]

    def token(self, i: int) -> str:
        """The text of an id."""
        text, name = self.text_of([i], skip_special=False), self.tokenizer.id_to_token(i)
        return text.strip() if text.strip() and UNKEPT not in text else name or str(i)


def check_ids(text: str, ids: Sequence[int], side: Any) -> np.ndarray:
    """The ids of a text as an array -> int32 [N]."""
    if not text.strip() or not ids:
        raise UserError(f"the text {quote(text)} has no words", remedy="give at least one")
    if side.ids.pad in ids:
        (token,) = side.tokens([side.ids.pad])
        raise UserError(
            f"the text {quote(text)} holds {quote(token)}, by which the tokenizer pads sentences", remedy="remove that"
        )
    return np.array(ids, np.int32)


def open_pieces(content: bytes, where: str, literal: bool = False) -> Any:
    """The tokenizer in a tokenizer.json."""
    with require("tokenizers"):
        from tokenizers import Tokenizer
    with report_damage(where):
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = literal
        if not tokenizer.get_vocab():
            raise ValueError("it has no vocabulary")
        check_growth(tokenizer)
        tokenizer.encode("a")  # what cannot encode this is of no use for any text
    return tokenizer


def growth(part: Any) -> int:
    """How many times as long a normalizer or a decoder of the library may make a text, at most."""
    return math.prod(map(_growth, _steps(json.loads(part.__getstate__())))) if part is not None else 1


def check_growth(tokenizer: Any) -> None:
    """Raise ValueError where a letter or an id may become a text without end."""
    piece = max(map(len, tokenizer.get_vocab()))
    for part, length in ((tokenizer.normalizer, 1), (tokenizer.decoder, piece)):
        if (times := growth(part)) * length > LONGEST:
            raise ValueError(f"it may make a text {times:,} times as long")


def _steps(stated: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of a sequence of parts, itself of such."""
    for each in stated.get("normalizers") or stated.get("decoders") or ():
        yield from _steps(each)
    yield stated


def _growth(stated: Mapping[str, Any]) -> int:
    if stated["type"] == "Replace":
        return max(1, len(stated["content"]))
    if stated["type"] == "Precompiled":  # a tree of so many bytes, then what it puts in place of letters
        charsmap = base64.b64decode(stated["precompiled_charsmap"])
        return max(map(len, charsmap[4 + int.from_bytes(charsmap[:4], "little") :].split(b"\0")), default=1) or 1
    return {"NFKC": 18, "NFKD": 18, "NFD": 4, "NFC": 3, "ByteLevel": 4}.get(stated["type"], 1)


def set_template(tokenizer: Any, before: Sequence[str], after: Sequence[str]) -> None:
    """Let these tokens stand around every text."""
    from tokenizers import processors

    specials = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys([*before, *after])]
    template = [*before, "$A", *after]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=specials)


def end_words(tokenizer: Any) -> None:
    """Let the texts of CLIP's ids have spaces where words end, which its tokenizer.json does not say."""
    from tokenizers import decoders

    spaces = [decoders.Replace("</w>", " "), decoders.Strip(" ", 1 << 20, 1 << 20)]
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *spaces])


def train_pieces(kind: str, sentences: Iterator[str], size: int) -> dict[str, bytes]:
    """The files of a new tokenizer -> {name: content}.

    Its alphabet are all bytes, so every text has ids, and `decode` gives back the text exactly, but in Unicode's form
    NFC and without white space around it. The same sentences give the same BPE; a unigram's scores differ in their last
    digits from one training to the next. BPE: Sennrich et al. 2016 (arXiv 1508.07909), on bytes as in Radford et al.
    2019; unigram: Kudo 2018 (arXiv 1804.10959).
    """
    with require("tokenizers"):
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    specials = list(SPECIALS[: SPECIALS.index("<unk>")])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    settings: dict[str, Any] = dict(vocab_size=size, special_tokens=specials, initial_alphabet=alphabet)
    model, trainer = {
        "bpe": (models.BPE, lambda: trainers.BpeTrainer(min_frequency=2, show_progress=False, **settings)),
        "unigram": (models.Unigram, lambda: trainers.UnigramTrainer(show_progress=False, **settings)),
    }[kind]
    tokenizer = Tokenizer(model())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip(), normalizers.Prepend(" ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.train_from_iterator(sentences, trainer())
    pad, begin, end = specials
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{"pad_token": pad, "bos_token": begin, "eos_token": end},
        "split_special_tokens": True,  # so they mean nothing in texts
        "clean_up_tokenization_spaces": False,
    }
    return {PIECES: tokenizer.to_str().encode(), "tokenizer_config.json": json.dumps(config, indent=1).encode()}
