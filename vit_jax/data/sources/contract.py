"""What every source of labelled images gives: classes, and splits that are read one image at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Examples(Protocol):
    """The examples of one split of a source."""

    labels: np.ndarray  # int32 [n]
    sealed: bool  # the container has checksums, so images need not be decoded before they are used

    def read(self, i: int) -> bytes | np.ndarray:
        """The image of example i: the bytes of an image file, or uint8 pixels [h, w] or [h, w, C]."""

    def name(self, i: int) -> str:
        """The name of example i in messages."""


@dataclass(frozen=True)
class Source:
    """A set of images with its classes, and the splits that it comes with."""

    name: str
    class_names: tuple[str, ...]
    splits: dict[str, Examples]  # train, and validation and test if it has them
    remarks: tuple[str, ...] = ()  # for the user, to be printed once
    stands_in: bool = False  # black images with labels of no meaning, as many as a set has that is not here


def first_line(error: Exception) -> str:
    """The first line of an exception's message, or its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
