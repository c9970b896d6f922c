"""The interface of a task. Everything outside vit_jax/tasks works through it and names no task.

To add a task, write a class with the members of `Task` (classify.py is the plainest example) and a `Predictor` for its
trained networks; CONTRIBUTING.md lists the other steps. In order of their calls:

    training    open_data, from_run, load_frozen; each step: prepare, denominator, loss; at the end: pictures,
                draw_result
    evaluation  open_data (or open_other_data), from_run, load_frozen (if frozen_in_outputs); each batch: outputs;
                once per split: score, table, draw_result
    a probe     from_run, probed; of what that returns open_data, outputs, score
    prediction  from_run, predictor; then `Predictor.answer`, `Predictor.draw_attention`, `Predictor.write_features`

B is the number of examples of a batch, n that of a split. A batch is {name: array [B, ...]}, with the names and dtypes
that the task's own splits return (vit_jax/data/base.py). An array that a network takes as ids has the name of
the network's argument, so that the values can be checked against the rows of the embedding table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from jax import Array

from ..config.network import Teacher
from ..config.run import RunConfig
from ..data.base import Data, Given

Batch = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of a network on the n examples of a split. A task may return a subclass with more fields."""

    metrics: dict[str, float]  # "loss" (but of a probe) and the task's own metrics
    predicted: np.ndarray  # [n, ...]: the network's output for each example, in the order of the split
    flipped: Evaluation | None = field(default=None, kw_only=True)  # of a task that `Task.mirrored` returned
    notes: tuple[str, ...] = field(default=(), kw_only=True)  # for the user: how a metric was computed
    chosen: Mapping[str, float] = field(default_factory=dict, kw_only=True)  # what a probe was given, or has chosen

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"{type(self).__name__}({len(self.predicted):,} examples: {values})"


@dataclass(frozen=True)
class Trained:
    """Facts about trained weights."""

    run: RunConfig
    metadata: Mapping[str, Any]  # has the entries of `Data.metadata`
    step: int  # after so many training steps; 0 if unknown


@dataclass(frozen=True)
class Answer:
    """The prediction for one input."""

    input: Any  # as it was given to `Predictor.answer`
    value: Any  # the prediction, as a Python caller wants it
    line: str  # the same as a line to print, or as several
    rows: list[tuple[str | int, ...]]  # the same as rows of a CSV table with the columns `Predictor.header`


class Predictor(Protocol):
    """A trained network with all that prediction needs, as `vit_jax.load` returns and `vit_jax.predict` uses it."""

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `Answer.rows`; none where `answer` can only raise, for want of a head."""

    @property
    def model(self) -> Any:
        """The network."""

    @property
    def run(self) -> RunConfig:
        """Its run; of weights from elsewhere, an untrained one with the same network."""

    @property
    def task(self) -> Task:
        """Its task."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The entries of the task's row."""

    @property
    def step(self) -> int:
        """The training steps of its weights, as in `Trained`."""

    @property
    def layers(self) -> int:
        """The number of layers whose attention `draw_attention` can draw; 0 if the network has no attention."""

    def answer(self, inputs: Sequence[Any], top: int = 3, batch: int = 64) -> Iterable[Answer]:
        """One Answer per input, in order. An input is a file's path or a text, as `takes` of the task's row states.

        `top` is the number of alternatives to return, for tasks that have alternatives; `batch` is the most inputs to
        compute at a time. Raises UserError for an input
        that cannot be used; where that can be seen beforehand, before the first answer is computed.
        """

    def draw_attention(self, inputs: Sequence[Any], path: Path, layers: Sequence[int] = (), caption: str = "") -> None:
        """Draw the network's attention on the first inputs and write it to `path` as a PNG.

        `layers`, counted from 0, are those to draw (empty: as the task prefers); `caption` is a line under the title.
        Raises UserError where the network has no attention.
        """

    def write_features(
        self, inputs: Sequence[Any], path: Path, blocks: Sequence[int] = (), norm: bool = True, batch: int = 64
    ) -> str:
        """Write the features of the inputs to `path` as a .npz, and return a line that says what is in it.

        `blocks`, counted from 0 or from the end (-1), are those of which it is to have maps; `norm` applies the last
        norm to these. Raises UserError where the network has no features of an input as a whole.
        """


