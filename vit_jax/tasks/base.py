"""The base class of what computes a task.

Everything outside vit_jax/tasks works through it, and through what a trained network is used by (predictor.py), and
names no task. To add one, write a subclass of `Task` with the five members that it has to define (classify/learn.py is
the plainest example), and name it in a spec (spec.py); CONTRIBUTING.md lists the other steps. In order of their calls:

    training    open_data, from_run, load_frozen_arrays; each step: prepare, denominator, loss; at the end: pictures,
                draw_result
    evaluation  open_data (or open_other_data), from_run, load_frozen_arrays (if auxiliary_in_outputs); each batch:
                outputs; once per split: score, table, draw_result
    a probe     from_run, probed; of what that returns open_data, outputs, score
    prediction  from_run, predictor; then `Predictor.answer` (which asks `answers`), `Predictor.draw_attention`,
                `Predictor.write_features`

B is the number of examples of a batch, n that of a split. A batch is {name: array [B, ...]}, with the names and dtypes
that the task's own splits return (vit_jax/data/base.py). An array that a network takes as ids has the name of
the network's argument, so that the values can be checked against the rows of the embedding table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from jax import Array

from ..config.network import Teacher
from ..config.run import RunConfig
from ..data.base import Data, GivenData
from ..errors import Field, UserError
from ..figures.parts import Part
from ..files.output import html_table
from ..machine.targets import HERE, Target
from ..scores.classes import Scores
from .predictor import Answer, Predictor

Batch = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of a network on the n examples of a split. A task may return a subclass with more fields."""

    metrics: dict[str, float]  # "loss" (but of a probe) and the task's own metrics; NaN where it is undefined
    predicted: np.ndarray  # [n, ...]: the network's output for each example, in the order of the split
    flipped: Evaluation | None = field(default=None, kw_only=True)  # of a task that `Task.mirrored` returned
    notes: tuple[str, ...] = field(default=(), kw_only=True)  # for the user: how a metric was computed
    chosen: Mapping[str, float] = field(default_factory=dict, kw_only=True)  # what a probe was given, or has chosen
    undefined: Mapping[str, str] = field(default_factory=dict, kw_only=True)  # {metric: why it is NaN}
    each: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)  # {metric: of each output, float [K]}
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


# What a subclass of Task has to define, and what for.
_TO_WRITE = {
    "open_data": "a class method that opens, checks and splits the data of a run",
    "from_run": "a class method that gives the task of a run",
    "loss": "a method that gives the loss and the metrics of a batch",
    "outputs": "a method that gives what an evaluation needs of each example of a batch",
    "answers": "a method that gives the predictions for some inputs",
}


