"""What trained captioners are used by: captions, inner values and attention of images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ...decode.search import Found
from ...figures.attention import draw_words
from ...figures.figure import drawn
from ...machine.numerics import with_fixed_settings
from ...models.build import describe_network
from ...models.captioner import Captioner
from ..classify.draw import visible
from ..generated import Generation, Search, Writer, answer, compile_search, tokens_and_end, value
from ..predictor import Answer, ImagePredictor

CROSS = "decoder.cross_attention"  # of a caption to the memory


def search_captions(
    model: Captioner, given: Array, search: Search, rows: Array | None = None, keys: Array | None = None
) -> Found:
    """The captions of inputs of the network [B, ...], by `Search.found`."""
    return search.found(model, model.encode(given), None, rows, keys=keys)


def _capture_captions(
    model: Captioner, given: Array, search: Search, names: tuple[str, ...]
) -> tuple[Array, dict[str, Array]]:
    """Captions, and inner values of an evaluation pass in which the decoder is given them: given [B, ...] -> (the best
    captions int32 [B, length], {name: array [B, ...]}).
    """
    said = search.best(search_captions(model, given, search))
    return said, model.capture(given, search.inputs(said), names)


search_inputs = compile_search(search_captions, static=(2,))
captured_inputs = nnx.jit(_capture_captions, static_argnums=(2, 3))


class CaptionWriter(Writer):
    """What captioners of images and of vectors have in common."""

    model: Captioner

    header_names = "file", "caption"

    @property
    def words(self) -> str:
        """The words and the greatest length of captions, in print."""
        return f"{len(self.task.target):,} {self.task.target.unit}, captions of up to {self.task.length}"

    @with_fixed_settings
    def search(self, inputs: Array, first: int) -> list[Any]:
        """The captions of inputs of the network: inputs [B, ...]."""
        search, words = self.task.search, self.task.target
        keys = search.keys(first + jnp.arange(len(inputs)))
        found = search_inputs(self.model, inputs, search.seedless, None, keys)
        rows = zip(np.asarray(found.tokens), np.asarray(found.scores), strict=True)
        return [value([*map(words.decode, each)], scores, search.decoding.nbest) for each, scores in rows]

    @with_fixed_settings
    def captured(self, inputs: Array, names: Iterable[str], one: bool) -> dict[str, np.ndarray]:
        """Inner values of the network while it writes: inputs [n, ...] -> {name: array [n, ...]}, or [...] of one.

        The decoder is given its own caption, so that row t of its values is that of the t-th token.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        _, found = captured_inputs(self.model, inputs, self.task.search, wanted)
        return {name: np.asarray(found[name][0] if one else found[name]) for name in wanted}


class Describer(CaptionWriter, ImagePredictor):
    """A trained captioner with the preprocessing of its evaluation and its words; see `ImagePredictor`.

    `model(images, target)` calls the network on normalised images [B, h, w, C] and ids [B, T].
    """

    refusals: ClassVar = {
        "features": ("a captioner pools none of an image", "give the weights of an image network alone")
    }

    def __repr__(self) -> str:
        return f"Describer({describe_network(self.run.model)}; images {self.size}; {self.words})"

    def answers(self, inputs: Sequence[Any], top: int, first: int) -> Iterator[Answer]:
        return map(answer, inputs, self.write(inputs, first))

    def write(self, several: Sequence[Any], first: int = 0) -> list[Any]:
        """The caption of each image."""
        return self.search(self.inputs(several), first)

    def capture(self, images: Any, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Inner values of the network on images: {name: array [n, ...]}, or [...] of one image."""
        several, one = self.as_list(images)
        return self.captured(self.inputs(several), names, one)

    @with_fixed_settings
    def attention(self, image: Any) -> tuple[list[str], np.ndarray]:
        """(the T tokens of the caption of one image, their cross-attention on its patches [L, H, T, gh, gw])."""
        return attention(self.task, self.model, self.inputs([image]))

    @property
    def layers(self) -> int:
        return self.model.config.text.decoder_depth

    @with_fixed_settings
    def draw_attention(
        self, inputs: Sequence[Any], path: Path | None = None, layers: Sequence[int] = (), caption: str = ""
    ) -> Any:
        """Draw the cross-attention of the first image's words: of these layers, as means of their heads, or of all."""
        words, maps = self.attention(inputs[0])
        pixels = visible(self.pixels([inputs[0]]))[0]
        return drawn(draw_words, pixels, maps, words, path, layers=layers, caption=caption)


@with_fixed_settings
def attention(task: Generation, network: Captioner, images: Array) -> tuple[list[str], np.ndarray]:
    """(the T tokens of the caption of the first image, their cross-attention on its patches [L, H, T, gh, gw])."""
    found, values = captured_inputs(network, images[:1], task.search, (CROSS,))
    tokens, maps, c = (
        tokens_and_end(task.target, np.asarray(found[0])),
        np.asarray(values[CROSS][0]),
        network.config.vit,
    )
    maps = maps[:, :, : len(tokens), maps.shape[-1] - c.patches :]  # without tokens of the memory that are no patches
    return tokens, maps.reshape(*maps.shape[:-1], *c.grid)
