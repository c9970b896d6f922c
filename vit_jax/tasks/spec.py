"""What other code knows of a task without jax: the base class of the specs of tasks.

Help, presets, runs and convert read specs; what a task computes is in the class that its spec names (base.py). To add a
task, write a subclass of `TaskSpec` and one of `Task`, and name the first in table.py; no other code asks which task it
has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ..config.dotted import value_at
from ..config.network import NetworkConfig, Teacher
from ..config.outputs import TRAINED
from ..config.run import NO_DATA, AugmentConfig, DataConfig, LossConfig, OptimConfig, RunConfig
from ..data.captions.config import CaptionData
from ..data.texts.config import SentenceData
from ..errors import Field, UserError, fields_inside

M = TypeVar("M", contravariant=True)


class MetadataEntry(Generic[M]):
    """The base class of the entries of a run's metadata: JSON values in config.json, of networks of config M.

    Without them the network cannot be used. A subclass has to define `valid`; all else has a default.
    """

    of_head: ClassVar[bool] = False  # whether only the head depends on it, so that --new-head resolves a conflict
    optional: ClassVar[bool] = False  # whether its absence has a meaning, too
    of_training: ClassVar[bool] = False  # whether only training reads it, so that no use of the network needs it

    def valid(self, value: Any) -> bool:
        """Whether a JSON value has the right form."""
        raise NotImplementedError

    def fits(self, value: Any, model: M) -> bool:
        """Whether a valid value can belong to this network."""
        return True

    def part_lacking(self, model: M) -> str:
        """The part of this network that is not there, and without which no value is of use; else empty."""
        return ""

    def default(self, model: M) -> tuple[Any, str] | None:
        """(the value for a network whose file does not state it, a note for the user); None: there is no default."""
        return None

    def conflict(self, given: Any, wanted: Any) -> str:
        """A clause naming a difference that would change the meaning of inputs or outputs; else empty.

        `wanted` is that of a run that is to start from them; None where it has none, of an optional entry.
        """
        return ""

    def in_files(self, value: Any) -> bool:
        """Whether a value is of no use without files of its run."""
        return False


# What a subclass of TaskSpec has to define, and what for.
_TO_WRITE = {
    "network": "the class of the config of the network that it trains",
    "data": "the class of the config of its data",
    "computes": "its Task, which needs jax, as text: module:class",
}


class TaskSpec:
    """The base class of the specs of tasks. Nothing is an instance of them: the table has the classes.

    A subclass has to define `network`, `data` and `computes`; all else has a default. Methods take the run: its parts
    are of the classes that the spec names, which runs/check.py sees to.
    """

    network: ClassVar[type[NetworkConfig]]
    data: ClassVar[type[DataConfig]]
    computes: ClassVar[str]  # module:class of its Task
    augment: ClassVar[type[AugmentConfig]] = AugmentConfig
    loss: ClassVar[type[LossConfig]] = LossConfig
    losses: ClassVar[tuple[str, ...]] = ("cross_entropy",)  # the values of loss.name that it has, the default first
    weighs: ClassVar[bool] = False  # whether its loss has class_weights, prior and focal
    main_metrics: ClassVar[Mapping[str, str]] = {"loss": "loss"}  # {metric: its name in print}, in order of importance
    metadata: ClassVar[Mapping[str, MetadataEntry[Any]]] = {}  # what config.json may have of the data, by name
    # Fields of data and augment, "data.fit", that determine how inputs are prepared: see `prepared_as`.
    prepared: ClassVar[tuple[str, ...]] = ()
    has_teacher: ClassVar[bool] = False  # whether its loss compares with a teacher: see `check_teacher`
    unit: ClassVar[str] = "examples"  # what an example is called, in the plural; the log has {unit}_per_second
    pipeline: ClassVar[str] = ""  # what the Hugging Face Hub calls it, where its network does not tell

    def __init_subclass__(cls, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not abstract:
            cls.check_members()

    @classmethod
    def check_members(cls) -> None:
        """Raise TypeError where it lacks what a subclass has to define."""
        for member, purpose in _TO_WRITE.items():
            if not hasattr(cls, member):
                raise TypeError(f"{cls.__name__} lacks {member}: {purpose}; define it in the class")

    @classmethod
    def check(cls, run: RunConfig) -> None:
        """Raise UserError naming the first field that is invalid in a run of this task, by default of its network."""
        with fields_inside("model"):
            run.model.with_data().check()

    @classmethod
    def with_data(cls, run: RunConfig, metadata: Mapping[str, Any]) -> RunConfig:
        """The run with the fields filled that are marked "from_data" and left open, beside sizes of its network."""
        if run.loss.name:
            return run
        loss = replace(run.loss, name=cls.losses[0])  # type: ignore[arg-type]  # one of its own
        return replace(run, loss=loss)

    @classmethod
    def stand_in(cls, run: RunConfig, length: int = 0) -> StandIn:
        """What stands for the data of a run whose steps are only compiled.

        `length` is that of the texts that it learns to write, in tokens; 0: the longest.
        """
        raise UserError(Field("task"), f"is {run.task}, whose steps cannot be compiled without its data", "train it")

    @classmethod
    def trains(cls, model: NetworkConfig) -> bool:
        """Whether it trains such networks."""
        return type(model) is cls.network

    @classmethod
    def untrained(cls, task: str, model: NetworkConfig) -> RunConfig:
        """A run of this task, by its name in the table, with a network that was never trained."""
        return RunConfig(task, model, cls.data(source=NO_DATA), cls.augment(), optim=OptimConfig(name="sgd"))

    @classmethod
    def needed(cls, metadata: Mapping[str, Any]) -> Mapping[str, MetadataEntry[Any]]:
        """The entries that config.json has to have, beside what `metadata` states."""
        return cls.metadata

    @classmethod
    def prepared_as(cls, metadata: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """{field of `prepared`: its value} of a run that starts from weights; the user states those `given`."""
        return {}

    @classmethod
    def other_outputs(cls, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
        """A clause where the metadata of weights and of a run say that outputs mean something else; else empty."""
        return ""

    @classmethod
    def refitted(
        cls, parameters: Mapping[str, np.ndarray], given: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Parameters {dotted name: array} of weights whose head gives outputs as those of a run are stated.

        Args:
            parameters: those that the run starts with, without those of a new head.
            given: the metadata of the weights.
            wanted: that of the run's data.
        """
        return dict(parameters)

    @classmethod
    def metadata_with_weights(cls, run: RunConfig) -> dict[str, Any]:
        """Entries of `metadata` of what lies beside weights from elsewhere, such as a tokenizer.

        The run has the fields that `DataConfig.fields_with_weights` has found.
        """
        return {}

    @classmethod
    def check_teacher(cls, teacher: Teacher, run: RunConfig, data: Any) -> None:
        """Raise UserError where a teacher cannot teach a run; `data` is None before that is opened."""


