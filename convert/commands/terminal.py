"""Lines that fit a terminal of any width; 150 columns where the output is no terminal."""

from __future__ import annotations

import shutil

from vit_jax.files.terminal import fill


def columns() -> int:
    """How wide lines may be."""
    return max(40, shutil.get_terminal_size((150, 24)).columns)


def wrap(text: str, indent: int) -> str:
    """A line, broken between words where it is too wide; what follows is indented."""
    return fill(text, columns(), rest=indent)
