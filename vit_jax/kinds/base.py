"""The base class of what the outputs of a network of images mean: how they are trained, scored, told and drawn.

All that differs between classes, sets of labels and numbers is in one subclass for each, in a file that table.py names:
in what a run may state, in what data does with labels, in the task, its predictor and its pictures. B is the number of
images of a batch, n that of a split, K that of outputs. Data does without jax, so it is imported where it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from ..config.outputs import UNSTATED, Outputs
from ..config.run import LossConfig, RunConfig
from ..errors import UserError
from ..files.output import html_table, shorten
from ..files.terminal import printable
from ..plugins import Plugin
from ..scores.classes import Scores
from .labels import Labels, Positives

if TYPE_CHECKING:
    from jax import Array

SHOWN = 3
Batch = dict[str, Any]
Said = list[tuple[str, float]]  # (name, probability or value)
Table = tuple[tuple[str, ...], Iterator[tuple[str | int, ...]]]  # (names of columns, rows)
Texts = Sequence[Sequence[str]]  # cells
Arrays = Mapping[str, np.ndarray]  # by split or by name
Matched = tuple[np.ndarray, str]  # (labels, a remark)
Balance = tuple[dict[str, list[float]], tuple[str, ...]]  # (entries of metadata, remarks)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of a network on the n examples of a split. A task may return a subclass with more fields."""

    metrics: dict[str, float]  # "loss" (but of a probe) and the task's own metrics; NaN where it is undefined
    predicted: np.ndarray  # [n, ...]: the network's output for each example, in the order of the split
    flipped: Evaluation | None = field(default=None, kw_only=True)  # of a task that `Task.mirrored` returned
    notes: tuple[str, ...] = field(default=(), kw_only=True)  # for the user: how a metric was computed
    chosen: Mapping[str, float] = field(default_factory=dict, kw_only=True)  # what a probe was given, or has chosen
    undefined: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # {metric: why it is NaN}
    each: Arrays = field(default_factory=dict, kw_only=True)  # {metric: of each output, float [K]}
    # {metric: (low, high)}, 95 % intervals by bootstrap, where they were asked for
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict, kw_only=True)
    prints_each: ClassVar[bool] = False

    def _repr_html_(self) -> str:
        return html_table([{"metric": name, "value": value} for name, value in self.metrics.items()], self.notes)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"{type(self).__name__}({len(self.predicted):,} examples: {values})"


E = TypeVar("E", bound=Evaluation)


def with_scores(result: E, scores: Scores) -> E:
    """A result with more metrics."""
    return replace(
        result,
        metrics=result.metrics | scores.values,
        each={**result.each, **scores.each},
        undefined={**result.undefined, **scores.undefined},
        notes=(*result.notes, *scores.notes),
    )


