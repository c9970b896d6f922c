"""Sentences as ids: words, vocabularies and special ids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from .config import SPECIALS, nearest
from .errors import UserError

PAD, BOS, EOS, UNKNOWN = range(4)  # padding, begin of sentence, end of sentence, unknown word (open vocabularies only)


def words(text: str) -> list[str]:
    """The words of a sentence, in lower case; each punctuation mark is a word."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


class Vocabulary:
    """Words and their ids: `entries[i]` is the word of id i, the special entries first.

    An open vocabulary has <unk>, and encodes every unknown word as that; a closed one refuses unknown words.
    """

    def __init__(self, entries: Sequence[str]):
        self.entries = tuple(entries)
        self.open = self.entries[UNKNOWN : UNKNOWN + 1] == SPECIALS[UNKNOWN:]
        self._ids = {word: i for i, word in enumerate(self.entries)}

    def __len__(self) -> int:
        return len(self.entries)

    def encode(self, text: str) -> np.ndarray:
        """The ids of a sentence, int32 [N]. Raises UserError if it has no words, or, without <unk>, unknown words."""
        found = words(text)
        if not found:
            raise UserError(f"the text {text!r} has no words: give at least one")
        if not self.open and (unknown := [word for word in found if word not in self._ids]):
            hint = nearest(unknown[0], [word for word in self.entries if word not in SPECIALS])
            raise UserError(f"the text {text!r} has the word {unknown[0]!r}, which is not in the vocabulary{hint}")
        return np.array([self._ids.get(word, UNKNOWN) for word in found], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of ids, up to the first EOS or PAD."""
        found = []
        for i in ids:
            if i in (PAD, EOS):
                break
            found.append(self.entries[int(i)])
        return " ".join(found)


def closed(words: Iterable[str]) -> Vocabulary:
    """The closed vocabulary of these words, in this order without repetitions."""
    return Vocabulary((*SPECIALS[:UNKNOWN], *dict.fromkeys(words)))


def counted(sentences: Iterable[str], least: int = 2) -> Vocabulary:
    """The open vocabulary of the words that occur at least `least` times, the most frequent first, then by spelling.

    With `least` above 1 rare words are <unk> in training, too, so that the embedding of <unk> is trained.
    """
    counts = Counter(word for sentence in sentences for word in words(sentence))
    frequent = sorted((word for word, n in counts.items() if n >= least), key=lambda word: (-counts[word], word))
    return Vocabulary((*SPECIALS, *frequent))
