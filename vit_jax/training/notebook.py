"""What a run shows in a notebook: a progress line, written over by IPython's display, and at the end its figures."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import UserError

if TYPE_CHECKING:
    from rich.text import Text


Told = Literal["full", "short", "none"]
told: ContextVar[Told] = ContextVar("told", default="full")  # what a run tells while it trains
HIDDEN = ("patches", "positions")  # figures that are not shown below a cell


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
