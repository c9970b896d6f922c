"""What training and use of translations share: the tokenizers of both sides, and the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from flax import nnx
from jax import Array

from ...config.decoding import Decoding
from ...decode.base import Found
from ...models.transformer import Transformer
from ...text.tokenizer import Tokenizer
from ..base import Task
from ..generated import Search, change_search, compile_search, header

CROSS = "decoder.cross_attention"  # the weights from the tokens of a translation to those of its source


@dataclass(frozen=True)
class Translation(Task, abstract=True):
    """A task with two sides, and a search for the text of the target."""

    label_smoothing: float  # as PyTorch counts it
    length: int  # most tokens of a translation, its end included
    source: Tokenizer
    target: Tokenizer
    decoding: Decoding = field(default_factory=Decoding)  # how translations are searched for
    bleu: str = "13a"  # the tokeniser of BLEU

    def searching(self, changes: Mapping[str, Any]) -> Self:
        """The task with other settings of its search. Raises UserError."""
        return replace(self, decoding=change_search(self.decoding, changes, self.length, self.target.unit))

    @property
    def search(self) -> Search:
        """What a search for translations has to know besides the network and the source."""
        return Search(self.target.ids, self.length, self.decoding)

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns of `Answer.rows`."""
        return header("source", "translation", self.decoding.nbest)


def tokens_and_end(target: Tokenizer, row: np.ndarray) -> list[str]:
    """The tokens of a translation, int [length], and its end, unless it fills the row without one."""
    return target.tokens([*target.ids.until_end(row), target.ids.end][: len(row)])


def strip_padding(side: Tokenizer, row: np.ndarray) -> np.ndarray:
    """A row of ids without padding."""
    return row[row != side.ids.pad]


def search_translations(
    model: Transformer, source: Array, search: Search, pad: int, room: int = 0, keys: Array | None = None
) -> Found:
    """The translations of sentences, by `Search.found`.

    Args:
        model: the network.
        source: ids int32 [B, S]; a row of padding has no translation.
        search: the settings of the search.
        pad: the id of padding in the source.
        room: as of `Search.found`.
        keys: [B], as of `Search.found`.
    """
    padding = source != pad
    return search.found(model, model.encode(source, padding), padding, padding.any(1), room, keys)


def translation_ids(model: Transformer, source: Array, search: Search, pad: int) -> Array:
    """The best translations of ids int32 [B, S] padded with `pad`: int32 [B, length], without ends, padded."""
    return search.best(search_translations(model, source, search, pad))


def capture_translations(
    model: Transformer, source: Array, search: Search, pad: int, names: tuple[str, ...]
) -> tuple[Array, dict[str, Array]]:
    """Translations, and inner values of an evaluation pass in which the decoder is given them.

    Args:
        model: the network.
        source: ids int32 [B, S].
        search: the settings of the search.
        pad: the id of padding in the source.
        names: those of `Transformer.capture`.

    Returns:
        (the best translations int32 [B, length], {name: array [B, ...]}).
    """
    said = translation_ids(model, source, search, pad)
    return said, model.capture(source, search.inputs(said), names, source_padding=source != pad)


searched_ids = compile_search(search_translations, static=(2, 3, 4))
captured_ids = nnx.jit(capture_translations, static_argnums=(2, 3, 4))