@dataclass(frozen=True)
class Task:
    """The base class of tasks of one run, frozen dataclasses: fields are what the compiled functions depend on.

    A subclass has to define `open_data`, `from_run`, `loss`, `outputs` and `answers`; all else has a default.
    `prepare`, `denominator`, `loss` and `outputs` are traced by jax.jit, so they must be pure; `model` is an nnx module
    with the parameters merged in. All other methods run on the host.
    """

    # Arrays of the loss that are neither trained nor saved (nested if need be), such as a teacher's weights; empty
    # until `load_frozen_arrays`. The compiled step receives them as an argument, and they are here while it is traced.
    # A run stores their digest, and resumes only with the same arrays.
    frozen_arrays: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)

    unit: ClassVar[str] = "examples"  # what an example is called, in the plural; the log has {unit}_per_second
    auxiliary_in_outputs: ClassVar[bool] = False  # whether `outputs` uses `frozen_arrays`, as `loss` does
    predictor: ClassVar[type[Predictor]] = Predictor

    def __init_subclass__(cls, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        for member, purpose in () if abstract else _TO_WRITE.items():
            if not any(member in vars(parent) for parent in cls.__mro__[: cls.__mro__.index(Task)]):
                raise TypeError(f"{cls.__name__} lacks {member}: {purpose}; define it in the class")

    # What a subclass defines.

    @classmethod
    def open_data(cls, run: RunConfig, given: GivenData | None = None, fetch: bool = True) -> Data:
        """Open, check and split the data of a run. Called first, before there is a task.

        Args:
            given: what was given in Python instead; nothing where `DataConfig.given` of the data has no name for that.
            fetch: without it nothing is downloaded or written: data of the same sizes may stand for what would be.
        """
        raise NotImplementedError

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Self:
        """The task of a run; `metadata` has the entries of `Data.metadata`, among others if it is a config.json."""
        raise NotImplementedError

    def loss(self, model: Any, batch: Batch, keys: Array, denominator: Any) -> tuple[Array, dict[str, Array]]:
        """(loss [], {metric name: []}) of a batch that `prepare` returned, or of one part of it; keys [B] for dropout.

        Each value is the mean over the given examples, or, where `denominator` is not None, a sum divided by it: that
        of the global batch, divided by its number of parts, so that the mean over all parts is the value for the global
        batch. The first metric is shown in the progress line, beside the loss. None may be named as in
        `files.metrics.RESERVED_METRICS`.
        """
        raise NotImplementedError

    def outputs(self, model: Any, batch: Batch) -> dict[str, Array]:
        """All that `score` needs of each example of an evaluation batch, without dropout: {name: [B, ...]}.

        "predicted" is the network's output; the default of `score` takes the others for metrics.
        """
        raise NotImplementedError

    def answers(self, predictor: Any, inputs: Sequence[Any], top: int, first: int) -> Iterable[Answer]:
        """The Answer for each of some inputs, which are computed together.

        Args:
            predictor: the task's own `predictor`, with the network.
            inputs: paths of files, or what else its `read` made of them.
            top: the number of alternatives to return, for tasks that have alternatives.
            first: the number of the first of them among all, for draws.
        """
        raise NotImplementedError

    # Training.

    @property
    def selection_metric(self) -> tuple[str, int]:
        """The metric of `score` by which the best checkpoint is selected, and 1 if larger is better, else -1."""
        return "loss", -1

    @classmethod
    def metadata_with_weights(cls, run: RunConfig) -> dict[str, Any]:
        """Entries of `Data.metadata` of what lies beside weights from elsewhere, such as a tokenizer.

        The run has the fields that `DataConfig.fields_with_weights` has found.
        """
        return {}

    def load_frozen_arrays(self, teacher: Teacher | None, target: Target = HERE) -> Self:
        """A copy of the task with `frozen_arrays` filled, or the task itself. Called for training and evaluation only.

        The teacher is the run's, opened and checked by the task's spec; None if the run names none.
        """
        return self

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """The batch with augmentation applied, for training only: {name: [B, ...]}, PRNG keys [B] -> {name: [B, ...]}.

        Called on the global batch, before it is divided among devices and accumulation steps, so it may mix examples:
        neighbours, as many as `AugmentConfig.together` says. The result is divided along axis 0 and held in memory
        until its last part is computed: leave uint8 images uint8 where that suffices.
        """
        return batch

    def at_chance(self, split: Any, result: Any) -> str:
        """A sentence where the result on a split is no better than without the inputs; empty: it is, or not known."""
        return ""

    def tokens(self, batch: Batch) -> tuple[int, int, int]:
        """(Target tokens of a batch, ends included; places for ids; how many are padding); 0s where it has no ids."""
        return 0, 0, 0

    def denominator(self, batch: Batch) -> Any:
        """What the sums of a loss are divided by, such as the number of tokens of a prepared batch, or of a part of it.

        A sum over the examples, [], or [k] where metrics are divided by something else; None if the loss is a mean over
        examples.
        """
        return None

    # Evaluation.

    @classmethod
    def open_other_data(
        cls, run: RunConfig, metadata: Mapping[str, Any], split: str, given: GivenData | None = None
    ) -> Any:
        """Data that a trained network is only evaluated on, prepared for it as its own was, as data.Other has them.

        `run.data` says where it is, unless Python has given it; `split` is that which was asked for, or ''.
        """
        raise UserError(
            Field("data.source"),
            f"is {run.data.source}, but a network of the task {run.task} is measured on the data of its run alone",
            "leave it out",
        )

    def mirrored(self) -> Self | None:
        """The task whose evaluations have `flipped` too, of examples with their mirror images; None: they have none."""
        return None

    @property
    def unprobed(self) -> str:
        """Of what `probed` returns: why the data of training have no classes to learn; empty: they have."""
        return ""

    def probed(self) -> Task | None:
        """The task with which a probe sees the network: a classifier that learns from its features (commands/probe.py).

        Its `outputs` are {"pooled": [B, D]}, its `score` takes {"scores": [n, K]}, what the probe gives each class, and
        its `open_data` opens data of any classes, whose number is `classes` of its sizes and whose splits have
        `labels`, int [n]. None where examples have no class, or the network no features of an example as a whole.
        """
        return None

    def searching(self, changes: Mapping[str, Any]) -> Self | None:
        """The task with these fields of config.decoding.Decoding for its search; None where nothing is generated."""
        return None

    def score(self, config: Any, split: Any, out: dict[str, np.ndarray]) -> Evaluation:
        """The metrics of a split, "loss" among them, from the `outputs` of all its examples in order, {name: [n, ...]}.

        By default the means of the outputs that are a number each.
        """
        numbers = {name: values for name, values in out.items() if name != "predicted" and values.ndim == 1}
        means = {name: float(values.astype(np.float64).mean()) for name, values in numbers.items()}
        return Evaluation(means, out["predicted"])

    def examine(self, config: Any, split: Any, out: dict[str, np.ndarray]) -> Evaluation:
        """What `score` returns, with what is wanted of a final result alone, as it takes longer: by default nothing."""
        return self.score(config, split, out)

    def resample(self, config: Any, split: Any, out: dict[str, np.ndarray]) -> dict[str, float]:
        """The metrics of n examples drawn with replacement, for intervals; by default those of `score`."""
        return self.score(config, split, out).metrics

    @property
    def calibrated(self) -> tuple[str, ...]:
        """What validation decides, once a run has ended, of how its outputs are read, in words; empty: nothing."""
        return ()

    def calibrate(self, split: Any, out: dict[str, np.ndarray]) -> tuple[dict[str, Any], Self]:
        """What validation decides of what `calibrated` lists, by the outputs that `score` takes.

        Returns (what summary.json keeps of it: see runs/folder.py; the task that reads outputs so).
        """
        raise NotImplementedError

    def table(
        self, split: Any, result: Any, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterable[tuple[str | int, ...]]]:
        """An evaluation as a table, for a CSV file: (names of columns, a row for each example)."""
        return ("example", "predicted"), ((split.name(i), str(said)) for i, said in enumerate(result.predicted))

    def values_table(self, split: Any, result: Any) -> tuple[tuple[str, ...], Iterable[tuple[str | int, ...]]]:
        """Every probability or number of an evaluation beside the truth, where a network has columns, as `table`."""
        raise NotImplementedError

    def draw_result(
        self, split: Any, result: Any, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[tuple[str, ...], Sequence[Part]]:
        """Write figures or texts on the result of a split into `folder`, which exists: above all its worst examples.

        `caption` is a line for each figure, which says what it shows. Returns (lines to print, which say what is in the
        folder; what a page about the result is to show).
        """
        return (), ()

    def pictures(self, network: Any, data: Any, plots: Path, samples: Path, caption: str) -> tuple[str, Sequence[Part]]:
        """Draw a trained network, and write sample inputs.

        Args:
            data: what `open_data` returned.
            plots: a folder, for PNGs.
            samples: a folder, for sample inputs.
            caption: a line for each figure, which says which weights it shows.

        Returns:
            (an input for the command `vit_jax.predict` to show to the user: a text, or a file's path from the folder
            that holds `samples`; '' if there is none; what a page about the network is to show).
        """
        return "", ()

    # Prediction.

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `Answer.rows`."""
        return "input", "answer"
