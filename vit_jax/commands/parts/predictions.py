"""Predictions in parts: tables of what a network says of some inputs each, joined to one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ...files.output import digits
from ...files.stores.open import open_store
from ..prediction.sources import Source
from .features import FEATURES, join_features
from .job import Job, facts_of
from .share import REASON, Asked, Share, batches_of
from .tables import FORMATS, Row, check_format, encode, join

if TYPE_CHECKING:
    from ...tasks.predictor import Answer, Predictor

PREDICTIONS, PROBABILITIES = "predictions", "probabilities"


def share_of_answers(
    model: Predictor, sources: Sequence[Source], format: str, top: int, batch: int, every: bool
) -> Share:
    """A table of answers."""
    header = (*(("file", *model.columns) if every else model.header), REASON)

    def content(start: int, stop: int) -> bytes:
        rows = (
            row
            for asked in batches_of(model, sources, start, stop, batch)
            for row in _rows(model, asked, top, every, len(header))
        )
        return encode(format, header, rows, all_fractions=every)

    settings = {"format": format, **({} if every else {"top": top})}
    return Share(PROBABILITIES if every else PREDICTIONS, f".{format}", settings, content)


def _rows(model: Predictor, asked: Asked, top: int, every: bool, columns: int) -> Iterator[Row]:
    """The rows of some inputs."""
    some = any(asked.usable)
    answers = model.answer(asked.filled(), top, len(asked.given), asked.first) if some else iter(())
    for i, (given, good) in enumerate(zip(asked.given, asked.usable, strict=True)):
        answer = next(answers) if some else None
        if good and answer is not None:
            yield from ((*row, "") for row in ([_every(answer)] if every else answer.rows))
        else:
            yield (str(given), *[""] * (columns - 2), asked.reason(i))


def _every(answer: Answer) -> Row:
    """The row with every probability of an answer, as --probabilities writes it."""
    assert answer.values is not None  # of a network with columns
    return (str(answer.input), *digits(answer.values))


def check_file(place: str, facts: dict[str, Any], path: str) -> None:
    """Raise UserError where the parts in a place, which have these facts, cannot be joined to a file of this name."""
    what = facts.get("what")
    format = "npz" if what == FEATURES else facts.get("format")
    if what not in (PREDICTIONS, PROBABILITIES, FEATURES) or (what != FEATURES and format not in FORMATS):
        raise UserError(place, "holds no predictions in parts", "check the place")
    if not path.endswith(f".{format}"):
        raise UserError(path, f"the parts are {format}", f"give a name that ends in .{format}")


def merge_parts(place: str, path: str) -> str:
    """Join the parts in a place to one file; returns a line that says what it has."""
    facts = facts_of(place)
    check_file(place, facts, path)
    if facts["what"] == FEATURES:
        job = Job(open_store(place), facts, ".npz")
        job.check_whole()
        return join_features(job, path)
    format = facts["format"]
    check_format(format)
    job = Job(open_store(place), facts, f".{format}")
    job.check_whole()
    rows = join(format, map(job.read, range(job.count)), path)
    return f"{path} has {rows:,} rows of {job.count:,} parts"
