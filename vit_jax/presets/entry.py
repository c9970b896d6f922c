"""What a preset is."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import RunConfig


@dataclass(frozen=True)
class Preset:
    """A named run."""

    run: RunConfig
    title: str  # a few words, for the list of all presets
    help: str = ""  # the whole text, if that is more
