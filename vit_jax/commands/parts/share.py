"""What workers compute of inputs in parts: of each part the content of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...data.batches import prefetch
from ...data.progress import progress
from ...errors import UserError
from ..prediction.inputs import Inputs, is_blank
from ..prediction.sources import Source, digest_of
from .identity import network_facts
from .job import Job, begin, work

if TYPE_CHECKING:
    from ...tasks.predictor import Predictor

REASON = "reason"  # why there is nothing of an input
MAKERS = 2  # threads that decode images while others are computed


class Share(NamedTuple):
    """What is computed."""

    what: str
    suffix: str  # of the file of a part
    settings: Mapping[str, Any]  # what decides it, beside the network and the inputs
    content: Callable[[int, int], bytes]  # of the part with the inputs from the first number to before the second


class Asked(NamedTuple):
    """Some inputs that are computed together."""

    first: int  # the number of the first among all
    given: Sequence[Any]
    prepared: Sequence[Any]  # each as the network takes it; a UserError of one that cannot be read
    usable: Sequence[bool]  # whether there is something of it to compute

    def reason(self, i: int) -> str:
        """Why there is nothing of input i; empty of a blank one, and where there is something."""
        found, given = self.prepared[i], self.given[i]
        return found.fault.removeprefix(f"{given}: ") if isinstance(found, UserError) else ""

    def filled(self, other: Any = None) -> list[Any]:
        """The prepared inputs, with another in the place of each that is not usable, so that shapes stay few."""
        stand_in = self.prepared[self.usable.index(True)] if any(self.usable) else other
        return [each if good else stand_in for each, good in zip(self.prepared, self.usable, strict=True)]


def begin_share(place: str, model: Predictor, inputs: Inputs, share: Share, part_size: int) -> Job:
    """Begin a job, or join it."""
    facts = {
        "what": share.what,
        **network_facts(model, model.task),
        "inputs": inputs.total,
        "source": digest_of(inputs.sources),
        "part_size": part_size,
        **share.settings,
    }
    return begin(place, facts, share.suffix)


def compute_share(job: Job, share: Share, note: Callable[[str], None]) -> None:
    """Compute parts until all are there."""
    place = job.store.url
    with progress(f"{place}: computing", job.count, "parts") as show:
        mine = work(job, lambda part: share.content(*job.span(part)), show, note)
    print(f"{place}: all {job.count:,} parts are there, {mine:,} of them by this command")


def batches_of(model: Predictor, sources: Sequence[Source], start: int, stop: int, batch: int) -> Iterator[Asked]:
    """The inputs from `start` to before `stop`, made ready by other threads."""

    def make(first: int) -> Asked:
        given = _read(sources, first, min(first + batch, stop))
        prepared = [each if is_blank(each) else model.prepared(each) for each in given]
        return Asked(first, given, prepared, [not isinstance(x, UserError) and not is_blank(x) for x in prepared])

    return prefetch(make, range(start, stop, batch), MAKERS)


def _read(sources: Sequence[Source], start: int, stop: int) -> list[Any]:
    """The inputs from `start` to before `stop` of several sources in a row."""
    found: list[Any] = []
    for source in sources:
        found += source.read(min(max(start, 0), len(source)), min(max(stop, 0), len(source)))
        start, stop = start - len(source), stop - len(source)
    return found
