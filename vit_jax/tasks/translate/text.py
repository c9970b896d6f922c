"""What training and use of translations share: the tokenizers of both sides, and the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from flax import nnx
from jax import Array

from ...decode.search import Found
from ...models.transformer import Transformer
from ...text.tokenizer import Tokenizer
from ..generated import Generation, Search, compile_search

CROSS = "decoder.cross_attention"  # of a translation to its source


@dataclass(frozen=True)
class Translation(Generation, abstract=True):
    """A task with two sides, and a search for the text of the target."""

    source: Tokenizer
    bleu: str = "13a"  # the tokeniser of BLEU
    prefix: str = ""  # text before every source

    header_names: ClassVar[tuple[str, str]] = ("source", "translation")


def strip_padding(side: Tokenizer, row: np.ndarray) -> np.ndarray:
    """A row of ids without padding."""
    return row[row != side.ids.pad]


def search_translations(
    model: Transformer, source: Array, search: Search, pad: int, room: int = 0, keys: Array | None = None
) -> Found:
    """The translations of sentences, by `Search.found`: source int32 [B, S], keys [B]."""
    padding = source != pad
    return search.found(model, model.encode(source, padding), padding, padding.any(1), room, keys)


def translation_ids(model: Transformer, source: Array, search: Search, pad: int) -> Array:
    """The best translations of ids: source int32 [B, S] -> int32 [B, length], without ends, padded."""
    return search.best(search_translations(model, source, search, pad))


def capture_translations(
    model: Transformer, source: Array, search: Search, pad: int, names: tuple[str, ...]
) -> tuple[Array, dict[str, Array]]:
    """Translations, and inner values of an evaluation pass in which the decoder is given them: source int32 [B, S] ->
    (the best translations int32 [B, length], {name: array [B, ...]}).
    """
    said = translation_ids(model, source, search, pad)
    return said, model.capture(source, search.inputs(said), names, source_padding=source != pad)


searched_ids = compile_search(search_translations, static=(2, 3, 4))
captured_ids = nnx.jit(capture_translations, static_argnums=(2, 3, 4))
