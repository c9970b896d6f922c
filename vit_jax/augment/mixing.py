"""Mixup and CutMix: two neighbours of a batch are mixed with each other, and so are their targets.

The partner of the example at place i is that at place i XOR 1. Both draw from the key of the even one, so that they
agree on the share and the rectangle wherever a batch is cut afterwards.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ..config import ImageAugment


def mixed(
    images: Array, labels: Array, keys: Array, config: ImageAugment, classes: int, epoch: Array | int
) -> tuple[Array, Array]:
    """(images, targets) of pairs that are mixed: uint8 [B, h, w, C], int32 [B], keys [B] -> (images, float32 [B, K]).

    B is even. Images become float32 0..255 where the config has mixup, otherwise they stay uint8. With probability
    `mix_chance` a pair is mixed: by CutMix (Yun et al. 2019, arXiv 1905.04899) or by mixup (Zhang et al. 2018,
    arXiv 1710.09412), with `mix_switch` as the probability of CutMix where both are on. From epoch `mix_off` (counted
    from 0, if it is not 0) none is. The share is drawn from Beta(a, a) with a = `cutmix` or `mixup`.
    """
    b, h, w = images.shape[:3]
    pairs = jnp.repeat(keys[::2], 2)
    draws = jax.vmap(lambda key: jax.random.uniform(key, (4,), jnp.float32))(pairs)  # [B, 4]
    done, switch, y, x = draws.T
    active = done < config.mix_chance
    if config.mix_off:
        active &= jnp.asarray(epoch) < config.mix_off
    cut = switch < config.mix_switch if config.mixup and config.cutmix else jnp.full(b, bool(config.cutmix))
    own = jnp.where(active, jnp.where(cut, 1.0, _share(pairs, config.mixup)), 1.0)  # of mixup, float32 [B]
    inside = _rectangle(y, x, _share(pairs, config.cutmix), h, w) & (active & cut)[:, None, None]  # [B, h, w]

    def partner(array: Array) -> Array:
        return array.reshape(b // 2, 2, *array.shape[1:])[:, ::-1].reshape(array.shape)

    others, own = partner(images), own.astype(jnp.float32)
    if config.cutmix:
        images = jnp.where(inside[..., None], others, images)
    if config.mixup:
        share = own[:, None, None, None]
        images = images.astype(jnp.float32) * share + others.astype(jnp.float32) * (1 - share)
    share = (own * (1 - inside.mean((1, 2), dtype=jnp.float32)))[:, None]
    targets = jax.nn.one_hot(labels, classes, dtype=jnp.float32)
    return images, targets * share + partner(targets) * (1 - share)


def _share(keys: Array, alpha: float) -> Array:
    """float32 [B] from Beta(alpha, alpha); 1 for alpha 0."""
    if not alpha:
        return jnp.ones(len(keys), jnp.float32)
    return jax.vmap(lambda key: jax.random.beta(jax.random.fold_in(key, 1), alpha, alpha, (), jnp.float32))(keys)


def _rectangle(y: Array, x: Array, share: Array, h: int, w: int) -> Array:
    """bool [B, h, w]: rectangles of 1 - share of the area, centred at (y, x) of 0..1, cut off at the edge."""
    side = jnp.sqrt(1 - share)

    def span(at: Array, size: int) -> Array:
        middle, half = jnp.floor(at * size), jnp.floor(side * size) / 2
        first, last = jnp.floor(middle - half), jnp.floor(middle + half)
        places = jnp.arange(size, dtype=jnp.float32)
        return (places >= first[:, None]) & (places < last[:, None])

    return span(y, h)[:, :, None] & span(x, w)[:, None, :]
