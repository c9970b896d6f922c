"""The progress of a run: a live bar on a terminal and in a notebook, plain lines in a file or a pipe.

The line is not one of rich.progress, which cuts every column where a terminal is too narrow for all of them: here the
least important ones are left out, and a notebook gets the same line as text.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

TICK = 0.125  # seconds between redraws, which happen in `update`: a thread would compete with XLA for the cores
CELL_TICK = 0.5  # the same in a notebook, where each is a message to a browser
CELL_WIDTH = 100  # characters of a line there
PLAIN = 10.0  # seconds
WINDOW = 60.0  # the speed is that of the last so many seconds of training steps

# Layouts of the live line from wide to narrow: (least width of the bar, long labels, columns). The first one is used
# whose bar gets at least that width on the terminal.
LAYOUTS: tuple[tuple[int, bool, tuple[str, ...]], ...] = (
    (24, True, ("epoch", "bar", "step", "loss", "metric", "speed", "tokens", "eta")),
    (24, True, ("epoch", "bar", "step", "loss", "metric", "speed", "eta")),
    (8, True, ("epoch", "bar", "loss", "metric", "speed", "eta")),
    (8, False, ("epoch", "bar", "loss", "metric", "speed", "eta")),
    (4, False, ("epoch", "bar", "loss", "metric", "eta")),
    (0, False, ("epoch", "loss", "metric", "eta")),
    (0, False, ("epoch", "loss", "eta")),
    (0, False, ("epoch", "loss")),
    (0, False, ("epoch",)),
)
WIDEST_BAR = 60
STYLES = {"epoch": "bold", "step": "dim", "speed": "dim", "tokens": "dim", "eta": "cyan"}


class Progress:
    """Shows a run, as a context manager around its steps, which count from 1 over it with all its resumptions."""

    def __init__(
        self,
        epochs: int,
        steps_per_epoch: int,
        start: int,
        batch: float,
        stop: int | None = None,
        *,
        unit: str = "images",
        console: Console | None = None,
    ):
        self.epochs, self.steps_per_epoch, self.batch = epochs, max(steps_per_epoch, 1), batch
        self.unit = unit
        self.stop = stop or epochs * self.steps_per_epoch
        self.step = max(start - 1, 0)
        self.values: dict[str, float] = {}
        self.speeds: dict[str, float] = {}  # of those that `update` takes the ones that are known
        self._begun = self._tick_due = time.monotonic()
        self._line_due = self._begun + PLAIN
        self._line_step = self.step
        self._stepping, self._last = 0.0, -1.0  # seconds spent in steps; when the newest of them ended, or below 0
        self._past: deque[tuple[float, int]] = deque()  # (seconds spent in steps, steps done)
        self._ended = False
        self._display = cell_display() if console is None else None
        self._console = console or _console_of(self._display)
        self._ticks = TICK if self._display is None else CELL_TICK
        self._live: Any = None

    def __enter__(self) -> Progress:
        if self._display is not None:
            self._live = CellLine(self._bar(), self._display)
        elif self._console is not None and self._console.is_terminal:
            from rich.live import Live

            self._live = Live(self._bar(), console=self._console, auto_refresh=False)
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        if self._live is not None:
            self._live.update(self._bar())  # stop() draws it
            self._live.stop()
            self._live = None
        elif self.step > self._line_step:
            self._print_line()

    def update(self, step: int, values: dict[str, float] | None = None, **speeds: float | None) -> None:
        """Report a step, with `examples` and `tokens` per second, `padding` and `mfu`; what lacks is as before."""
        self.step, self.values = step, self.values if values is None else values
        self.speeds |= {name: x for name, x in speeds.items() if x is not None}
        now = time.monotonic()
        self._stepping, self._last = self._stepping + (now - self._last if self._last >= 0 else 0.0), now
        if now >= self._tick_due:
            self._tick(now)
        if self._live is None and step % self.steps_per_epoch == 0:
            self._print_line()

    def restart(self) -> None:
        """Leave what has passed since the last `update` out of the speed: an evaluation, or a save."""
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line above the bar. Long lines are left to the terminal to wrap, so that commands can be copied."""
        if told.get() != "full":
            return
        if self._live is not None and self._console is not None:
            self._console.print(_printable(text, self._console.encoding), markup=False, highlight=False, soft_wrap=True)
        else:
            self._print(text)

    def _tick(self, now: float) -> None:
        """Update the speed and redraw, or print a plain line if one is due."""
        self._tick_due = now + self._ticks
        self._past.append((self._stepping, self.step))
        while len(self._past) > 2 and self._past[1][0] < self._stepping - WINDOW:
            self._past.popleft()
        if self._live is not None:
            self._live.update(self._bar(), refresh=True)
        elif now >= self._line_due and self.step % self.steps_per_epoch:  # `update` prints the line of an epoch's end
            self._print_line()

    def _print_line(self) -> None:
        self._line_due, self._line_step = time.monotonic() + PLAIN, self.step
        cells = self._cells(words=True)
        self._print("  ".join(cells[name] for name in LAYOUTS[0][2] if name in cells))

    def _print(self, text: str) -> None:
        file = self._console.file if self._console is not None else sys.stdout
        print(_printable(text, getattr(file, "encoding", None)), file=file, flush=True)

    def _speed(self) -> float | None:
        """Steps per second over the last minute of steps; None before two times are known."""
        if len(self._past) < 2:
            return None
        (then, first), (now, last) = self._past[0], self._past[-1]
        return (last - first) / (now - then) if last > first and now > then else None

    def _cells(self, words: bool) -> dict[str, str]:
        """{column: its text} of the columns whose values are known, with long labels or (not `words`) short ones."""
        epoch = min((max(self.step, 1) - 1) // self.steps_per_epoch + 1, self.epochs)
        speed = self._speed()
        examples = self.speeds.get("examples", speed and speed * self.batch)
        cells = {"epoch": f"{'epoch ' if words else ''}{epoch}/{self.epochs}", "step": f"step {self.step}/{self.stop}"}
        if "loss" in self.values:
            cells["loss"] = "loss " + _number(self.values["loss"], words)
        metric = next((name for name in self.values if name != "loss"), None)
        if metric is not None:
            cells["metric"] = (
                f"{metric} {self.values[metric]:.3f}" if words else f"{metric[:3]} {self.values[metric]:.2f}"
            )
        if examples:
            cells["speed"] = f"{examples:,.0f} {self.unit}/s" if words else f"{examples:,.0f}/s"
            cells["speed"] += f", MFU {self.speeds['mfu']:.0%}" if words and "mfu" in self.speeds else ""
        if "tokens" in self.speeds:
            cells["tokens"] = f"{self.speeds['tokens']:,.0f} tokens/s"
            cells["tokens"] += f", {self.speeds['padding']:.0%} padding" if "padding" in self.speeds else ""
        if self._ended:
            cells["eta"] = f"took {_clock(time.monotonic() - self._begun)}"
        elif speed:
            cells["eta"] = f"ETA {_clock((self.stop - self.step) / speed)}"
        return cells

    def _bar(self) -> Text:
        """The live line, at most as wide as the console."""
        from rich.text import Text

        options = self._console.options  # type: ignore[union-attr]  # there is a bar only where there is a console
        for least, words, names in LAYOUTS:
            cells = self._cells(words)
            shown = [name for name in names if name in cells or name == "bar"]
            gap = "  " if words else " "
            room = options.max_width - sum(len(cells.get(name, "")) for name in shown) - len(gap) * (len(shown) - 1)
            if room >= least:
                break
        line = Text(no_wrap=True, overflow="crop", end="")
        for name in shown:
            if line:
                line.append(gap)
            if name == "bar":
                width = min(room, WIDEST_BAR)
                done = width * min(self.step, self.stop) // self.stop
                full, rest = ("#", ".") if options.ascii_only else ("━", "─")
                line.append(full * done, style="green").append(rest * (width - done), style="dim")
            else:
                line.append(cells[name], style=STYLES.get(name, ""))
        return line


def _console_of(display: Callable[..., Any] | None) -> Console | None:
    """A rich console if stdout is a terminal that can redraw a line, or a notebook's cell (plain text), else None."""
    if display is None and not sys.stdout.isatty():
        return None
    from rich.console import Console

    if display is not None:
        return Console(width=CELL_WIDTH, force_jupyter=False, force_terminal=False, no_color=True)
    console = Console()
    return console if console.is_interactive else None


def _printable(text: str, encoding: str | None) -> str:
    """The text with '?' for each character that the encoding lacks."""
    return text.encode(encoding or "utf-8", "replace").decode(encoding or "utf-8")


def _number(value: float, words: bool) -> str:
    """A loss with four decimals, or (not `words`) three digits; the width hardly changes from one value to the next."""
    if abs(value) < 100:
        return f"{value:.4f}" if words else f"{value:#.3g}"
    return f"{value:.4g}" if words else f"{value:.3g}"


def _clock(seconds: float) -> str:
    """A duration as m:ss, h:mm:ss or, from 24 hours on, "1d 2h"."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


Told = Literal["full", "short", "none"]
told: ContextVar[Told] = ContextVar("told", default="full")
HIDDEN = ("patches", "positions")


@contextlib.contextmanager
def telling(what: Told) -> Iterator[None]:
    """A context in which runs tell more or less."""
    if what not in get_args(Told):
        raise UserError("progress", f"is {what!r}", f"give {', '.join(get_args(Told))}")
    token = told.set(what)
    try:
        with suppress_output() if what == "none" else contextlib.nullcontext():
            yield
    finally:
        told.reset(token)


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """A context in which nothing is printed."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def show_figures(plots: Path) -> None:
    """Show the figures of a run below the cell of a notebook: curves first."""
    display = cell_display() if told.get() == "full" else None
    if display is None:
        return
    files = [file for file in plots.glob("*.png") if file.stem not in HIDDEN]
    for file in sorted(files, key=lambda file: (file.stem != "curves", file.name)):
        picture = base64.b64encode(file.read_bytes()).decode()
        name = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        display({"image/png": picture, "text/plain": str(name)}, raw=True)


def cell_display() -> Callable[..., Any] | None:
    """IPython's `display` if this process is the kernel of a notebook, else None. IPython is never imported for it."""
    if told.get() == "none":
        return None
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if hasattr(ipython, "get_ipython") else None
    return import_module("IPython.display").display if hasattr(shell, "kernel") else None


class CellLine:
    """A line in the output of a cell; it is used as rich.live.Live is, of which it has three methods."""

    def __init__(self, line: Text, display: Callable[..., Any]):
        self._line, self._display = line, display
        self._handle: Any = None

    def start(self, refresh: bool = True) -> None:
        """Show the line."""
        self._handle = self._display({"text/plain": self._line.plain}, raw=True, display_id=True)

    def update(self, line: Text, refresh: bool = False) -> None:
        """Take another line in its place."""
        self._line = line
        if refresh:
            self.stop()

    def stop(self) -> None:
        """Show the line as it is now."""
        self._handle.update({"text/plain": self._line.plain}, raw=True)
