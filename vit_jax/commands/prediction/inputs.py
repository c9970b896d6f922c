"""What a command is given to answer: sources as arguments name them, and stdin, line by line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import runs
from ...config.run import RunConfig
from ...errors import UserError, about
from ...files.lines import Line, arriving_lines
from ...machine import backend
from ...plugins import READERS
from ...text.classes import UNSTATED, Spoken
from ..share import Share
from .sources import Source, sources_of

STDIN = "-"
_ONE_A_LINE = {
    "pixels": "give one image file a line",
    "vectors": "give one vector a line, as FILE or FILE:ROW",
    "ids": "give one sentence a line",
}


def is_piped() -> bool:
    """Whether stdin is there and no terminal: a file or a pipe, from which inputs may be read."""
    return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()


def is_blank(given: Any) -> bool:
    """Whether an input is a line without a word, which has a blank answer."""
    return isinstance(given, Line) and not given.strip()


def batch_starts(inputs: Sequence[Any], batch: int) -> list[int]:
    """Where the batches of some inputs begin; blank ones are in none, and lie between them."""
    places = [i for i, given in enumerate(inputs) if not is_blank(given)]
    return [0, *places[batch::batch]]


def count_asked(inputs: Sequence[Any]) -> int:
    """The number of inputs that are not blank."""
    return sum(not is_blank(given) for given in inputs)


class Inputs:
    """The inputs of a command, in order. Those on stdin are read as they come; all others are checked beforehand."""

    def __init__(self, kind: str, given: Sequence[str], column: str):
        self.kind, self._parts = kind, list[Source | None]()  # None: stdin
        for several in _apart(given):
            self._parts += [None] if several is None else sources_of(kind, several, column)
        self.rows = range(sum(map(len, self.sources)))  # those to be answered, of all but stdin
        self.before = 0  # inputs before these, of which none is blank

    @property
    def total(self) -> int | None:
        """How many there are; None where that shows at the end of stdin."""
        return None if None in self._parts else sum(map(len, self.sources))

    @property
    def sources(self) -> list[Source]:
        """All but stdin."""
        return [part for part in self._parts if part is not None]

    def take(self, share: Share, batch: int) -> None:
        """Keep the rows of a share. Raises UserError where another command cannot have the others."""
        if self.total is None:
            raise UserError("inputs", "is stdin, which another share cannot read", "give a file that lists them")
        starts, total = list[int](), 0
        for source in self.sources:  # texts and vectors are one
            size = len(source)
            begin = range(0, size, batch) if self.kind == "pixels" else batch_starts(source.read(0, size), batch)
            starts += [total + start for start in begin]
            total += size
        self.rows = share.rows(starts, total)
        first = self.rows.start
        self.before = first if self.kind == "pixels" else count_asked(self.sources[0].read(0, first))

    def groups(self, batch: int) -> Iterator[list[Any]]:
        """The inputs in groups of at most `batch`; texts and vectors that are no lines of stdin are one group."""
        offset = 0
        for part in self._parts:
            if part is not None:
                size = batch if self.kind == "pixels" else len(part)
                start, stop = (min(max(row - offset, 0), len(part)) for row in (self.rows.start, self.rows.stop))
                yield from (part.read(i, min(i + size, stop)) for i in range(start, stop, size or 1))
                offset += len(part)
                continue
            errors = "strict" if self.kind == "ids" else "surrogateescape"  # names of files may be no UTF-8
            for lines in arriving_lines(sys.stdin.buffer, "stdin", batch, errors):
                yield [line if is_blank(line) else _one(self.kind, line) for line in lines]


def _apart(given: Sequence[str]) -> Iterator[list[str] | None]:
    """Arguments, cut at each `-`, for which None stands. Raises UserError where it is given twice."""
    if given.count(STDIN) > 1:
        raise UserError("inputs", "has - twice, and stdin can be read once", "give it once")
    some: list[str] = []
    for text in given:
        if text != STDIN:
            some.append(text)
            continue
        if some:
            yield some
        yield None
        some = []
    if some:
        yield some


def _one(kind: str, line: Line) -> Any:
    """A line of stdin as the one input that it names. Raises UserError."""
    if kind == "pixels":
        path = Path(line)
        if path.is_dir():
            raise UserError(line.where, f"{line} is a folder", "give folders as arguments, or one image file a line")
        if not path.exists():
            raise UserError(line.where, f"there is no image {line}", _ONE_A_LINE[kind])
        return path
    if kind in READERS:
        with about(line.where):
            several = len(READERS[kind].load()([line]))
        if several != 1:
            raise UserError(line.where, f"{line} has {several} rows", _ONE_A_LINE[kind])
    return line


if TYPE_CHECKING:
    from flax import nnx

    from ...tasks.predictor import Predictor


def takes(path: str) -> tuple[str, str]:
    """(the kind of the inputs of a network, the column of its run's own table that names the images, if there is one).

    The kind is empty where it is not known, of weights that `open_network` refuses with more to say.
    """
    if not runs.is_foreign(path):
        return taken_by(runs.find(path, weights=True).config())
    from ...weights.interop import config_in

    with contextlib.suppress(UserError):
        return config_in(path).inputs()[0].kind, ""
    return "", ""


def taken_by(run: RunConfig) -> tuple[str, str]:
    """`takes` of the network of a run."""
    return run.model.inputs()[0].kind, getattr(run.data, "file_column", "")


def open_network(
    path: str | Mapping[str, object] | Predictor | nnx.Module,
    which: str,
    ema: bool | None,
    search: Mapping[str, Any] | None = None,
    spoken: Spoken = UNSTATED,
) -> Predictor:
    """The network of a run, of a file of any layout or in memory, with these settings of its search and languages.

    A missing run is reported before jax starts.
    """
    if isinstance(path, str) and not runs.is_foreign(path):
        runs.find(path, weights=True)
    backend.configure_jax()
    from ...tasks.generated import searching
    from ...weights.load import complete

    model = complete(path, which, ema, spoken)
    return replace(model, task=searching(model.task, search)) if search else model


def caption(path: str, model: Predictor, which: str, ema: bool | None) -> str:
    """A line for a figure: what was given, and which of its weights were used."""
    from ...figures.figure import weights_caption
    from ...files.output import shorten

    if runs.is_foreign(path):
        return shorten(path.rstrip("/"), 60)

    folder, step, best = runs.find(path), model.step, None
    if which == "best" and (steps := folder.complete_steps()):
        with contextlib.suppress(UserError):
            best = folder.saved(steps[0])["notes"].get("best")
    if runs.mean_of(which):
        return f"{shorten(folder.path.name, 40)}: {which} weights up to step {step:,}"
    averaged = folder.config().ema and ema is not False and (ema or (best or {}).get("weights", "ema") == "ema")
    epoch = next((row["epoch"] for row in folder.metrics() if row["step"] == step and "epoch" in row), None)
    words = weights_caption("best" if best else "last", "ema" if averaged else "raw", step, epoch)
    return f"{shorten(folder.path.name, 40)}: {words}"
