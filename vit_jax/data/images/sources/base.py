"""What every source of labelled images gives: classes, and splits that are read one image at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....config.outputs import Outputs
from ....errors import UserError

if TYPE_CHECKING:
    from PIL import Image


class Stamps(NamedTuple):
    """The files that the examples of a split are read from, and how they are known again without being read."""

    folder: str  # absolute
    names: list[str]  # within the folder
    sizes: np.ndarray  # int64 [files], bytes
    times: np.ndarray  # int64 [files], when each was last changed, in ns since 1970
    whole: bool  # they hold all examples together; if not, file i is example i
    part: str = ""  # what tells them from others of the same folder that are examples, too


class Known(NamedTuple):
    """What identifies the images of a split without reading them: where they lie, they are not changed one by one."""

    digest: str  # of what holds them
    marks: np.ndarray  # uint8 [n, bytes]: something of each, by which a message finds the first that is another


class Examples:
    """The examples of one split of a source."""

    labels: np.ndarray  # of classes int32 [n], of sets int8 [n, K], of numbers float64 [n, K]: see kinds/
    sealed = False  # whether the container has checksums, so that images need not be decoded before they are used
    known: Known | None = (
        None  # what identifies the images; None where they do so themselves: they are read before a run
    )

    def read(self, i: int) -> bytes | np.ndarray | Image.Image:
        """The image of example i: the bytes of a file, uint8 pixels [h, w] or [h, w, C], or an image of Pillow."""
        raise NotImplementedError

    def name(self, i: int) -> str:
        """The name of example i in messages."""
        raise NotImplementedError

    def stamps(self) -> Stamps | None:
        """The files that hold the examples; None of arrays."""
        return None


@dataclass(frozen=True)
class Source:
    """A set of images, what its labels are, and the splits that it comes with."""

    name: str
    outputs: Outputs
    splits: dict[str, Examples]
    remarks: tuple[str, ...] = ()
    unlabelled: Mapping[str, str] = field(default_factory=dict)  # {split without labels: a clause on it}
    counted: bool = False  # no names of classes are stated: they are as many as the labels say
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)  # {split: int [n]}, of examples that stay together
    stands_in: bool = False  # black images with labels of no meaning, as many as a set has that is not here

    @property
    def labels(self) -> dict[str, np.ndarray]:
        """The labels of each split."""
        return {name: each.labels for name, each in self.splits.items()}


def first_line(error: Exception) -> str:
    """The first line of an exception's message, or its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def stamp_files(folder: str, names: list[str], whole: bool, part: str = "") -> Stamps:
    """The stamps of files in a folder. Raises UserError where one is not there."""
    sizes, times = np.empty(len(names), np.int64), np.empty(len(names), np.int64)
    for i, name in enumerate(names):
        try:
            found = os.stat(os.path.join(folder, name))
        except OSError as error:
            raise UserError(os.path.join(folder, name), f"cannot be read ({error.strerror})", "restore it") from error
        sizes[i], times[i] = found.st_size, found.st_mtime_ns
    return Stamps(folder, names, sizes, times, whole, part)
