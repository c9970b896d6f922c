"""The answers of a network to the inputs of a command, in their order, and how they are printed.

They are for eyes on a terminal, one a line for other programs, or JSON.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ...files.terminal import print_note, print_wrapped, printable
from .inputs import Inputs, is_blank

if TYPE_CHECKING:
    from ...tasks.predictor import Answer, Predictor

Row = tuple[str | int, ...]
PAUSE = 0.2  # seconds between two counts


class Answering:
    """How inputs are answered, and what was noticed of them."""

    def __init__(self, model: Predictor, top: int, batch: int, skip: bool, before: int = 0):
        self.model, self.top, self.batch, self.skip = model, top, batch, skip
        self.before = before  # inputs of other shares before these, for draws
        self.errors = list[UserError]()
        self.asked = 0  # inputs that are not blank, readable or not
        self._noted = False

    def answers(self, inputs: Inputs | Iterable[Any]) -> Iterator[Answer]:
        """One Answer per input; one that says nothing to a blank line, and to an image that cannot be read."""
        for group in inputs.groups(self.batch) if isinstance(inputs, Inputs) else [list(inputs)]:
            begin = self.before + self.asked - len(self.errors)
            asked = self._readable([each for each in group if not is_blank(each)])
            found = self.model.answer(asked, self.top, self.batch, begin)
            if len(asked) == len(group):  # a file of vectors among them has several answers
                yield from found
                continue
            answered = {*map(id, asked)}
            for each in group:
                yield next(found) if id(each) in answered else self._nothing(each)
        self._report()

    def readable(self, inputs: Inputs) -> dict[int, Any]:
        """All inputs but blank ones and those that cannot be read, by their numbers."""
        found, numbers = dict[int, Any](), itertools.count(inputs.rows.start)
        for group in inputs.groups(self.batch):
            asked = {id(one) for one in self._readable([one for one in group if not is_blank(one)])}
            found |= {i: one for one, i in zip(group, numbers, strict=False) if id(one) in asked}
        self._report()
        if not found:
            raise UserError("inputs", "none given", "give image files or folders, or sentences, after the run")
        return found

    def _readable(self, inputs: list[Any]) -> list[Any]:
        """Those inputs that can be read, where others are to be left out; else all."""
        self.asked += len(inputs)
        self._note_wide(inputs)
        if not self.skip:
            return inputs
        found, errors = self.model.readable(inputs)
        self.errors += errors
        return found

    def _nothing(self, given: Any) -> Answer:
        """The answer that says nothing; of a blank line a row of a table, of an image that is left out none."""
        from ...tasks.predictor import Answer

        rows: list[Row] = [(str(given), *[""] * (len(self.model.header) - 1))] if is_blank(given) else []
        return Answer(given, [], "", rows, ())

    def _note_wide(self, inputs: list[Any]) -> None:
        """Say once what becomes of pixels with more than 8 bits, where the network states no range of theirs."""
        from ...data.inputs import wide_remarks

        if self._noted or self.model.metadata.get("preprocess", {"range": True}).get("range"):
            return
        for remark in wide_remarks(inputs):
            self._noted = True
            print_note(remark, sys.stderr)

    def _report(self) -> None:
        """Say which images cannot be read. Raises UserError where there are no others."""
        from ...data.images.preprocess import left_out

        errors = self.errors
        if errors and len(errors) == self.asked:
            if self.asked == 1:
                raise errors[0]
            raise UserError(f"none of the {self.asked:,} images can be read", errors[0].fault, errors[0].remedy)
        if errors:
            print_note(left_out([error.subject for error in errors]), sys.stderr)


# ------------------------------------------------------------------------------------------------ printing


def say(label: str, text: str) -> None:
    """Print a line on stderr, where it is apart from answers."""
    print_wrapped(f"{label:8} {printable(text)}", sys.stderr)


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def prepare_stdout(for_programs: bool) -> None:
    """Have stdout take every text, as UTF-8, and names of files as they are, where other programs read it."""
    if for_programs and (reconfigure := getattr(sys.stdout, "reconfigure", None)):
        reconfigure(encoding="utf-8", errors="surrogateescape")


def for_eyes(answer: Answer) -> str:
    """An answer with its input, and what would steer the terminal as an escape; an empty line for a blank one."""
    return "\n".join(map(printable, answer.line.split("\n")))


def in_lines(answer: Answer, lines: int) -> str:
    """The best answers alone, for a pipe."""
    said = [text.replace("\r", "\\r").replace("\n", "\\n") for text in answer.plain[:lines]]
    return "\n".join(said + [""] * (lines - len(said)))


def as_json(answer: Answer, header: Sequence[str]) -> str:
    """An answer as a JSON object in one line, {"input": text, "answers": [{column: value}, ...]}, the best first."""
    columns = [name for name in header[1:] if name != "rank"]
    value = answer.value if isinstance(answer.value, list) else [answer.value]
    said = [
        dict(zip(columns, map(_number, each if isinstance(each, tuple) else (each,)), strict=True)) for each in value
    ]
    record = {"input": str(answer.input), "answers": said}
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:  # a name of a file that is no UTF-8
        return json.dumps(record)
    return json.dumps(record, ensure_ascii=False)


def _number(value: Any) -> Any:
    """A value as JSON has it: nine digits of a number, which tell every float32; null where it is none."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.9g}") if math.isfinite(value) else None


class Count:
    """A count of answers on stderr, where that is a terminal and stdout is not."""

    def __init__(self, total: int | None):
        self._of = "" if total is None else f" of {total:,}"
        self._shown = sys.stderr is not None and sys.stderr.isatty() and not is_terminal()
        self._done, self._due = 0, 0.0

    def add(self) -> None:
        """One more is answered."""
        self._done += 1
        if self._shown and (now := time.monotonic()) >= self._due:
            self._due = now + PAUSE
            print(f"\r{self._done:,}{self._of} answered", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The last one is answered."""
        if self._shown and self._done:
            print(f"\r{self._done:,}{self._of} answered", file=sys.stderr)
