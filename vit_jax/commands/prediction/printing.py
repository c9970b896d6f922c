"""How answers are printed: for eyes on a terminal, one a line for other programs, or as JSON."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...files.terminal import print_wrapped, printable

if TYPE_CHECKING:
    from ...tasks.predictor import Answer

_PAUSE = 0.2  # seconds between two counts


def note(remark: str) -> None:
    """Print a remark on stderr."""
    say("note", remark)


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
            self._due = now + _PAUSE
            print(f"\r{self._done:,}{self._of} answered", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The last one is answered."""
        if self._shown and self._done:
            print(f"\r{self._done:,}{self._of} answered", file=sys.stderr)