@dataclass(frozen=True)
class Calibration:
    """What validation decides of how outputs are read: thresholds [K]."""

    temperature: float | None = None
    thresholds: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """What K outputs mean. Outputs that nothing can be told of, an embedding, are of this class itself."""

    outputs: Outputs = UNSTATED  # with a name for each, and with what the training part has decided
    settings: LossConfig = field(default_factory=LossConfig)
    weights: tuple[float, ...] = ()  # of the loss, one for each output; empty: all are 1
    log_prior: tuple[float, ...] = ()  # added to logits in training; empty: nothing is
    alike: bool = False  # whether training lets uneven classes count alike

    # Words: what outputs are; what a label says of an image; how several images' outputs, and one and several of the K,
    # are called.
    says: ClassVar[str] = "an embedding"
    of_image: ClassVar[str] = ""
    plural: ClassVar[str] = "embedding"
    each: ClassVar[tuple[str, str]] = ("feature", "features")

    # What a run may state: values of loss.name, the default first; those fields of a loss that not every kind has;
    # entries of `outputs` beside kind and names; and metrics that stand for a result, {name: title}.
    losses: ClassVar[tuple[str, ...]] = ()
    loss_fields: ClassVar[tuple[str, ...]] = ()
    entries: ClassVar[tuple[str, ...]] = ()
    main_metrics: ClassVar[Mapping[str, str]] = {}

    # Labels: whether one has a value for each of the K, or is one of them; their dtype in a batch; of how many of the K
    # a part of the data has to have examples, to be measured; whether they are amounts, which training normalises, and
    # augmentation may change; and whether an image has any number of the K, of which some may be unknown.
    columns: ClassVar[bool] = True
    dtype: ClassVar[str] = "float32"
    least: ClassVar[int] = 1
    amounts: ClassVar[bool] = False
    any_number: ClassVar[bool] = False

    # How answers are told: the columns of a table of them; whether a row has a rank, the best 1; whether what is said
    # of an image is several answers, the best first, and not one; the formats of a (name, value) in a line, in a table
    # and under an image; and what a figure shows under an image.
    header: ClassVar[tuple[str, ...]] = ()
    ranked: ClassVar[bool] = False
    several: ClassVar[bool] = False
    written: ClassVar[tuple[str, str, str]] = ("{} ({:.1%})", "{:.6f}", "{} ({:.2f})")
    legend: ClassVar[str] = ""
    calibrated: ClassVar[tuple[str, ...]] = ()  # what validation decides of how outputs are read
    no_top: ClassVar[str] = ""  # why there is no number of answers to choose
    has_probabilities: ClassVar[bool] = True  # `values` are of 0 to 1
    activation: ClassVar[str] = "none"  # what makes `values` of logits in programs: softmax, sigmoid or none
    pictures: ClassVar[str] = ""  # module:function that draws a result: see `draw_result`

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each of the K."""
        return self.outputs.names

    @property
    def selection_metric(self) -> tuple[str, int]:
        """The metric that selects the best checkpoint: see Task.selection_metric."""
        return "loss", -1

    @property
    def has_answers(self) -> bool:
        """Whether there is anything to tell of the outputs."""
        return bool(self.header)

    @property
    def contents(self) -> str:
        """K in words, as printed: 10 classes."""
        return f"{len(self.names)} {self.each[len(self.names) != 1]}"

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Of each output, over which it is told; empty where that is not how answers are told."""
        return ()

    @classmethod
    def check_loss(cls, loss: LossConfig) -> None:
        """Raise UserError on a value of a loss that this kind does not have."""

    # The labels of data.

    @classmethod
    def typed(cls, field: str, title: str, columns: np.ndarray) -> np.ndarray:
        """Labels of an array [n, k], as a source has them. Raises UserError."""
        raise NotImplementedError

    @classmethod
    def of_columns(cls, rows: Any, columns: Sequence[int], texts: Texts) -> Labels:
        """The labels in columns of a table, whose cells are these texts. Raises UserError."""
        raise UserError(rows.title, f"{cls.plural} are not read from tables", "give arrays")

    @classmethod
    def of_lists(cls, rows: Any, column: int, cells: Texts, how: str = "lists") -> Labels:
        """The labels in a column whose cells are lists. Raises UserError."""
        raise UserError(rows.title, f"{cls.plural} are not read from lists", "give arrays")

    def check(self, field: str, splits: Arrays, counted: bool = False) -> None:
        """Raise UserError where nothing could be learned of the labels of a source's splits, {name: labels}."""

    def check_counted(self, field: str, splits: Arrays, classes: int = 0) -> None:
        """Raise UserError on labels without names, which are the numbers of classes, that are not these."""

    def present(self, labels: np.ndarray) -> np.ndarray:
        """Those of the K that any example has, int [k], ascending."""
        return np.unique(self.positives(labels).columns)

    def positives(self, labels: np.ndarray) -> Positives:
        """What folds and groups that are held out get their share of."""
        raise NotImplementedError

    def fitted(self, field: str, train: np.ndarray) -> Outputs:
        """The outputs with what the training part decides."""
        return self.outputs

    def in_batch(self, labels: np.ndarray) -> np.ndarray:
        """The labels of a batch, as a loss takes them."""
        return labels

    def matched(self, field: str, of: str, labels: np.ndarray, network: Sequence[str]) -> Matched:
        """(labels of other data as a network has them, a remark where names do not match); `of` says of which split."""
        raise NotImplementedError

    def groups(self, labels: np.ndarray) -> np.ndarray:
        """int [n], equal of examples with similar labels, by which pictures take different ones."""
        raise NotImplementedError

    def words(self, label: Any) -> str:
        """The label of an example, in words."""
        raise NotImplementedError

    def counts(self, labels: np.ndarray, names: Sequence[str], more: str) -> str:
        """How often each of the K is there, of which the first have these names, in a sentence."""
        rows, places = self.positives(labels)
        counts = np.bincount(places, minlength=len(self.names))
        shown = ", ".join(f"{name} {counts[k]:,}" for k, name in enumerate(names)) + more
        without = len(labels) - len(np.unique(rows))
        return shown + (f"; images with none of them: {without:,}" if without else "")

    def remarks(self, splits: Arrays) -> tuple[str, ...]:
        """What is to be known of the labels of each split, {name: labels}."""
        out = []
        for name, labels in splits.items():
            lacking = np.setdiff1d(np.arange(len(self.names)), self.present(labels))
            names = [self.names[k] for k in lacking]
            if names:
                listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
                averages = "" if name == "train" else "; its macro averages are over the others"
                out.append(f"{name} has no example of {len(names)} of the {self.contents} ({listed}){averages}")
        return tuple(out)

    # Training.

    def balanced(self, run: RunConfig, labels: np.ndarray) -> Balance:
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
        return {"logits": logits}

    def score(self, split: Any, out: Arrays) -> Evaluation:
        """The metrics of a split, "loss" among them, from the `outcomes` of all its images, {name: [n, ...]}."""
        raise NotImplementedError

    def at_chance(self, split: Any, result: Any) -> str:
        """A sentence where a result on a split is no better than without the images; empty: it is, or is not known."""
        return ""

    def with_ranks(self, split: Any, out: Arrays) -> Evaluation:
        """What `score` returns, with metrics that take longer, so that they are wanted of a final result alone."""
        return self.score(split, out)

    def examined(self, split: Any, out: Arrays) -> Evaluation:
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

    def table(self, split: Any, result: Any) -> Table:
        """(names of columns, a row for each image): the truth and what is predicted."""
        raise NotImplementedError

    def draw_result(self, split: Any, result: Any, folder: Path, caption: str) -> Sequence[Any]:
        """Write figures on a result into a folder; returns what they show, as `figures.parts` has it."""
        return Plugin(self.pictures).load()(self, split, result, folder, caption) if self.pictures else ()

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
