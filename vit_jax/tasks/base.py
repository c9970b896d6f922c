"""The base class of what computes a task.

Everything outside vit_jax/tasks works through it, through what only some tasks can (can.py), and through what a trained
network is used by (predictor.py), and names no task. To add one, write a subclass of `Task` with the five members that
it has to define (classify/learn.py is the plainest example), and name it in a spec (spec.py); CONTRIBUTING.md lists the
other steps. In order of their calls:

    training    open_data, from_run; each step: prepare, loss; at the end: Calibrates, Draws
    evaluation  open_data, or that of MeasuresOthers, from_run; each batch: outputs; once per split: score, Examines,
                Tabulates, Draws
    a probe     from_run, Probes; of what that returns open_data, outputs, score
    prediction  from_run, predictor; then `Predictor.answer`, `Predictor.draw_attention`, `Predictor.write_features`

B is the number of examples of a batch, n that of a split. A batch is {name: array [B, ...]}, with the names and dtypes
that the task's own splits return (vit_jax/data/base.py). An array that a network takes as ids has the name of
the network's argument, so that the values can be checked against the rows of the embedding table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from jax import Array

from ..config.run import RunConfig
from ..data.base import Data, GivenData
from ..kinds.base import Batch as Batch
from ..kinds.base import Evaluation as Evaluation
from .can import Abilities, Ability
from .predictor import Predictor

A = TypeVar("A", bound=Ability)

# What a subclass of Task has to define, and what for.
_TO_WRITE = {
    "predictor": "the class of what a trained network is used by, whose method answers answers",
    "open_data": "a class method that opens, checks and splits the data of a run",
    "from_run": "a class method that gives the task of a run",
    "loss": "a method that gives the loss and the metrics of a batch",
    "outputs": "a method that gives what an evaluation needs of each example of a batch",
}


@dataclass(frozen=True)
class Task:
    """The base class of tasks of one run, frozen dataclasses: fields are what the compiled functions depend on.

    A subclass has to define `predictor`, `open_data`, `from_run`, `loss` and `outputs`; all else has a default.
    `prepare`, `loss` and `outputs` are traced by jax.jit, so they must be pure; `model` is an nnx module with the
    parameters merged in. All other methods run on the host.
    """

    # Arrays of the loss that are neither trained nor saved (nested if need be), such as a teacher's weights; empty
    # until `HasFrozen.load`. The compiled step receives them as an argument, and they are here while it is traced.
    # A run stores their digest, and resumes only with the same arrays.
    frozen_arrays: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)

    predictor: ClassVar[type[Predictor]]
    can: ClassVar[Abilities] = ()  # its own classes of can.py; of two of a kind the first counts

    def __init_subclass__(cls, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        for member, purpose in () if abstract else _TO_WRITE.items():
            if not any(member in vars(parent) for parent in cls.__mro__[: cls.__mro__.index(Task)]):
                raise TypeError(f"{cls.__name__} lacks {member}: {purpose}; define it in the class")

    def able(self, what: type[A]) -> A:
        """Its own class of something that only some tasks can, or the base class of that."""
        return next((each for each in self.can if issubclass(each, what)), what)(self)

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

    def prepare(self, batch: Batch, keys: Array) -> Batch:
        """The batch with augmentation applied, for training only: {name: [B, ...]}, PRNG keys [B] -> {name: [B, ...]}.

        Called on the global batch, before it is divided among devices and accumulation steps, so it may mix examples:
        neighbours, as many as `AugmentConfig.together` says. The result is divided along axis 0 and held in memory
        until its last part is computed: leave uint8 images uint8 where that suffices.
        """
        return batch

    def loss(self, model: Any, batch: Batch, keys: Array, denominator: Any) -> tuple[Array, dict[str, Array]]:
        """(loss [], {metric name: []}) of a batch that `prepare` returned, or of one part of it; keys [B] for dropout.

        Each value is the mean over the given examples, or, where `denominator` is not None, a sum divided by it: that
        of the global batch, as `Counts` gives it, divided by its number of parts, so that the mean over all parts is
        the value for the global batch. The first metric is shown in the progress line, beside the loss. None may be
        named as in `files.metrics.RESERVED_METRICS`.
        """
        raise NotImplementedError

    def outputs(self, model: Any, batch: Batch) -> dict[str, Array]:
        """All that `score` needs of each example of an evaluation batch, without dropout: {name: [B, ...]}.

        "predicted" is the network's output; the default of `score` takes the others for metrics.
        """
        raise NotImplementedError

    def score(self, config: Any, split: Any, out: dict[str, np.ndarray]) -> Evaluation:
        """The metrics of a split, "loss" among them, from the `outputs` of all its examples in order, {name: [n, ...]}.

        By default the means of the outputs that are a number each.
        """
        numbers = {name: values for name, values in out.items() if name != "predicted" and values.ndim == 1}
        means = {name: float(values.astype(np.float64).mean()) for name, values in numbers.items()}
        return Evaluation(means, out["predicted"])

    @property
    def selection_metric(self) -> tuple[str, int]:
        """The metric of `score` by which the best checkpoint is selected, and 1 if larger is better, else -1."""
        return "loss", -1
