"""The config of a run's images with captions, and the metadata that config.json has of the captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .fields import identity
from .images import ImageData
from .sentences import numbered_words

SHAPES = "shapes"  # the data.source of scenes that are drawn here


@dataclass(frozen=True)
class CaptionData(ImageData):
    """The source of images with captions, how an image is fitted to the network, and how long a caption may be."""

    source: str = identity(
        SHAPES,
        "shapes: scenes of two coloured shapes, which are drawn here with their captions; captions:FOLDER (images, and "
        "captions.csv with the columns image,caption); coco:FILE.json:FOLDER (COCO's captions, and their images)",
    )
    drawn: int = identity(60_000, "shapes: number of scenes to train on")
    length: int = identity(12, "most tokens of a caption, <eos> included; longer captions are refused")


def other_caption_words(given: Sequence[str], wanted: Sequence[str]) -> str:
    """A clause naming the first difference between two equally large vocabularies; else empty.

    It is empty too if either has no words, only `numbered_words`.
    """
    if len(given) != len(wanted) or list(given) == list(wanted) or numbered_words(len(wanted)) in (given, wanted):
        return ""
    i = next(i for i, pair in enumerate(zip(given, wanted, strict=True)) if pair[0] != pair[1])
    return f"its id {i} is {given[i]!r} and here it is {wanted[i]!r}"
