"""What only some tasks can: small classes, of which a task lists its own in `can`.

`task.able(Draws)` is the task's own class of that, or the one here, which does nothing. B is the number of examples of
a batch, n that of a split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..config.network import Teacher
from ..config.run import RunConfig
from ..data.base import GivenData
from ..errors import Field, UserError
from ..figures.parts import Part
from ..machine.targets import HERE, Target

Rows = tuple[tuple[str, ...], Iterable[tuple[str | int, ...]]]  # of a CSV file: names of columns, a row an example


class Ability:
    """The base class of what a task can, made with the task."""

    def __init__(self, task: Any):
        self.task = task


Abilities = tuple[type[Ability], ...]


class Counts(Ability):
    """Counting what of a batch is learned, where that is not its examples."""

    def denominator(self, batch: dict[str, Any]) -> Any:
        """What the sums of a loss are divided by, such as the number of tokens of a prepared batch, or of a part of it.

        A sum over the examples, [], or [k] where metrics are divided by something else; None if the loss is a mean over
        examples. Traced by jax.jit.
        """
        return None

    def tokens(self, batch: dict[str, Any]) -> tuple[int, int, int]:
        """(Target tokens of a batch, ends included; places for ids; how many are padding); 0s where it has no ids."""
        return 0, 0, 0


class HasFrozen(Ability):
    """Having arrays that do not learn, such as a teacher's."""

    in_outputs: ClassVar[bool] = False  # whether `Task.outputs` uses them, as `Task.loss` does

    def load(self, teacher: Teacher | None, target: Target = HERE) -> Any:
        """The task with its `frozen_arrays`. Called for training and evaluation only.

        The teacher is the run's, opened and checked by the task's spec; None if the run names none.
        """
        return self.task


class Examines(Ability):
    """Measuring more of a final result than `Task.score` does."""

    def examine(self, config: Any, split: Any, out: dict[str, Any]) -> Any:
        """What `score` returns, with what takes longer."""
        return self.task.score(config, split, out)

    def resample(self, config: Any, split: Any, out: dict[str, Any]) -> dict[str, float]:
        """The metrics of n examples drawn with replacement, for intervals."""
        return self.task.score(config, split, out).metrics  # type: ignore[no-any-return]

    def at_chance(self, split: Any, result: Any) -> str:
        """A sentence where a result is no better than without the inputs; empty: it is, or not known."""
        return ""

    def mirrored(self) -> Any:
        """The task whose evaluations have `flipped` too, of examples with their mirror images; None: they have none."""
        return None


class MeasuresOthers(Ability):
    """Measuring a trained network on data that it was not trained on."""

    def open_data(self, run: RunConfig, metadata: Mapping[str, Any], split: str, given: GivenData | None = None) -> Any:
        """That data, prepared for the network as its own was, as data.Other has them.

        `run.data` says where it is, unless Python has given it; `split` is that which was asked for, or ''.
        """
        raise UserError(
            Field("data.source"),
            f"is {run.data.source}, but a network of the task {run.task} is measured on the data of its run alone",
            "leave it out",
        )


class Probes(Ability):
    """Being seen by a probe, which learns classes from the network's features (commands/probe.py)."""

    @property
    def unprobed(self) -> str:
        """Why the data of training have no classes to learn; empty: they have."""
        return ""

    def probed(self) -> Any:
        """The task with which a probe sees the network; None where examples have no class, or the network no features.

        Its `outputs` are {"pooled": [B, D]}, its `score` takes {"scores": [n, K]}, what the probe gives each class, and
        its `open_data` opens data of any classes, whose number is `classes` of its sizes and whose splits have
        `labels`, int [n].
        """
        return None


class Searches(Ability):
    """Generating, by a search with settings."""

    def with_settings(self, changes: Mapping[str, Any]) -> Any:
        """The task with these fields of config.decoding.Decoding for its search; None where nothing is generated."""
        return None


class Calibrates(Ability):
    """Deciding by validation, once a run has ended, how its outputs are read."""

    @property
    def decides(self) -> tuple[str, ...]:
        """What is decided, in words; empty: nothing."""
        return ()

    def calibrate(self, split: Any, out: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Decide it by the outputs that `score` takes.

        Returns (what summary.json keeps of it: see runs/folder.py; the task that reads outputs so).
        """
        raise NotImplementedError


class Tabulates(Ability):
    """Writing an evaluation as a table."""

    def predicted(self, split: Any, result: Any, metadata: Mapping[str, Any]) -> Rows:
        """What is predicted of each example."""
        return ("example", "predicted"), ((split.name(i), str(said)) for i, said in enumerate(result.predicted))

    def values(self, split: Any, result: Any) -> Rows:
        """Every probability or number beside the truth, where a network has columns."""
        raise NotImplementedError


class Draws(Ability):
    """Drawing a trained network, and its results."""

    def network(self, network: Any, data: Any, plots: Path, samples: Path, caption: str) -> tuple[str, Sequence[Part]]:
        """Draw a trained network into the folder `plots`, and write sample inputs into the folder `samples`.

        Args:
            data: what `open_data` returned.
            caption: a line for each figure, which says which weights it shows.

        Returns:
            (an input for the command `vit_jax.predict` to show to the user: a text, or a file's path from the folder
            that holds `samples`; '' if there is none; what a page about the network is to show).
        """
        return "", ()

    def result(
        self, split: Any, result: Any, metadata: Mapping[str, Any], folder: Path, caption: str
    ) -> tuple[tuple[str, ...], Sequence[Part]]:
        """Write figures or texts on the result of a split into `folder`, which exists: above all its worst examples.

        Returns (lines to print, which say what is in the folder; what a page about the result is to show).
        """
        return (), ()
