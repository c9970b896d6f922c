"""Scores of captions against several references: BLEU-4 and CIDEr-D, on words in lower case without punctuation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ...text.vocabulary import words

Words = Sequence[str]
WORDS = "CIDEr-D and BLEU-4 count words in lower case, without punctuation; not those of the PTB tokenizer"
LONGEST = 4
SPREAD = 6.0  # standard deviation of the Gaussian by which CIDEr-D takes other lengths


def plain(text: str) -> list[str]:
    """The words of a text, in lower case, without punctuation."""
    return [word for word in words(text) if word[0].isalnum() or word[0] == "_"]


def _grams(said: Words, n: int) -> Counter[tuple[str, ...]]:
    """How often each sequence of n words occurs."""
    return Counter(tuple(said[i : i + n]) for i in range(len(said) - n + 1))


def bleu4(said: Sequence[Words], references: Sequence[Sequence[Words]]) -> float:
    """BLEU of a corpus, 0 to 100, with up to four words (Papineni et al. 2002), not smoothed.

    The length that counts of several references is the closest, the shorter of two. 0 where nothing of four words is
    right.
    """
    right, all_ = [0] * LONGEST, [0] * LONGEST
    length = expected = 0
    for one, several in zip(said, references, strict=True):
        length += len(one)
        expected += min((abs(len(each) - len(one)), len(each)) for each in several)[1]
        for n in range(LONGEST):
            found, most = _grams(one, n + 1), Counter[tuple[str, ...]]()
            for each in several:
                most |= _grams(each, n + 1)
            right[n] += (found & most).total()
            all_[n] += found.total()
    if not all(right):
        return 0.0
    mean = sum(math.log(a / b) for a, b in zip(right, all_, strict=True)) / LONGEST
    return 100 * math.exp(mean + min(0.0, 1 - expected / length))


def cider_d(said: Sequence[Words], references: Sequence[Sequence[Words]]) -> float:
    """CIDEr-D of a corpus, 0 to 10 (Vedantam et al. 2015, arXiv 1411.5726), as the code of coco-caption computes it.

    The weight of an n-gram is its count times log(N / images in whose references it occurs), N the number of images;
    lengths are compared in sequences of two words.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for several in references:
        counts.update({gram for each in several for n in range(LONGEST) for gram in _grams(each, n + 1)})
    total = math.log(len(said))

    def weights(text: Words) -> list[dict[tuple[str, ...], float]]:
        return [
            {gram: count * (total - math.log(max(1, counts[gram]))) for gram, count in _grams(text, n + 1).items()}
            for n in range(LONGEST)
        ]

    scores = []
    for one, several in zip(said, references, strict=True):
        mine, each_score = weights(one), []
        for each in several:
            theirs, apart = weights(each), max(len(one) - 1, 0) - max(len(each) - 1, 0)
            alike = [_cosine(a, b) for a, b in zip(mine, theirs, strict=True)]
            each_score.append(sum(alike) / LONGEST * math.exp(-(apart**2) / (2 * SPREAD**2)))
        scores.append(10 * sum(each_score) / len(each_score))
    return sum(scores) / len(scores)


def _cosine(a: dict[tuple[str, ...], float], b: dict[tuple[str, ...], float]) -> float:
    """The cosine of two vectors, of which the first counts no more of an n-gram than the second has."""
    product = sum(min(value, b[gram]) * b[gram] for gram, value in a.items() if gram in b)
    size = math.hypot(*a.values()) * math.hypot(*b.values())
    return product / size if size else 0.0
