"""ROUGE of texts: how many words, pairs of words, or words in order a text shares with its reference.

Lin 2004, as the library rouge-score computes it without stemming: words are runs of a-z and 0-9 in lower case, whatever
else a text holds stands between them, and the sentences of ROUGE-Lsum are lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import chain

NAMES = ("rouge1", "rouge2", "rouge_l", "rouge_lsum")
WORD = re.compile(r"[a-z0-9]+")


def rouge(said: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean over texts of the F1 of ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum -> {name of NAMES: from 0 to 100}."""
    each = [_scores(text, reference) for text, reference in zip(said, references, strict=True)]
    return {name: 100 * sum(column) / len(each) for name, column in zip(NAMES, zip(*each, strict=True), strict=True)}


def _scores(text: str, reference: str) -> tuple[float, ...]:
    one, other = words(text), words(reference)
    sequence = _f1(common_length(one, other), len(one), len(other))
    lines = [[found for line in whole.split("\n") if (found := words(line))] for whole in (text, reference)]
    return _overlap(one, other, 1), _overlap(one, other, 2), sequence, _of_lines(*lines)


def words(text: str) -> list[str]:
    """The words of a text as ROUGE counts them."""
    return WORD.findall(text.lower())


def _f1(shared: int, said: int, wanted: int) -> float:
    return 2 * shared / (said + wanted) if shared else 0.0


def _overlap(one: list[str], other: list[str], n: int) -> float:
    """The F1 of the runs of n words that two texts share, each as often as both have it."""
    counts = [Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (one, other)]
    return _f1((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())


def common_length(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence, by the bits of whole numbers (Hyyrö 2004)."""
    places: dict[Hashable, int] = {}
    for i, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << i
    whole = (1 << len(one)) - 1
    rest = whole
    for word in other:
        matched = rest & places.get(word, 0)
        rest = (rest + matched | rest - matched) & whole
    return len(one) - rest.bit_count()


def _of_lines(said: list[list[str]], wanted: list[list[str]]) -> float:
    """The F1 of the words of a reference's lines that are in order in some line of a text, each counted once."""
    left = [Counter(chain.from_iterable(lines)) for lines in (said, wanted)]
    totals, shared = [counts.total() for counts in left], 0
    for line in wanted:
        for place in sorted({place for other in said for place in _places(line, other)}):
            if all(counts[line[place]] > 0 for counts in left):
                shared += 1
                for counts in left:
                    counts[line[place]] -= 1
    return _f1(shared, *totals)


def _places(line: list[str], other: list[str]) -> list[int]:
    """The places in a line of one longest common subsequence with another, the one that rouge-score finds."""
    table = [[0] * (len(other) + 1)]
    for word in line:
        above, row = table[-1], [0]
        for j, its in enumerate(other):
            row.append(above[j] + 1 if word == its else max(above[j + 1], row[j]))
        table.append(row)
    found, i, j = list[int](), len(line), len(other)
    while i and j:
        if line[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            found.append(i)
        elif table[i][j - 1] > table[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return found
