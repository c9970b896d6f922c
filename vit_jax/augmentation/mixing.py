"""Mixup and CutMix: two neighbours of a batch are mixed with each other, and so are their targets.

The partner of the example at place i is that at place i XOR 1. Both draw from the key of the even one, so that they
agree on the share and the rectangle wherever a batch is cut afterwards.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .config import ImageAugment

QUANTILES = 4096  # of a distribution: so many values, all as likely


def mix_pairs(images: Array, targets: Array, keys: Array, config: ImageAugment) -> tuple[Array, Array]:
    """Pairs of neighbours that are mixed, with their targets: images uint8 [B, h, w, C], targets float32 [B, K], keys
    PRNG keys [B]. A label of a set that is unknown is NaN, and so is what it is mixed with.

    By CutMix (Yun et al. 2019, arXiv 1905.04899) or by mixup (Zhang et al. 2018, arXiv 1710.09412), each as likely
    where both are on. The share is drawn from Beta(a, a) with a = `cutmix` or `mixup`.
    """
    b, h, w = images.shape[:3]
    pairs = jnp.repeat(keys[::2], 2, axis=0)
    draws = jax.vmap(lambda key: jax.random.uniform(key, (5,), jnp.float32))(pairs)  # [B, 5]
    _, switch, y, x, share = draws.T
    cut = switch < 0.5 if config.mixup and config.cutmix else jnp.full(b, bool(config.cutmix))
    own = jnp.where(cut, 1.0, _share(share, config.mixup))  # of mixup, float32 [B]
    inside = _rectangle(y, x, _share(share, config.cutmix), h, w) & cut[:, None, None]  # [B, h, w]

    def partner(array: Array) -> Array:
        return array.reshape(b // 2, 2, *array.shape[1:])[:, ::-1].reshape(array.shape)

    others, own = partner(images), own.astype(jnp.float32)
    if config.cutmix:
        images = jnp.where(inside[..., None], others, images)
    if config.mixup:
        weight = own[:, None, None, None]
        images = images.astype(jnp.float32) * weight + others.astype(jnp.float32) * (1 - weight)
    kept = (h * w - inside.sum((1, 2), dtype=jnp.int32)).astype(jnp.float32) / (h * w)
    rest = (own * kept)[:, None]
    return images, _mixed(targets, partner(targets), rest)


def _mixed(own: Array, other: Array, share: Array) -> Array:
    """share * own + (1 - share) * other, float32 [B, K]; NaN only where a part that counts is NaN."""
    mixed = own * share + other * (1 - share)
    return jnp.where(share == 1, own, jnp.where(share == 0, other, mixed))


def _share(uniform: Array, alpha: float) -> Array:
    """float32 [B] from Beta(alpha, alpha), given float32 [B] uniform in 0..1; 1 for alpha 0."""
    if not alpha:
        return jnp.ones_like(uniform)
    return jnp.asarray(quantiles(alpha))[jnp.minimum((uniform * QUANTILES).astype(jnp.int32), QUANTILES - 1)]


@functools.cache
def quantiles(alpha: float) -> np.ndarray:
    """The quantiles of Beta(alpha, alpha) in the middles of equal shares; a draw is one of them. Returns float32
    [QUANTILES], ascending.

    So a draw needs no loop on the device, as sampling by rejection would. They are multiples of 2^-14: a level times a
    share is then exact in float32, and so the same in every compiled program.
    """
    # The density x^(alpha-1) (1-x)^(alpha-1) below the median, over s = x^power, is bounded; above it by symmetry.
    power = min(alpha, 1.0)
    edges = np.linspace(0, 0.5**power, 20_001)
    middles = np.maximum(((edges[1:] + edges[:-1]) / 2) ** (1 / power), np.finfo(float).tiny)
    logarithm = (alpha - power) * np.log(middles) + (alpha - 1) * np.log1p(-middles)
    density = np.exp(logarithm - logarithm.max())  # a large alpha would make 0 of all
    below = np.concatenate([[0], np.cumsum(density)]) / (2 * density.sum())
    lower = np.interp((np.arange(QUANTILES // 2) + 0.5) / QUANTILES, below, edges) ** (1 / power)
    lower = np.round(lower * 2**14) / 2**14
    return np.concatenate([lower, 1 - lower[::-1]]).astype(np.float32)


def _rectangle(y: Array, x: Array, share: Array, h: int, w: int) -> Array:
    """bool [B, h, w]: rectangles of 1 - share of the area, centred at (y, x) of 0..1, cut off at the edge."""
    side = jnp.sqrt(1 - share)

    def span(at: Array, size: int) -> Array:
        middle, half = jnp.floor(at * size), jnp.floor(side * size) / 2
        first, last = jnp.floor(middle - half), jnp.floor(middle + half)
        places = jnp.arange(size, dtype=jnp.float32)
        return (places >= first[:, None]) & (places < last[:, None])

    return span(y, h)[:, :, None] & span(x, w)[:, None, :]
