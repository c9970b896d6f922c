"""What happens in a run, as the loop over its steps tells it, and what a run ends with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from ..errors import UserError

if TYPE_CHECKING:
    from ..tasks.predictor import Predictor

T = TypeVar("T")


class Summary(TypedDict, total=False):
    """The content of summary.json, and the run's folder.

    It also has an entry for each other split that was measured at the end. Where a run has a budget, `status` is
    "stopped: max_steps" or the like, else "finished".
    """

    status: str
    step: int
    epoch: float
    seconds: float
    best: dict[str, Any] | None  # of validation: step, the metric that chose it, loss and which weights
    train: dict[str, dict[str, float]]  # {which weights: metrics}
    validation: dict[str, dict[str, float]]
    test: dict[str, dict[str, float]]
    notes: list[str]
    sample: str
    tokens_per_second: float
    padding: float
    mfu: float
    folder: str


@dataclass(frozen=True)
class Event:
    """Something that has happened in a run.

    A step is told once its metrics are read, while the devices may do the next one; an evaluation after the step that
    it follows; the end last, with the summary of the run.
    """

    kind: Literal["step", "evaluation", "end"]
    step: int
    epoch: float  # with fractions
    metrics: Mapping[str, float] = field(default_factory=dict)  # of this step's batch, or of the split
    split: str = ""  # of an evaluation
    weights: str = ""  # of an evaluation: raw, or ema, their average
    summary: Summary | None = None
    _now: Callable[[], Predictor] | None = field(default=None, repr=False, compare=False)

    def network(self) -> Predictor:
        """A copy of the network with its newest weights, as `vit_jax.load` returns one."""
        if self._now is None:
            raise UserError("the run has ended", remedy="open it with vit_jax.load(event.summary['folder'])")
        return self._now()


def exhausted(steps: Generator[Any, None, T]) -> T:
    """What a generator returns after its last event."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
