"""Predictions in parts: tables of what a network says of some inputs each, joined to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...data.batches import prefetch
from ...data.progress import progress
from ...errors import UserError
from ...files.stores.open import open_store
from ..prediction.inputs import Inputs, is_blank
from ..prediction.sources import Source, digest_of
from .identity import network_facts
from .job import Job, begin, facts_of, work
from .tables import FORMATS, Rows, check_format, encode, join

if TYPE_CHECKING:
    from ...tasks.predictor import Predictor

REASON = "reason"  # the last column: why an input has no answer
MAKERS = 2  # threads that decode images while others are computed


def predict_parts(
    place: str,
    model: Predictor,
    inputs: Inputs,
    settings: Mapping[str, Any],
    batch: int,
    note: Callable[[str], None],
) -> Job:
    """Compute predictions in parts until all are there.

    Args:
        place: where they are kept.
        model: the network.
        inputs: none of them on stdin.
        settings: part_size, format, top.
        batch: inputs that are computed at a time.
        note: is told what is waited for.

    Raises:
        UserError: the parts there are of something else, or an input cannot be used.
    """
    job = begin_predictions(place, model, inputs, settings)
    format, top = str(settings["format"]), int(settings["top"])
    header, sources = (*model.header, REASON), inputs.sources

    def compute(part: int) -> bytes:
        return encode(format, header, rows_of(model, sources, *job.span(part), batch, top))

    with progress(f"{place}: computing", job.count, "parts") as show:
        mine = work(job, compute, show, note)
    print(f"{place}: all {job.count:,} parts are there, {mine:,} of them by this command")
    return job


def begin_predictions(place: str, model: Predictor, inputs: Inputs, settings: Mapping[str, Any]) -> Job:
    """Begin or join a job of predictions, as of `predict_parts`."""
    facts = {
        "what": "predictions",
        **network_facts(model, model.task),
        "inputs": inputs.total,
        "source": digest_of(inputs.sources),
        **settings,
    }
    return begin(place, facts, f".{settings['format']}")


def rows_of(
    model: Predictor, sources: Sequence[Source], start: int, stop: int, batch: int, top: int
) -> Iterator[Sequence[str | int]]:
    """The rows of a table with what a network says of the inputs from `start` to before `stop`.

    Args:
        model: the network.
        sources: of all inputs.
        start: the first input.
        stop: the one after the last.
        batch: inputs that are computed at a time.
        top: the number of classes.
    """

    def make(first: int) -> tuple[int, list[Any], list[Any]]:
        given = _read(sources, first, min(first + batch, stop))
        return first, given, [each if is_blank(each) else model.prepared(each) for each in given]

    for first, given, prepared in prefetch(make, range(start, stop, batch), MAKERS):
        yield from _rows(model, first, given, prepared, top)


def _rows(model: Predictor, first: int, given: Sequence[Any], prepared: Sequence[Any], top: int) -> Rows:
    """The rows of a batch. In the place of an input without an answer another is computed, so that shapes stay few."""
    usable = [not isinstance(each, UserError) and not is_blank(each) for each in prepared]
    if any(usable):
        stand_in = prepared[usable.index(True)]
        asked = [each if good else stand_in for each, good in zip(prepared, usable, strict=True)]
        answers = model.answer(asked, top, len(asked), first)
    for each, good, found in zip(given, usable, prepared, strict=True):
        answer = next(answers) if any(usable) else None
        if good and answer is not None:
            yield from ((*row, "") for row in answer.rows)
        else:
            reason = found.fault.removeprefix(f"{each}: ") if isinstance(found, UserError) else ""
            yield (str(each), *[""] * (len(model.header) - 1), reason)


def _read(sources: Sequence[Source], start: int, stop: int) -> list[Any]:
    """The inputs from `start` to before `stop` of several sources in a row."""
    found: list[Any] = []
    for source in sources:
        found += source.read(min(max(start, 0), len(source)), min(max(stop, 0), len(source)))
        start, stop = start - len(source), stop - len(source)
    return found


def merge_predictions(place: str, path: str) -> str:
    """Join the parts in a place to one table; returns a line that says what it has.

    Raises:
        UserError: there are none, or some are missing.
    """
    facts = facts_of(place)
    format = facts.get("format")
    if facts.get("what") != "predictions" or format not in FORMATS:
        raise UserError(place, "holds no predictions in parts", "check the place")
    if not path.endswith(f".{format}"):
        raise UserError(f"--merge {path}", f"the parts are {format}", f"give a name that ends in .{format}")
    check_format(format)
    job = Job(open_store(place), facts, f".{format}")
    job.check_whole()
    rows = join(format, map(job.read, range(job.count)), path)
    return f"{path} has {rows:,} rows of {job.count:,} parts"
