"""The base class of what the outputs of a network of images mean: how they are trained, scored, told and drawn.

All that differs between classes, sets of labels and numbers in a task, its predictor and its pictures is in one
subclass for each; what differs in their data is in data/images/labels.py. B is the number of images of a batch, n that
of a split, K that of outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jax import Array

from ...config.outputs import UNSTATED, Outputs
from ...config.run import LossConfig, RunConfig
from ...figures.parts import Part
from ...files.output import shorten
from ...files.terminal import printable
from ..base import Batch, Evaluation
from .score import Calibration

SHOWN = 3
Said = list[tuple[str, float]]  # (name, probability or value)


@dataclass(frozen=True)
class Kind:
    """What K outputs mean. Outputs that nothing can be told of, an embedding, are of this class itself."""

    outputs: Outputs = UNSTATED  # with a name for each, and with what the training part has decided
    settings: LossConfig = field(default_factory=LossConfig)
    weights: tuple[float, ...] = ()  # of the loss, one for each output; empty: all are 1
    log_prior: tuple[float, ...] = ()  # added to logits in training; empty: nothing is
    alike: bool = False  # whether training lets uneven classes count alike

    # How answers are told: the columns of a table of them; whether a row has a rank, the best 1; whether what is said
    # of an image is several answers, the best first, and not one; the formats of a (name, value) in a line, in a table
    # and under an image; and what a figure shows under an image.
    header: ClassVar[tuple[str, ...]] = ()
    ranked: ClassVar[bool] = False
    several: ClassVar[bool] = False
    written: ClassVar[tuple[str, str, str]] = ("{} ({:.1%})", "{:.6f}", "{} ({:.2f})")
    legend: ClassVar[str] = ""
    calibrated: ClassVar[tuple[str, ...]] = ()  # what validation decides of how outputs are read
    truth: ClassVar[str] = ""  # what a figure calls that which is right
    no_top: ClassVar[str] = ""  # why there is no number of answers to choose
    has_probabilities: ClassVar[bool] = True  # `values` are of 0 to 1

    @property
    def selection_metric(self) -> tuple[str, int]:
        """The metric that selects the best checkpoint: see Task.selection_metric."""
        return "loss", -1

    @property
    def has_answers(self) -> bool:
        """Whether there is anything to tell of the outputs."""
        return bool(self.header)

    # Training.

    @classmethod
    def balanced(
        cls, run: RunConfig, outputs: Outputs, labels: np.ndarray
    ) -> tuple[dict[str, list[float]], tuple[str, ...]]:
        """What a run's loss needs of the labels of its training part, and remarks on these.

        Returns (entries of metadata, loss_weights and log_prior, as far as they are wanted; sentences for the user).
        """
        return {}, ()

    def targets(self, labels: Array) -> Array:
        """The labels of a batch, [B] or [B, K], as they are mixed: float32 [B, K], NaN where they are unknown."""
        raise NotImplementedError

    def denominator(self, batch: Batch) -> Array | None:
        """What the sums of a loss are divided by: see Task.denominator."""
        return None

    def loss(self, logits: Array, batch: Batch, denominator: Array | None) -> tuple[Array, dict[str, Array]]:
        """(loss [], {metric: []}) of the logits [B, K] of a prepared batch, as of Task.loss."""
        raise NotImplementedError

    # Evaluation.

    def outcomes(self, logits: Array, label: Array) -> dict[str, Array]:
        """What `score` needs of each image, {name: [B, ...]}, of logits [B, K] and labels [B] or [B, K]."""
        raise NotImplementedError

    def score(self, split: Any, out: Mapping[str, np.ndarray]) -> Evaluation:
        """The metrics of a split, "loss" among them, from the `outcomes` of all its images, {name: [n, ...]}."""
        raise NotImplementedError

    def at_chance(self, split: Any, result: Any) -> str:
        """A sentence where a result on a split is no better than without the images; empty: it is, or is not known."""
        return ""

    def with_ranks(self, split: Any, out: Mapping[str, np.ndarray]) -> Evaluation:
        """What `score` returns, with metrics that take longer, so that they are wanted of a final result alone."""
        return self.score(split, out)

    def examined(self, split: Any, out: Mapping[str, np.ndarray]) -> Evaluation:
        """What `with_ranks` returns, with what can be said of a whole split, but not of images drawn from it."""
        return self.with_ranks(split, out)

    def calibration(self, labels: np.ndarray, logits: np.ndarray) -> Calibration:
        """What validation decides of what `calibrated` lists, by its labels and logits [n, K]."""
        raise NotImplementedError

    def values(self, logits: np.ndarray) -> np.ndarray:
        """What logits say, [..., K]: probabilities, or numbers in the units of the data."""
        raise NotImplementedError

    def values_of(self, result: Any) -> np.ndarray:
        """`values` of the n images of a final result, [n, K]."""
        return np.asarray(result.probabilities)

    def truths(self, labels: np.ndarray) -> dict[str, list[str]]:
        """{column: a text for each of n images} of labels, as a table has them before what is predicted."""
        raise NotImplementedError

    def table(self, split: Any, result: Any) -> tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]:
        """(names of columns, a row for each image): the truth and what is predicted."""
        raise NotImplementedError

    def draw_result(self, split: Any, result: Any, folder: Path, caption: str) -> Sequence[Part]:
        """Write figures on a result into a folder; returns what they show."""
        return ()

    def worst(self, split: Any, result: Any, most: int) -> list[tuple[int, int, str]]:
        """(number of the image, number of the output, words on it) of the worst errors, the worst image first.

        Of an image that which it was taken for comes before other outputs.
        """
        return []

    # Prediction.

    def top_k(self, logits: np.ndarray, top: int) -> Said:
        """What the logits [K] of an image say, of classes the first `top`."""
        raise NotImplementedError

    def explained(self, logits: np.ndarray) -> np.ndarray:
        """The output of each image that is explained where none is named, int [n]: the most probable one."""
        return np.asarray(logits).argmax(-1)

    def line(self, said: Said) -> str:
        """What is said, in a line."""
        return ", ".join(self.written[0].format(*each) for each in said) or "none"

    def plain(self, said: Said) -> tuple[str, ...]:
        """What is said alone, for other programs: labels, or numbers, are one text with tabs between them."""
        if self.several:
            return tuple(printable(name) for name, _ in said)
        return ("\t".join(printable(name) if self.ranked else f"{value:.9g}" for name, value in said),)

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


def named(names: Sequence[str], values: np.ndarray, order: Sequence[int] | np.ndarray) -> Said:
    """(name, value) of these of the K."""
    return [(names[k], float(values[k])) for k in order]
