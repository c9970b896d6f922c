"""What stands for the data of a run whose steps are only compiled: sizes and shapes, from the run's fields alone.

Importing this file loads no jax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config.dotted import value_at
from ..config.outputs import TRAINED
from ..config.run import RunConfig
from ..data.captions.config import CaptionData
from ..data.texts.config import SentenceData
from ..errors import Field, UserError

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