class Task(Protocol):
    """A task of one run, as a frozen dataclass: its fields are the settings that the compiled functions depend on.

    `prepare`, `denominator`, `loss` and `outputs` are traced by jax.jit, so they must be pure; `model` is an nnx module
    with the parameters merged in. All other methods run on the host.
    """

    unit: ClassVar[str]  # what an example is called, in the plural: "images"; the log has {unit}_per_second
    frozen_in_outputs: ClassVar[bool]  # whether `outputs` uses `frozen`, as `loss` does

    @property
    def selection_metric(self) -> tuple[str, int]:
        """The metric of `score` by which the best checkpoint is selected, and 1 if larger is better, else -1."""

    @property
    def frozen(self) -> Any:
        """Arrays of the loss that are neither trained nor saved, as a dict (nested if need be): a teacher's weights.

        An empty dict for most tasks; otherwise a field of the dataclass, which stays empty until `load_frozen`. The
        compiled step receives the arrays as an argument, and `self.frozen` holds them while it is traced. A run stores
        their digest, and resumes only with the same arrays.
        """

    @classmethod
    def open_data(cls, run: RunConfig, given: Given | None = None, fetch: bool = True) -> Data:
        """Open, check and split the data of a run, or what was `given` in Python instead.

        Called first, before there is a task. Nothing is given where the task's row has no name for that. Without
        `fetch` nothing is downloaded or written: data of the same sizes may stand for what would be. Raises UserError.
        """

    @classmethod
    def from_run(cls, run: RunConfig, metadata: Mapping[str, Any]) -> Self:
        """The task of a run. `metadata` has the entries of `Data.metadata`, among others if it is a config.json."""

    @classmethod
    def metadata_beside(cls, run: RunConfig) -> dict[str, Any]:
        """Entries of `Data.metadata` of what lies beside weights from elsewhere, such as a tokenizer.

        Called where `beside_weights` of the task's row has found something, which the fields of `run` name. Raises
        UserError.
        """

    def load_frozen(self, teacher: Teacher | None) -> Self:
        """A copy of the task with `frozen` filled, or the task itself. Called for training and evaluation only.

        `teacher` is the run's, opened and checked by the task's row; None if the run names none. Raises UserError.
        """

    def mirrored(self) -> Self | None:
        """The task whose evaluations have `flipped` too: of each example together with its mirror image.

        None where examples have none.
        """

    def probed(self) -> Task | None:
        """The task with which a probe sees the network: a classifier that learns from its features (vit_jax/probe.py).

        Its `outputs` are {"pooled": [B, D]}, its `score` takes {"scores": [n, K]}, what the probe gives each class, and
        its `open_data` opens data of any classes, whose number is `classes` of its sizes and whose splits have
        `labels`, int [n]. None where examples have no class, or the network no features of an example as a whole.
        """

    def searching(self, changes: Mapping[str, Any]) -> Self | None:
        """The task with other settings of its search, {field of config.decoding.Decoding: value}. Raises UserError.

        None where nothing is generated.
        """

    def prepare(self, batch: Batch, keys: Array, epoch: Array) -> Batch:
        """The batch with augmentation applied, for training only: {name: [B, ...]} to {name: [B, ...]}.

        `keys` [B] holds one PRNG key per example, `epoch` (int32 []) counts the epochs done before. Called on the
        global batch, before it is divided among devices and accumulation steps, so it may mix examples: neighbours, as
        many as `together` of the task's row says. The result is divided along axis 0 and held in memory until its last
        part is computed: leave uint8 images uint8 where that suffices.
        """

    def tokens(self, batch: Batch) -> tuple[int, int, int]:
        """(target tokens, ends included; places for ids; how many of these are padding) of a training batch.

        The batch is as the data gives it, numpy arrays. Zeros where it has no ids. For the log, of training's speed.
        """

    def denominator(self, batch: Batch) -> Any:
        """What the sums of a loss are divided by, as a scalar array []: the number of tokens of a batch, for example.

        It must be a sum over the examples, because it may be taken of one device's part of a prepared batch. None if
        the loss is a mean over examples; then `loss` receives None.
        """

    def loss(self, model: Any, batch: Batch, keys: Array, denominator: Any) -> tuple[Array, dict[str, Array]]:
        """(loss [], {metric name: []}) of a prepared batch, or of one part of it; `keys` [B] are for dropout.

        Each value is the mean over the given examples, or, where `denominator` is not None, a sum divided by it:
        `denominator` is then that of the global batch divided by its number of parts, so the mean over all parts is
        the value for the global batch. The first metric is shown in the progress line, beside the loss. No metric may
        have a name of `runs.log.RESERVED_METRICS`.
        """

    def outputs(self, model: Any, batch: Batch) -> dict[str, Array]:
        """{name: [B, ...]}: all that `score` needs of each example of an evaluation batch, without dropout."""

    def score(self, config: Any, split: Any, out: dict[str, np.ndarray]) -> Evaluation:
        """The metrics of a split, "loss" among them.

        `out` is {name: [n, ...]}, the concatenated `outputs` of all its examples in order; `config` is the network's.
        """

    @classmethod
    def open_other_data(
        cls, run: RunConfig, metadata: Mapping[str, Any], split: str, given: Given | None = None
    ) -> Any:
        """Data that a trained network is only evaluated on, prepared for it as its own was.

        `run.data` says where it is, unless Python has `given` it; `metadata` is the network's, `split` that which was
        asked for, or ''. Returns the `name` and the `split` (a Split) to measure, `total` examples of all splits, and
        `remarks` for the user, as data.Other has them. Raises UserError, also where the task has no such data.
        """

    def table(
        self, split: Any, result: Any, metadata: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], Iterable[tuple[str | int, ...]]]:
        """(names of columns, a row for each example) of an evaluation, for a CSV file.

        `split` is what was measured and `result` its Evaluation; `metadata` is the network's.
        """

    def predictor(self, network: Any, trained: Trained) -> Predictor:
        """The Predictor of a network that has its trained weights."""

    def draw_result(
        self, split: Any, result: Any, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[str, ...]:
        """Write figures or texts on the result of a split into `folder`, which exists: above all its worst examples.

        What report.html is to show of them is kept there too, by `report.keep_classes` or `report.keep_texts`.

        The arguments are those of `table`; `caption` is a line for each figure, which says what it shows. Returns lines
        to print, which say in short what is in the folder.
        """

    def pictures(self, network: Any, data: Any, plots: Path, samples: Path, caption: str) -> str:
        """Draw a trained network: write PNGs into the folder `plots` and sample inputs into `samples` (both exist).

        What report.html is to show of it is kept in `plots`, by `report.keep_attention`.

        `data` is what `open_data` returned; `caption` is a line for each figure, which says which weights it shows.
        Returns an input for the command `vit_jax.predict` to show to the user: a text, or a file's path from the
        folder that holds `samples`; '' if there is none.
        """
