"""Open the source of images that a run names."""

from __future__ import annotations

from ...base import Given, not_given
from ..config import GIVEN, ImageData
from .arrays import open_digits, open_npz
from .base import Source
from .folders import open_folder
from .given import open_given
from .records import open_tfds


def open_image_source(data: ImageData, given: Given | None = None, fetch: bool = True) -> Source:
    """Open a source of images.

    Args:
        data: names it as `source`.
        given: what Python gave instead.
        fetch: whether a set may be downloaded and prepared; without it black images stand for one that would be.

    Raises:
        UserError: where there is none, or it cannot be used.
    """
    if given is not None:
        return open_given(given, data.range)
    if data.source == GIVEN:
        raise not_given(GIVEN, "(images, labels)")
    if data.source == "digits":
        return open_digits()
    if data.source.startswith("folder:"):
        return open_folder(data.source.removeprefix("folder:"))
    if data.source.lower().endswith(".npz"):
        return open_npz(data.source, data.range)
    return open_tfds(data, fetch)
