"""What the logits of an image say, by the kind of the network's outputs (config/outputs.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from ...files.output import shorten

OVER = 0.5  # a label is of an image where its probability is larger
SHOWN = 3  # most labels or numbers under an image
Said = list[tuple[str, float]]  # (name, probability or value)


def most_probable(names: Sequence[str], logits: np.ndarray, top: int) -> Said:
    """The `top` most probable of classes, best first; logits float [K]."""
    probabilities = np.asarray(jax.nn.softmax(logits))
    return [(names[k], float(probabilities[k])) for k in np.argsort(-probabilities, kind="stable")[:top]]


def labels_over(names: Sequence[str], logits: np.ndarray, top: int) -> Said:
    """The labels whose own probability is over one half, the most probable first; maybe none."""
    probabilities = np.asarray(jax.nn.sigmoid(logits))
    order = np.argsort(-probabilities, kind="stable")
    return [(names[k], float(probabilities[k])) for k in order if probabilities[k] > OVER]


def all_values(names: Sequence[str], logits: np.ndarray, top: int) -> Said:
    """Every output with its value, in their order."""
    return [(name, float(value)) for name, value in zip(names, logits, strict=True)]


@dataclass(frozen=True)
class Kind:
    """How outputs of a kind are told.

    Args:
        says: (names, logits float [K], top) -> what they say.
        header: the columns of a table of them.
        ranked: whether a row of that table has a rank, the best 1.
        several: whether what is said of an image is several answers, the best first, and not one.
        written: formats of a (name, value): in a line, in a table and under an image.
        legend: what a figure shows under an image.
    """

    says: Callable[[Sequence[str], np.ndarray, int], Said]
    header: tuple[str, ...]
    ranked: bool
    several: bool
    written: tuple[str, str, str]
    legend: str

    def line(self, said: Said) -> str:
        """What is said, in a line."""
        return ", ".join(self.written[0].format(*each) for each in said) or "none"

    def plain(self, said: Said) -> tuple[str, ...]:
        """What is said alone, for other programs: labels, or numbers, are one text with tabs between them."""
        if self.several:
            return tuple(name for name, _ in said)
        return ("\t".join(name.replace("\t", "\\t") if self.ranked else f"{value:.9g}" for name, value in said),)

    def rows(self, file: str, said: Said) -> list[tuple[str | int, ...]]:
        """What is said of a file, as rows of a table; one without a name where nothing is."""
        if not said:
            return [(file, *[""] * (len(self.header) - 1))]
        return [
            (file, *([rank] if self.ranked else []), name, self.written[1].format(value))
            for rank, (name, value) in enumerate(said, 1)
        ]

    def caption(self, name: str, said: Said) -> str:
        """Two lines under an image: its name, and the first things that are said of it."""
        each = [self.written[2].format(shorten(what, 15), value) for what, value in said[:SHOWN]]
        return f"{shorten(name, 24)}\n→ {', '.join(each) or 'none'}"


PROBABILITY = ("{} ({:.1%})", "{:.6f}", "{} ({:.2f})")
TOLD = {  # by kinds of outputs; of an embedding there is nothing to say
    "class": Kind(
        most_probable, ("file", "rank", "class", "probability"), True, True, PROBABILITY,
        "predicted class (probability)",
    ),
    "set": Kind(
        labels_over, ("file", "rank", "label", "probability"), True, False, PROBABILITY,
        f"labels over {OVER} (probability)",
    ),
    "number": Kind(
        all_values, ("file", "output", "value"), False, False, ("{} {:.6g}", "{:.9g}", "{} {:.3g}"),
        "predicted numbers",
    ),
}  # fmt: skip
