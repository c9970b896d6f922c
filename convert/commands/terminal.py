"""Lines that fit a terminal of any width; 150 columns where the output is no terminal."""

from __future__ import annotations

import shutil
import textwrap


def columns() -> int:
    """How wide lines may be."""
    return max(40, shutil.get_terminal_size((150, 24)).columns)


def wrap(text: str, indent: int) -> str:
    """A line, broken between words where it is too wide; what follows is indented."""
    return textwrap.fill(
        text, columns(), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