Shape = tuple[tuple[int, ...], str]  # of an array: its shape, its dtype


@dataclass(frozen=True)
class StandIn:
    """The run, metadata and batches as opened data would give them."""

    run: RunConfig
    metadata: Mapping[str, Any]
    batch: Mapping[str, Shape]
    examples: Mapping[str, Shape]
    length: int = 0

    @property
    def rows(self) -> int:
        """Examples in the training batch."""
        return rows_of(self.batch)


def rows_of(batch: Mapping[str, Shape]) -> int:
    """The number of examples in a batch."""
    return next(iter(batch.values()))[0][0]


def with_sizes(run: RunConfig, sizes: Mapping[str, int]) -> RunConfig:
    """The run with these sizes of its network where it leaves them to its data."""
    given = {name: value_at(run.model, name) for name in run.model.marked("from_data")}
    found = {name: size or sizes.get(name, 0) for name, size in given.items()}
    if missing := [f"model.{name}" for name, size in found.items() if not size]:
        others = f", and so {'is' if len(missing) == 2 else 'are'} {', '.join(missing[1:])}" if missing[1:] else ""
        raise UserError(
            Field(missing[0]),
            f"is 0{others}: this is left to the data, and no data is opened to compile a step",
            "give the number" + ("s" if others else ""),
        )
    return replace(run, model=run.model.with_sizes(found))


def vocabulary_of(data: SentenceData | CaptionData) -> int:
    """The ids of a tokenizer that is trained on the data, at most; 0 of any other, whose data or files tell."""
    return data.vocabulary if data.tokenizer in TRAINED else 0


def check_length(length: int, longest: int, field: str) -> int:
    """The length of sequences that is asked for; 0: the longest."""
    if length > longest:
        raise UserError(Field("length"), f"is {length}, and {field} is {longest}", f"give at most {longest}")
    return length or longest
