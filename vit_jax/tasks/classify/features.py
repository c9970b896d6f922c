"""The features of images for search and detection: what the network's head reads, and the maps that blocks make."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from flax import nnx
from jax import Array

from ...errors import Field, UserError
from ...models.layers import accumulation_dtype
from ...models.vit import sized


def block_numbers(blocks: Any, depth: int) -> tuple[int, ...]:
    """The numbers of some blocks of a network: ascending, each once, counted from 0."""
    if not isinstance(blocks, Iterable) or isinstance(blocks, str):
        raise UserError(Field("blocks"), f"is {blocks!r}", "give a list of numbers, such as [-1] for the last block")
    found = set()
    for block in blocks:
        if not depth:
            raise UserError("blocks", "this network has none that hand on tokens", "leave them out")
        try:
            number = operator.index(block)
        except TypeError:
            number = depth  # which is not there
        if not -depth <= number < depth:
            raise UserError(
                "blocks", f"there is no block {block!r}", f"give 0 to {depth - 1}, or -1 (the last) to {-depth}"
            )
        found.add(number % depth)
    return tuple(sorted(found))


def features(model: Any, images: Array, blocks: tuple[int, ...] = (), norm: bool = True) -> dict[str, Array]:
    """What the head reads of images, and the maps of some blocks: images [B, h, w, C] -> [B, D]."""
    found = model.capture(images, ("pooled", *(f"blocks.{i}" for i in blocks)))
    out = {"pooled": found["pooled"]}
    for i in blocks:
        c, x = sized(model.config, images), found[f"blocks.{i}"]  # [B, P + gh gw, D]
        x = x if model.norm is None or not norm else model.norm(x)
        x = x.astype(accumulation_dtype(x.dtype))
        out |= {f"maps.{i}": x[:, c.first_patch :].reshape(len(x), *c.grid, -1), f"prefix.{i}": x[:, : c.first_patch]}
    return out


compiled_features: Any = nnx.jit(features, static_argnums=(2, 3))
