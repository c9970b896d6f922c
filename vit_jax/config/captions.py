"""The config of a run's images with captions, and the metadata that config.json has of the captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .fields import identity
from .images import ImageData
from .sentences import is_side, numbered_words, size_of_side
from .vocabulary import WORDS

SHAPES = "shapes"  # the data.source of scenes that are drawn here
GIVEN = "captions"  # the data.source of a run whose images and captions were given in Python


@dataclass(frozen=True)
class CaptionData(ImageData):
    """The source of images with captions, how an image is fitted to the network, and how long a caption may be."""

    source: str = identity(
        SHAPES,
        "shapes: scenes of two coloured shapes, which are drawn here with their captions; captions:FOLDER (images, and "
        "captions.csv with the columns image,caption); coco:FILE.json:FOLDER (COCO's captions, and their images)",
    )
    drawn: int = identity(60_000, "shapes: number of scenes to train on", at_least=1)
    length: int = identity(12, "most tokens of a caption, <eos> included; longer captions are refused", at_least=2)
    tokenizer: str = identity(
        WORDS,
        "words, in lower case; bpe or unigram, trained on the captions of train (extra: text); or the folder of a "
        "tokenizer of Hugging Face (tokenizer.json, or vocab.json and merges.txt), or of a run's, which is "
        "RUN/tokenizer",
    )
    vocabulary: int = identity(8000, "bpe, unigram: most ids of the tokenizer")


def are_words(value: Any) -> bool:
    """Whether a JSON value has the form of a run's `words`: a list, or {"size": ids, "tokenizer": digest of files}."""
    return is_side(value)


def are_in_files(value: Any) -> bool:
    """Whether a run's `words` are those of a tokenizer, whose files it keeps."""
    return isinstance(value, Mapping)


def other_caption_words(given: Any, wanted: Any) -> str:
    """A clause naming the first difference between two equally large vocabularies; else empty.

    It is empty too if either has no words, only `numbered_words`.
    """
    size = size_of_side(wanted)
    if size_of_side(given) != size or given == wanted or numbered_words(size) in (given, wanted):
        return ""
    if isinstance(given, Mapping) or isinstance(wanted, Mapping):
        return "its tokenizer is another than here"
    i = next(i for i, pair in enumerate(zip(given, wanted, strict=True)) if pair[0] != pair[1])
    return f"its id {i} is {given[i]!r} and here it is {wanted[i]!r}"
