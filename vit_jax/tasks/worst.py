"""The worst texts of an evaluation: those that are least like their references, letter by letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..figures.gallery import draw_captions
from ..figures.parts import Texts
from ..files.atomic import write_text
from ..files.terminal import printable

ORDER = 6  # letters of the longest n-gram of chrF
WORST = 50
PICTURES = 24
PRINTED = 3


class Wrong(NamedTuple):
    """An example whose predicted text is none of its references."""

    number: int  # in its split
    name: str
    references: Sequence[str]
    predicted: str
    score: float  # chrF, 0 to 100


def chrf(said: str, references: Sequence[str]) -> float:
    """chrF of one text, 0 to 100 (Popović 2015, W15-3049), beta 2, as sacrebleu computes it; the best of references.

    Spaces do not count, and of the n-grams of 1 to 6 letters only those lengths that both texts have.
    """
    return max(_chrf("".join(said.split()), "".join(each.split())) for each in references)


def _chrf(said: str, reference: str) -> float:
    orders = range(1, min(ORDER, len(said), len(reference)) + 1)
    precision = recall = 0.0
    for n in orders:
        ours, theirs = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in (said, reference))
        matches = (ours & theirs).total()
        precision, recall = precision + matches / ours.total(), recall + matches / theirs.total()
    if not precision + recall:
        return 0.0
    return 100 / len(orders) * 5 * precision * recall / (4 * precision + recall)


def worst(names: Iterable[str], references: Iterable[Sequence[str]], said: Iterable[str], cased: bool) -> list[Wrong]:
    """The examples whose text is none of the references, the lowest chrF first."""

    def read(text: str) -> str:
        return text if cased else text.lower()

    found = []
    for i, (name, several, text) in enumerate(zip(names, references, said, strict=True)):
        known = [read(each) for each in several]
        if read(text) not in known:
            found.append(Wrong(i, name, several, text, chrf(read(text), known)))
    return sorted(found, key=lambda wrong: wrong.score)


def summarise_worst(wrong: Sequence[Wrong], total: int, file: str) -> tuple[str, ...]:
    """A few lines on the worst texts, for a terminal."""
    first = [f"worst: {w.name}, chrF {w.score:.1f}: {w.predicted!r}, not {w.references[0]!r}" for w in wrong[:PRINTED]]
    return (*first, f"{len(wrong):,} of {total:,} are not as in the data; {file} has the worst")


def write_worst(
    path: Path, wrong: Sequence[Wrong], sources: Sequence[str], caption: str, total: int, what: str = "translations"
) -> Texts:
    """Write a text file of the worst texts with their sources, the worst first."""
    parts = [f"The {min(len(wrong), WORST)} worst {what} by chrF (0 to 100) of each sentence; {caption}\n"]
    shown = list(zip(wrong, sources, strict=False))[:WORST]
    for w, source in shown:
        lines = [("source", source), *(("reference", text) for text in w.references), ("predicted", w.predicted)]
        parts.append(
            f"{w.name}  chrF {w.score:.1f}\n" + "".join(f"  {what:9}  {printable(text)}\n" for what, text in lines)
        )
    write_text(path, "\n".join(parts))
    return Texts(caption, total, len(wrong), [{**_row(w), "source": source} for w, source in shown])


def _row(w: Wrong) -> dict[str, Any]:
    """One of the worst texts, as `figures.parts.Texts` has them."""
    return {"name": w.name, "references": list(w.references), "said": w.predicted, "score": round(w.score, 2)}


def draw_worst(
    images: Callable[[np.ndarray], np.ndarray], wrong: Sequence[Wrong], total: int, path: Path, caption: str
) -> Texts:
    """Draw the images of the worst captions; images: of their numbers, int [k]."""
    worst = wrong[:PICTURES]
    shown = images(np.array([w.number for w in worst], int))
    title = f"Worst captions by chrF: {len(worst)} of {len(wrong):,} that are not as in the data, of {total:,}"
    references, said = [w.references[0] for w in worst], [w.predicted for w in worst]
    draw_captions(shown, references, said, path, title, caption)
    rows = [{**_row(w), "image": image} for w, image in zip(worst, shown, strict=True)]
    return Texts(caption, total, len(wrong), rows)
