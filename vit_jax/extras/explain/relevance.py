"""How much each part of an input counted for a value of a network, by integrated gradients or rollout.

Of images for an output; of an image or a source for each token of the text that was generated of it: the decoder is
given the text that it said, and the logit of each of its tokens is explained. Dimensions: B images of a batch, h, w, C
their size, gh, gw the rows and columns of cells, K outputs; S tokens of a source, T of the text; L layers, N tokens of
the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ...decode.buckets import lengths_to
from ...errors import Field, UserError
from ...figures.attention import half_kept, rollout
from ...models.layers import Intermediates
from ...models.transformer import NUDGE
from ...models.vit_options import MAPS
from ...text.tokenizer import Ids
from .capability import Method

IG = "give ig, which takes any network"
OWN, CROSS = "decoder.self_attention", "decoder.cross_attention"


def integrated_gradients(gradient: Callable[[Array], Array], x: Array, baseline: Array, steps: int) -> Array:
    """Integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365): (x - b) times the mean gradient from b to x.
    Shapes: x float [...] -> [..., *x.shape].

    The integral over the straight line is a Gauss-Legendre sum, as captum computes it.
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # on -1..1, with weights that sum to 2
    places = jnp.asarray((nodes + 1) / 2, x.dtype), jnp.asarray(weights / 2, x.dtype)

    def add(total: Array, place: tuple[Array, Array]) -> tuple[Array, None]:
        along, weight = place
        return total + weight * gradient(baseline + along * (x - baseline)), None

    whole = jax.eval_shape(gradient, x)
    return (x - baseline) * jax.lax.scan(add, jnp.zeros(whole.shape, whole.dtype), places)[0]


def each_gradient(values: Callable[[Array], Array], x: Array) -> Array:
    """The gradient of each of K values with respect to x: [K, *x.shape], one after the other."""
    told, pull = jax.vjp(values, x)
    return jax.lax.map(lambda one: pull(one)[0], jnp.eye(len(told), dtype=told.dtype))


