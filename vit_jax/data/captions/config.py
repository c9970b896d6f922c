"""The config of a run's images with captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ...config.fields import identity
from ...config.outputs import WORDS
from ...files.lines import quote
from ..images.config import FittedImages
from ..texts.config import numbered_words, size_of_side, tokenizer_of_run, tokenizer_with_weights

TABLE = "captions.csv"  # of captions:FOLDER
SHAPES = "shapes"  # the data.source of scenes that are drawn here
GIVEN = "captions"  # the data.source of a run whose images and captions were given in Python


@dataclass(frozen=True)
class CaptionData(FittedImages):
    """The source of images with captions, how an image is fitted to the network, and how long a caption may be."""

    given = GIVEN

    source: str = identity(
        SHAPES,
        "shapes: scenes of two coloured shapes, which are drawn here with their captions; captions:FOLDER (images, and "
        "captions.csv with the columns image,caption); coco:FILE.json:FOLDER (COCO's captions, and their images); "
        "wds:PATTERN or parquet:PATTERN (shards of images with texts, a caption a line)",
        place=True,
    )
    drawn: int = identity(60_000, "shapes: number of scenes to train on", at_least=1)
    length: int = identity(12, "most tokens of a caption, <eos> included; longer captions are refused", at_least=2)
    tokenizer: str = identity(
        WORDS,
        "words, in lower case; bpe or unigram, trained on the captions of train (extra: text); or the folder of a "
        "tokenizer of Hugging Face (tokenizer.json, or the vocabulary of its class), or of a run's, which is "
        "RUN/tokenizer",
        place=True,
    )
    vocabulary: int = identity(8000, "bpe, unigram: most ids of the tokenizer")

    def paths(self) -> list[Path]:
        """The files and folders that it is read from."""
        found = super().paths()
        return found + [table for path in found if (table := path / TABLE).is_file()]

    def in_folder(self, folder: Path) -> Self:
        """The same, with the tokenizer that a run's folder keeps."""
        return replace(self, tokenizer=tokenizer_of_run(self.tokenizer, folder))

    @classmethod
    def fields_with_weights(cls, folder: Path) -> dict[str, Any]:
        """The tokenizer in the folder of weights."""
        return tokenizer_with_weights(folder)


def other_caption_words(given: Any, wanted: Any) -> str:
    """A clause that names the first difference between two vocabularies of captions."""
    size = size_of_side(wanted)
    if size_of_side(given) != size or given == wanted or numbered_words(size) in (given, wanted):
        return ""
    if isinstance(given, Mapping) or isinstance(wanted, Mapping):
        return "its tokenizer is another than here"
    i = next(i for i, pair in enumerate(zip(given, wanted, strict=True)) if pair[0] != pair[1])
    return f"its id {i} is {quote(given[i])} and here it is {quote(wanted[i])}"
