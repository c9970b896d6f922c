"""What a trained translator is used by: translations, inner values and attention of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ...decode.buckets import in_buckets, lengths_to
from ...decode.search import Found
from ...errors import UserError
from ...figures.attention import draw_cross_attention
from ...figures.figure import drawn
from ...files.lines import quote
from ...machine.numerics import with_fixed_settings
from ...models.build import describe_network
from ...models.transformer import Transformer
from ...text.tokenizer import Tokenizer
from ..generated import Search, Writer, answer, compile_search, tokens_and_end, value
from ..predictor import BATCH, Answer, check_positive
from .encoding import Encoded, encode, note_scores

CROSS = "decoder.cross_attention"  # of a translation to its source


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


class Translator(Writer):
    """A trained network with its tokenizers. `model(source, target)` calls the network on ids.

    The methods take texts: for a list of n they give n answers; for one text, one answer without the axis of the batch.
    Raises UserError where a text cannot be used.
    """

    model: Transformer

    header_names = "source", "translation"
    refusals: ClassVar = {
        "features": ("this network translates sentences, and only images have features", "leave it out")
    }

    def __repr__(self) -> str:
        sizes = f"{len(self.source):,} source and {len(self.target):,} target ids"
        bound = "any length" if self.model.config.any_length else f"up to {self.task.length} {self.source.unit}"
        return f"Translator({describe_network(self.run.model)}; {sizes}, texts of {bound})"

    @property
    def source(self) -> Tokenizer:
        """The tokenizer of what is translated."""
        return self.task.source

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of translations."""
        return self.task.target

    def inputs(self, texts: str | Iterable[str]) -> np.ndarray:
        """The texts as ids, int32 [B, S], padded to the greatest length of the run's data, or of them; [S] of one."""
        several = self.encoded(texts)
        length = max(self.task.length, *map(len, several))
        out = np.full((len(several), length), self.source.ids.pad, np.int32)
        for row, ids in zip(out, several, strict=True):
            row[: len(ids)] = ids
        return out[0] if isinstance(texts, str) else out

    def encoded(self, texts: str | Iterable[str]) -> list[np.ndarray]:
        """The ids of each text, int32 [N]."""
        if not isinstance(texts, Iterable):
            raise UserError("texts", f"{type(texts).__name__} is no text", "give a sentence, or a list of them")
        several = [texts] if isinstance(texts, str) else list(texts)
        if not several:
            raise UserError("texts", "none given", "give at least one sentence")
        longest, table_size, out = self.task.length, self.model.config.source_vocabulary, []
        for text in several:
            if not isinstance(text, str):
                raise UserError("texts", f"{type(text).__name__} is no text", "give a sentence, or a list of them")
            if not text.strip():  # the prefix alone is no text
                raise UserError(f"the text {quote(text)} has no words", remedy="give at least one")
            ids = self.source.encode(self.task.prefix + text)
            if len(ids) > longest and not self.model.config.any_length:
                raise UserError(
                    f"the text {quote(text)} has {len(ids)} {self.source.unit}, "
                    f"more than the {longest} that this run was trained for",
                    remedy="shorten it",
                )
            if ids.max() >= table_size:
                raise UserError(
                    f"the text {quote(text)} has the id {ids.max()}, but the network has only {table_size} ids",
                    remedy="restore the vocabulary that it was trained with",
                )
            out.append(ids)
        return out

    def as_list(self, texts: str | Iterable[str]) -> tuple[list[np.ndarray], bool]:
        """(the ids of each text, whether only one was given)."""
        return self.encoded(texts), isinstance(texts, str)

    def read(self, inputs: Sequence[str]) -> list[tuple[str, np.ndarray]]:
        """(text, its ids) of each, so that any bad one is refused before the first is translated."""
        return list(zip(inputs, self.encoded(inputs), strict=True))

    def answers(self, inputs: Sequence[tuple[str, np.ndarray]], top: int, first: int) -> Iterator[Answer]:
        """The translations of sentences: inputs int32 [N]."""
        texts, ids = zip(*inputs, strict=True)
        return map(answer, texts, self.write(list(ids), first))

    @with_fixed_settings
    def predict(self, texts: str | Iterable[str], /, batch: int = BATCH, **search: Any) -> Any:
        """The translation of each text, as of `Writer.predict`; those of like length are computed together.

        Settings of the search are such as beam=4, nbest=2 (the fields of config.decoding.Decoding).
        """
        check_positive(batch=batch)
        translator = self.searching(search)
        several, one = translator.as_list(texts)
        translations = translator.write(several, batch=batch)
        return translations[0] if one else translations

    @with_fixed_settings
    def write(self, several: list[np.ndarray], first: int = 0, batch: int = 0) -> list[Any]:
        """The translation of each text: several int32 [N]."""
        search, pad, d = self.task.search, self.source.ids.pad, self.task.decoding

        def run(ids: np.ndarray, numbers: np.ndarray, room: int) -> Found:
            note_scores(self.model.config.heads, *ids.shape)
            keys = search.keys(jnp.asarray(numbers + first))
            return searched_ids(self.model, jnp.asarray(ids), search.seedless, pad, room, keys)

        most, longest = batch or len(several), d.max_length or search.length
        lengths = lengths_to(search.length, max(map(len, several), default=0))
        found = in_buckets(run, several, pad, lengths, longest, most)
        return [value([*map(self.target.decode, each.tokens)], each.scores, d.nbest) for each in found]

    def translate(self, texts: str | Iterable[str], batch: int = BATCH, **search: Any) -> Any:
        """The translations of texts, as `predict` gives them."""
        return self.predict(texts, batch, **search)

    @with_fixed_settings
    def encode(self, inputs: Any, mask: Any = None, length: int = 0, cut: bool = False, batch: int = BATCH) -> Encoded:
        """What the encoder makes of texts, or of ids: `memory` float [n, L, D] and `mask` bool [n, L].

        Args:
            inputs: one text or several; or ids, int [L] or [n, L].
            mask: bool [n, L] of ids, False at those that no token attends to; None: at padding.
            length: the number of tokens to which texts are padded; 0: as many as the longest has.
            cut: whether a text with more of them is cut to that, its end kept, rather than refused.
            batch: the most to compute at a time.

        Returns:
            encoding.Encoded, of one text without the axis n.
        """
        pad = self.source.ids.pad
        return encode(self.model, inputs, self.source, pad, mask=mask, length=length, cut=cut, batch=batch)

    @with_fixed_settings
    def capture(self, texts: str | Iterable[str], names: Iterable[str]) -> dict[str, np.ndarray]:
        """Inner values of the network while it translates: {name: array [n, ...]}, or [...] of one text.

        The decoder is given its own translation, so that row t of its values is that of the t-th token. The names are
        those of `Transformer.capture`: encoder.blocks.I, memory, decoder.cross_attention, ...
        """
        ids = self.inputs(texts)
        wanted = (names,) if isinstance(names, str) else tuple(names)
        _, found = captured_ids(
            self.model, jnp.asarray(np.atleast_2d(ids)), self.task.search, self.source.ids.pad, wanted
        )
        return {name: np.asarray(found[name] if ids.ndim == 2 else found[name][0]) for name in wanted}

    @with_fixed_settings
    def attention(self, text: str) -> tuple[list[str], list[str], np.ndarray]:
        """(the S tokens of a sentence, the T tokens of its translation, the cross-attention float [L, H, T, S])."""
        ids = self.inputs([text])
        found, values = captured_ids(self.model, jnp.asarray(ids), self.task.search, self.source.ids.pad, (CROSS,))
        source = self.source.tokens(strip_padding(self.source, ids[0]))
        target = tokens_and_end(self.target, np.asarray(found[0]))
        return source, target, np.asarray(values[CROSS])[0, :, :, : len(target), : len(source)]

    @property
    def layers(self) -> int:
        return self.model.config.decoder_depth

    @with_fixed_settings
    def draw_attention(
        self, inputs: Sequence[str], path: Path | None = None, layers: Sequence[int] = (), caption: str = ""
    ) -> Any:
        """Draw the cross-attention of the first translation: of these layers, counted from 0, or of all."""
        source, target, maps = self.attention(inputs[0])
        return drawn(draw_cross_attention, maps, target, source, path, layers=layers, caption=caption)
