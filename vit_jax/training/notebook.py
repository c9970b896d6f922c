"""The progress line in a notebook: one output of the running cell, written over by IPython's display."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text


def cell_display() -> Callable[..., Any] | None:
    """IPython's `display` if this process is the kernel of a notebook, else None. IPython is never imported for it."""
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
        """Take another line in its place; `refresh` shows it at once."""
        self._line = line
        if refresh:
            self.stop()

    def stop(self) -> None:
        """Show the line as it is now."""
        self._handle.update({"text/plain": self._line.plain}, raw=True)
