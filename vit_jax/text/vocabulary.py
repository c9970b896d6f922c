"""Words as ids: the vocabularies of `numbers`, of files without another tokenizer, and of the course cs231n."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..config.hints import nearest
from ..config.outputs import SPECIALS
from ..errors import UserError
from ..files.lines import quote
from .tokenizer import Ids, Tokenizer

_PAD, _BEGIN, _END, _UNKNOWN = range(4)  # the places of SPECIALS
LEAST = 2  # times that a word has to occur; those that occur once are <unk>, so that its embedding is trained
MARKS_APART = "the words of this run, made by an older version, end before combining marks: it can say no word with one"
COURSE = ("<NULL>", "<START>", "<END>", "<UNK>")  # their names in cs231n's captions, where they may have any ids


def words(text: str, apart: bool = False) -> list[str]:
    """The words of a sentence, in lower case; each punctuation mark is a word."""
    return (re.compile(r"\w+|[^\w\s]") if apart else _words()).findall(text.lower())


@functools.cache
def _words() -> re.Pattern[str]:
    """A word, or any other character, with the marks behind it."""
    marks = [c for c in map(chr, (*range(0x20000), *range(0xE0000, 0xE0200))) if is_mark(c)]
    low, high = (re.escape("".join(c for c in marks if (c > "\uffff") is above)) for above in (False, True))
    mark = rf"(?:[{low}]|(?=[\U00010000-\U0010ffff])[{high}])"  # apart, as Python searches sets of both slowly
    return re.compile(rf"\w+(?:{mark}+\w*)*|[^\w\s]{mark}*")


def is_mark(character: str) -> bool:
    """Whether a character belongs to the one before it. The zero width space, between words, does not."""
    kind = unicodedata.category(character)
    return kind[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff" or (kind == "Cf" and character != "\u200b")


class Vocabulary(Tokenizer):
    """Words and their ids: `entries[i]` is the word of id i, the special entries first.

    An open vocabulary has <unk>, and encodes every unknown word as that; a closed one refuses unknown words. Entries
    that have all the names of COURSE are open, and these are their special ones, wherever they stand.

    `apart` as of `words`: None where the entries say it, for only vocabularies of the first runs hold marks alone.
    """

    unit = "words"
    cased = False
    after: Sequence[int] = ()

    def __init__(self, entries: Sequence[str], apart: bool | None = None):
        self.entries = tuple(entries)
        self.apart = splits_marks(entries) if apart is None else apart
        self.remark = MARKS_APART if self.apart else ""
        self._ids = {word: i for i, word in enumerate(self.entries)}
        of_course = self._ids.keys() >= {*COURSE}
        self.open = of_course or self.entries[_UNKNOWN : _UNKNOWN + 1] == SPECIALS[_UNKNOWN:]
        pad, begin, end, unknown = map(self._ids.__getitem__, COURSE) if of_course else (_PAD, _BEGIN, _END, _UNKNOWN)
        self.ids = Ids(pad, begin, end, unknown if self.open else None, banned=(pad, begin))
        self.kept = list(self.entries)
        self.files: Mapping[str, bytes] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def number(self, token: str) -> int | None:
        return self._ids.get(token)

    def encode(self, text: str) -> np.ndarray:
        found = words(text, self.apart)
        if not found:
            raise UserError(f"the text {quote(text)} has no words", remedy="give at least one")
        if not self.open and (unknown := [word for word in found if word not in self._ids]):
            hint = nearest(unknown[0], [word for word in self.entries if word not in SPECIALS])
            lacks = f"has the word {quote(unknown[0])}, which is not in the vocabulary{hint}"
            raise UserError(f"the text {quote(text)} {lacks}")
        return np.array([self._ids.get(word, self.ids.unknown) for word in found], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """The words of ids, up to the first end or padding, with spaces between them."""
        return " ".join(self.tokens(self.ids.until_end(ids)))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.entries[int(i)] for i in ids]

    def compared(self, text: str) -> str:
        """The words of a text, with spaces between them."""
        return " ".join(words(text))


def splits_marks(entries: Iterable[str]) -> bool:
    """Whether words are those of a run made when marks were words of their own."""
    return any(len(entry) == 1 and is_mark(entry) for entry in entries)


def closed_vocabulary(words: Iterable[str]) -> Vocabulary:
    """The closed vocabulary of these words, in this order without repetitions."""
    return Vocabulary((*SPECIALS[:_UNKNOWN], *dict.fromkeys(words)))


def count_words(sentences: Iterable[str], apart: bool = False) -> Vocabulary:
    """The open vocabulary of the words that occur often, the most frequent first, then by spelling."""
    counts = Counter(word for sentence in sentences for word in words(sentence, apart))
    often = (word for word, n in counts.items() if n >= LEAST and (apart or not splits_marks([word])))
    return Vocabulary((*SPECIALS, *sorted(often, key=lambda word: (-counts[word], word))), apart)
