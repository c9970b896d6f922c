"""Sentences as ids: words, vocabularies, and the ids that are no words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from .config import SPECIALS, nearest
from .errors import UserError

PAD, BOS, EOS, UNKNOWN = range(4)  # padding, begin, end, and (in an open vocabulary) any other word


def words(text: str) -> list[str]:
    """A sentence's words in lower case; punctuation marks are words of their own."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


class Vocabulary:
    """Words and their ids. `entries` lists all ids in order, the special ones first; open where <unk> is one of them."""

    def __init__(self, entries: Sequence[str]):
        self.entries = tuple(entries)
        self.open = self.entries[UNKNOWN : UNKNOWN + 1] == SPECIALS[UNKNOWN:]
        self._ids = {word: i for i, word in enumerate(self.entries)}

    def __len__(self) -> int:
        return len(self.entries)

    def encode(self, text: str) -> np.ndarray:
        """int32 [N]: the ids of a sentence. Raises UserError on an empty one, and on an unknown word where the vocabulary is closed."""
        found = words(text)
        if not found:
            raise UserError(f"the text {text!r} has no words: give at least one")
        if not self.open and (strange := [word for word in found if word not in self._ids]):
            raise UserError(
                f"the text {text!r} has the word {strange[0]!r}, which is not in the vocabulary{nearest(strange[0], self._known())}"
            )
        return np.array([self._ids.get(word, UNKNOWN) for word in found], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of some ids, up to the end or the first padding."""
        found = []
        for i in ids:
            if i in (PAD, EOS):
                break
            found.append(self.entries[int(i)])
        return " ".join(found)

    def _known(self) -> list[str]:
        return [word for word in self.entries if word not in SPECIALS]


def closed(words: Iterable[str]) -> Vocabulary:
    """The vocabulary of these words, in this order, and no others."""
    return Vocabulary((*SPECIALS[:UNKNOWN], *dict.fromkeys(words)))


def counted(sentences: Iterable[str], least: int = 2) -> Vocabulary:
    """The words that occur at least so often, the most frequent first (then by spelling); all others are <unk>.

    With `least` above 1 the rarest words are <unk> in training too, so that its embedding is learnt.
    """
    counts = Counter(word for sentence in sentences for word in words(sentence))
    kept = sorted((word for word, n in counts.items() if n >= least), key=lambda word: (-counts[word], word))
    return Vocabulary((*SPECIALS, *kept))
