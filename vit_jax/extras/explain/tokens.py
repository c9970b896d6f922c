"""What counted in an image or a sentence for each token of the text that was generated of it.

The decoder is given the text that it said, and the logit of each of its tokens is explained. Dimensions: m inputs; h,
w, C the size of an image; S tokens of a source, T of the text; D width, L layers, N tokens of the encoder.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ...decode.buckets import lengths_to
from ...figures.attention import half_kept, rollout
from ...models.layers import Intermediates
from ...models.transformer import NUDGE
from ...text.tokenizer import Ids
from .gradients import each_gradient, integrated_gradients
from .methods import Method
from .scores import sum_cells

OWN, CROSS = "decoder.self_attention", "decoder.cross_attention"


def given_and_said(ids: Ids, row: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, int]:
    """A text as a decoder is given it and says it, for an explanation: row int [length]."""
    tokens = [*ids.until_end(row), ids.end][: len(row)]
    given, said = np.full((2, next(n for n in lengths_to(length) if n >= len(tokens))), ids.pad, np.int32)
    said[: len(tokens)] = tokens
    given[: len(tokens)] = [ids.begin, *tokens[:-1]]
    return given, said, len(tokens)


def explain_caption(
    model: Any, image: Array, given: np.ndarray, said: np.ndarray, method: Method, steps: int
) -> np.ndarray:
    """How much each patch of an image counted for each token of its caption: image [h, w, C] -> float64 [T, gh, gw]."""
    c = model.config
    text = jnp.asarray(given), jnp.asarray(said)
    if method == "ig":
        return sum_cells(np.asarray(_integrated_image(model, image, *text, steps)), c.vit.grid)
    first = c.vit.first_patch
    rows = slice(first if c.memory == "patches" else 0, None)
    tokens = _through_decoder("vit.attention", _attention_to_image(model, image, *text), rows)
    return tokens[:, first:].reshape(-1, *c.vit.grid)


def explain_translation(
    model: Any, source: np.ndarray, pad: int, given: np.ndarray, said: np.ndarray, method: Method, steps: int
) -> np.ndarray:
    """How much each token of a source counted for each token of what was said of it: source int32 [S] -> float64 [T,
    S].

    The baseline of a token's embedding is the mean of the table.
    """
    ids, text = jnp.asarray(source), (jnp.asarray(given), jnp.asarray(said))
    if method == "ig":
        return np.asarray(_integrated_source(model, ids, pad, *text, steps), np.float64).sum(-1)
    return _through_decoder("encoder.attention", _attention_to_source(model, ids, pad, *text), slice(None))


def _through_decoder(encoder: str, found: dict[str, Array], rows: slice) -> np.ndarray:
    """The relevance of the encoder's input for each token: float64 [T, N]. Shapes: found [1, L, Nq, Nk]."""
    layers, own, crossed = (np.asarray(found[name])[0] for name in (encoder, OWN, CROSS))
    return rollout_of_decoder(own, crossed, rollout(layers)[rows])


def rollout_of_decoder(own: np.ndarray, crossed: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """`rollout` from a decoder's tokens to the input of the encoder: own [L, T, T], crossed [L, T, S], memory [S, N] ->
    float64 [T, N].

    Half of a token goes on, and half is what it attends to, in each attention to the target and to the memory.
    """
    total = np.zeros((own.shape[1], memory.shape[1]))
    for layer, cross in zip(own.astype(np.float64), crossed.astype(np.float64), strict=True):
        total = half_kept(layer) @ total
        total = 0.5 * total + 0.5 * cross @ memory
    return total


def _logits_of_tokens(logits: Array, said: Array) -> Array:
    """The logits of the tokens that were said: [m, T, K], [T] -> [m, T]."""
    return jnp.take_along_axis(logits, jnp.broadcast_to(said, logits.shape[:2])[..., None], -1)[..., 0]


def _of_images(model: Any, images: Array, given: Array, said: Array, inner: Intermediates | None = None) -> Array:
    targets = jnp.broadcast_to(given, (len(images), len(given)))
    return _logits_of_tokens(model(images, targets, intermediates=inner), said)


def _of_sources(
    model: Any,
    nudges: Array,
    ids: Array,
    pad: int,
    text: tuple[Array, Array],
    inner: Intermediates | None = None,
) -> Array:
    """The logits [m, T] where the embedding of a source [S] is changed by `nudges` [m, S, D]."""
    given, said = text
    sources, targets = (jnp.broadcast_to(x, (len(nudges), len(x))) for x in (ids, given))
    inner = {} if inner is None else inner
    inner[NUDGE] = nudges
    return _logits_of_tokens(model(sources, targets, source_padding=sources != pad, intermediates=inner), said)


def _integrate_image(model: Any, image: Array, given: Array, said: Array, steps: int) -> Array:
    x = image.astype(jnp.promote_types(image.dtype, jnp.float32))
    values = lambda x: _of_images(model, x[None], given, said)[0]  # noqa: E731
    return integrated_gradients(lambda x: each_gradient(values, x), x, jnp.zeros_like(x), steps)


def _to_mean(model: Any, ids: Array) -> Array:
    """What makes the mean of the table of the embedding of each token: [S, D]."""
    assert model.source is not None and model.source_table is not None
    table = model.source_table
    everyone = model.source.lookup(jnp.arange(len(table)), table, jnp.promote_types(model.dtype, jnp.float32))
    return everyone.mean(0) - everyone[ids]


def _integrate_source(model: Any, ids: Array, pad: int, given: Array, said: Array, steps: int) -> Array:
    away = _to_mean(model, ids)
    values = lambda nudge: _of_sources(model, nudge[None], ids, pad, (given, said))[0]  # noqa: E731
    return integrated_gradients(lambda x: each_gradient(values, x), jnp.zeros_like(away), away, steps)


def _look_at_image(model: Any, image: Array, given: Array, said: Array) -> dict[str, Array]:
    """The attention of one input, {name: [1, L, Nq, Nk]}, means over heads."""
    names = ("vit.attention", OWN, CROSS)
    inner: Intermediates = dict.fromkeys(names)
    _of_images(model, image[None], given, said, inner)
    return {name: inner[name].mean(2) for name in names}


def _look_at_source(model: Any, ids: Array, pad: int, given: Array, said: Array) -> dict[str, Array]:
    """The same of a source."""
    names = ("encoder.attention", OWN, CROSS)
    inner: Intermediates = dict.fromkeys(names)
    still = jnp.zeros((1, len(ids), model.config.width), model.dtype)
    _of_sources(model, still, ids, pad, (given, said), inner)
    return {name: inner[name].mean(2) for name in names}


_integrated_image: Any = nnx.jit(_integrate_image, static_argnums=4)
_attention_to_image: Any = nnx.jit(_look_at_image)
_integrated_source: Any = nnx.jit(_integrate_source, static_argnums=(2, 5))
_attention_to_source: Any = nnx.jit(_look_at_source, static_argnums=2)
