"""Sources of labelled images: scikit-learn's digits, folders, .npz files and prepared TFDS sets.

A source has all labels in memory, and reads one image at a time, as the bytes of a file or as pixels. Decoding,
checking and splitting them is the same for all sources and is done in pixels.py and splits.py.
"""

from __future__ import annotations

from ...config import ImageData
from .arrays import Arrays, open_digits, open_npz
from .contract import Examples, Source
from .folders import open_folder
from .records import open_tfds

__all__ = ["Arrays", "Examples", "Source", "open_image_source"]


def open_image_source(data: ImageData) -> Source:
    """Open the source that `data.source` names. Raises UserError if there is none or it cannot be used."""
    if data.source == "digits":
        return open_digits()
    if data.source.startswith("folder:"):
        return open_folder(data.source.removeprefix("folder:"))
    if data.source.lower().endswith(".npz"):
        return open_npz(data.source)
    return open_tfds(data)