def cell_of_pixel(size: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
    """Which cell each pixel is in: int32 [h, w], row by row; cells are of equal size up to a pixel."""
    rows, columns = (np.arange(pixels) * cells // pixels for pixels, cells in zip(size, grid, strict=True))
    return (rows[:, None] * grid[1] + columns).astype(np.int32)


def sum_cells(values: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The sum over the pixels and channels of each cell: [..., h, w, C] -> float64 [..., gh, gw]."""
    total = values.astype(np.float64).sum(-1)
    for axis, cells in zip((-2, -1), grid, strict=True):
        pixels = total.shape[axis]
        total = np.add.reduceat(total, -(-np.arange(cells) * pixels // cells), axis)
    return total


# ------------------------------------------------------------------------------------------------ an output


def explain_images(
    model: Any, images: Array, outputs: np.ndarray, grid: tuple[int, int], method: Method, steps: int, batch: int
) -> np.ndarray:
    """How much each cell of images counted for an output of each: images [n, h, w, C], outputs int [n] -> float64 [n,
    gh, gw].
    """
    parts = []
    for first in range(0, len(images), batch):
        some, chosen = images[first : first + batch], outputs[first : first + batch]
        if method == "ig":
            parts.append(sum_cells(np.asarray(_integrated(model, some, jnp.asarray(chosen), steps)), grid))
        else:
            layers = _attention(model, some)
            reads = read_by_head(model.config, layers.shape[-1])
            tokens = np.stack([reads @ rollout(each) for each in np.asarray(layers)])
            parts.append(tokens[:, model.config.first_patch :].reshape(-1, *grid))
    return np.concatenate(parts)


def check_attention(model: Any) -> None:
    """Raise UserError where a network has not the attention that rollout takes."""
    pool = getattr(model.config, "pool", None)
    if pool is None:
        raise UserError(Field("explain"), f"is rollout, but a {model.config.name} has no attention", IG)
    if pool in MAPS:
        what = f"is rollout, but the head reads a pool with attention of its own ({pool}), which it cannot follow"
        raise UserError(Field("explain"), what, IG)


def grid_of(config: Any, size: Sequence[int]) -> tuple[int, int]:
    """The rows and columns of cells of images: those of the network's patches, else 8 by 8."""
    patch = getattr(config, "patch_size", None)
    return (size[0] // patch[0], size[1] // patch[1]) if patch else (min(8, size[0]), min(8, size[1]))


def read_by_head(c: Any, count: int) -> np.ndarray:
    """How much the head of a ViT reads of each token after the last block: float [N], which sums to 1."""
    tokens = np.eye(count)
    patches = tokens[c.first_patch :].mean(0)
    by_pool = {
        "cls": tokens[0],
        "cls_distill": tokens[:2].mean(0),
        "cls_mean": (tokens[0] + patches) / 2,
        "mean": patches,
        "mean_all": tokens.mean(0),
    }
    if c.pool not in by_pool:
        raise UserError(Field("explain"), f"cannot follow how the head reads the tokens by pool {c.pool}", IG)
    return by_pool[c.pool]


def logits_of(model: Any, images: Any) -> np.ndarray:
    """The logits of normalised images [B, h, w, C]: [B, K]."""
    return np.asarray(_logits(model, jnp.asarray(images)))


def _integrate(model: Any, images: Array, outputs: Array, steps: int) -> Array:
    x = images.astype(jnp.promote_types(images.dtype, jnp.float32))
    gradient = jax.grad(lambda images: jnp.take_along_axis(model(images), outputs[:, None], 1).sum())
    return integrated_gradients(gradient, x, jnp.zeros_like(x), steps)


_logits: Any = nnx.jit(lambda model, images: model(images))
_integrated: Any = nnx.jit(_integrate, static_argnums=3)
_attention: Any = nnx.jit(lambda model, images: model.capture(images, ("attention",))["attention"].mean(2))


# ------------------------------------------------------------------------------------------------ a text


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
    if method == "ig":
        maps = _integrated_image(model, image, jnp.asarray(given), jnp.asarray(said), steps)
        return sum_cells(np.asarray(maps), c.vit.grid)
    first = c.vit.first_patch
    rows = slice(first if c.memory == "patches" else 0, None)
    found = _attended(model, ("vit.attention", OWN, CROSS), image[None], given[None])
    return _through_decoder(rows, *found)[:, first:].reshape(-1, *c.vit.grid)


def explain_translation(
    model: Any, source: np.ndarray, pad: int, given: np.ndarray, said: np.ndarray, method: Method, steps: int
) -> np.ndarray:
    """How much each token of a source counted for each token of what was said of it: source int32 [S] -> float64 [T,
    S].

    The baseline of a token's embedding is the mean of the table.
    """
    if method == "ig":
        maps = _integrated_source(model, jnp.asarray(source), pad, jnp.asarray(given), jnp.asarray(said), steps)
        return np.asarray(maps, np.float64).sum(-1)
    padding = (source != pad)[None]
    found = _attended(model, ("encoder.attention", OWN, CROSS), source[None], given[None], source_padding=padding)
    return _through_decoder(slice(None), *found)


def _through_decoder(rows: slice, encoder: Array, own: Array, crossed: Array) -> np.ndarray:
    """`rollout` from a decoder's tokens to the input of the encoder: encoder [1, L, N, N], own [1, L, T, T], crossed
    [1, L, T, S] -> float64 [T, N].

    Half of a token goes on, and half is what it attends to, in each attention to the target and to the memory, which is
    made of these rows of the encoder's tokens.
    """
    memory = rollout(np.asarray(encoder)[0])[rows]  # [S, N]
    total = np.zeros((own.shape[2], memory.shape[1]))
    layers, crosses = (np.asarray(weights)[0].astype(np.float64) for weights in (own, crossed))
    for layer, cross in zip(layers, crosses, strict=True):
        total = half_kept(layer) @ total
        total = 0.5 * total + 0.5 * cross @ memory
    return total


def _logits_of_tokens(logits: Array, said: Array) -> Array:
    """The logits of the tokens that were said: [1, T, K], [T] -> [T]."""
    return jnp.take_along_axis(logits[0], said[:, None], -1)[:, 0]


def _integrate_image(model: Any, image: Array, given: Array, said: Array, steps: int) -> Array:
    x = image.astype(jnp.promote_types(image.dtype, jnp.float32))
    values = lambda x: _logits_of_tokens(model(x[None], given[None]), said)  # noqa: E731
    return integrated_gradients(lambda x: each_gradient(values, x), x, jnp.zeros_like(x), steps)


def _integrate_source(model: Any, ids: Array, pad: int, given: Array, said: Array, steps: int) -> Array:
    away = _to_mean(model, ids)

    def values(nudge: Array) -> Array:
        inner: Intermediates = {NUDGE: nudge[None]}
        logits = model(ids[None], given[None], source_padding=ids[None] != pad, intermediates=inner)
        return _logits_of_tokens(logits, said)

    return integrated_gradients(lambda x: each_gradient(values, x), jnp.zeros_like(away), away, steps)


def _to_mean(model: Any, ids: Array) -> Array:
    """What makes the mean of the table of the embedding of each token: [S, D]."""
    assert model.source is not None and model.source_table is not None
    table = model.source_table
    everyone = model.source.lookup(jnp.arange(len(table)), table, jnp.promote_types(model.dtype, jnp.float32))
    return everyone.mean(0) - everyone[ids]


def _attend(model: Any, names: tuple[str, ...], source: Array, target: Array, **masks: Any) -> list[Array]:
    """The attention weights of these names, [1, L, Nq, Nk] each, means over heads."""
    found = model.capture(source, target, names, **masks)
    return [found[name].mean(2) for name in names]


_integrated_image: Any = nnx.jit(_integrate_image, static_argnums=4)
_integrated_source: Any = nnx.jit(_integrate_source, static_argnums=(2, 5))
_attended: Any = nnx.jit(_attend, static_argnums=1)
