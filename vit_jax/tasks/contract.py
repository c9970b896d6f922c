"""What a task has, for the engine, the loop and the doors: they know no task by name.

Letters: B batch, n examples of a split. A batch is {name: array [B, ...]}; parameters are a nested dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from jax import Array

from ..config import ModelConfig, RunConfig
from ..data import Data
from ..runs import Run

Batch = dict[str, Any]
# A run's folder or name, or a file of any layout -> its config and its weights {dotted name: array}. Raises UserError.
Load = Callable[[str], tuple[ModelConfig, dict[str, Any]]]


@dataclass(frozen=True)
class Evaluation:
    """What a network did on a split of n examples."""

    metrics: dict[str, float]
    predicted: np.ndarray  # [n, ...]


@dataclass(frozen=True)
class Record:
    """What belongs to trained weights: the run, what its config.json keeps of its data, and the step that they are of."""

    run: RunConfig
    kept: Mapping[str, Any]
    step: int


@dataclass(frozen=True)
class Answer:
    """What a network says to one input: as a value, as a line to print, and as rows of a table under `Ready.header`."""

    input: Any
    value: Any
    line: str
    rows: list[tuple[str | int, ...]]


class Ready(Protocol):
    """A trained network with all that it takes to use it."""

    header: ClassVar[tuple[str, ...]]

    def answer(self, inputs: Sequence[Any], top: int = 3) -> Iterable[Answer]:
        """An Answer for each input (a file's path or a text), in order; `top` is how many choices it names, where it has any.

        What can be told of all inputs at once is said before the first is answered. Raises UserError.
        """

    def draw_attention(self, inputs: Sequence[Any], path: Path) -> None:
        """Where the network looked, as one PNG. Raises UserError."""


class Task(Protocol):
    """One task of one run: a frozen dataclass.

    `frozen` is a tree of arrays that take part in the loss and are neither trained nor saved, such as a teacher's
    weights: a field of the task where it has any, else an empty dict. It is empty until `bring`. The arrays are handed
    to the compiled step as an argument; inside it, `frozen` holds what arrived there. A run keeps their digest, and
    does not go on with others.

    The names of a batch are the task's own; ids carry the name of the argument of the network that takes them, so that
    they can be compared with its tables.
    """

    unit: ClassVar[str]  # what an example is called
    chosen: ClassVar[
        tuple[str, int]
    ]  # the metric of `score` that chooses among checkpoints, and 1 where more is better, -1 where less is

    @property
    def frozen(self) -> Any: ...

    @classmethod
    def open(cls, run: RunConfig) -> Data:
        """The data of a run, checked and split. Raises UserError."""

    @classmethod
    def of(cls, run: RunConfig, kept: Mapping[str, Any]) -> Self:
        """The task of a run whose config.json keeps this."""

    def bring(self, load: Load) -> Self:
        """The task with its frozen arrays, for training and evaluation; using a trained network needs none. Raises UserError."""

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """A training batch as the loss sees it: {name: [B, ...]} to {name: [B, ...]}, with one key an example.

        It sees the whole batch, before accumulation or devices cut it, so it may mix examples; what it returns is cut along
        axis B. uint8 may stay uint8: a batch waits in memory while its parts are computed.
        """

    def size(self, batch: Batch) -> Any:
        """What the loss of a batch is a mean over, [], where that is not its examples; None: a mean over examples."""

    def loss(self, model: Any, batch: Batch, keys: Array, size: Any) -> tuple[Array, dict[str, Array]]:
        """(loss [], {metric: []}) of a prepared batch or a part of one, each a mean over it; keys [B] draw dropout.

        The first metric is shown beside the loss. Their names are not those that the step has itself.

        `size` is that of the whole batch divided by the number of its parts: sums are divided by it.
        """

    def outputs(self, model: Any, batch: Batch) -> dict[str, Array]:
        """{name: [B, ...]} of an evaluation batch: all that `score` needs of each example."""

    def score(self, config: Any, split: Any, out: dict[str, np.ndarray]) -> Evaluation:
        """Metrics of a split, `loss` among them, from the outputs {name: [n, ...]} of all its examples."""

    def ready(self, network: Any, record: Record) -> Ready:
        """A trained network for use."""

    def pictures(self, network: Any, data: Any, result: Any, folder: Run) -> str:
        """Write what there is to see of a trained network to folder.plots and folder.samples, which exist.

        `result` is the Evaluation of the test split; without it nothing that needs test is drawn. Returns something to
        predict: a text, or the name of a file inside the folder; '' where there is none.
        """
