"""Masks of attention, of paddings, masks and what comes later, and those of torch: True is where to attend."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp
from jax import Array

from ..errors import ArgumentError
from .attention import check_mask


def attention_mask(
    batch: int,
    query_length: int,
    key_length: int,
    *,
    padding: Array | None = None,
    mask: Array | None = None,
    causal: bool = False,
) -> Array | None:
    """One mask for all that hides keys: a padding, a mask, and what comes later. Shapes: padding bool [B, Nk], mask [B,
    H, Nq, Nk]. A mask, bool, broadcastable to [B, H, Nq, Nk]; None if nothing is masked.
    """
    masks = []
    if padding is not None:
        if padding.dtype != bool or padding.shape != (batch, key_length):
            raise ArgumentError(
                f"padding {padding.dtype} {list(padding.shape)} is not bool [{batch}, {key_length}], "
                "True at real tokens: give it that dtype and shape"
            )
        masks.append(padding[:, None, None, :])
    if mask is not None:
        # Attention checks it too, but only after a mask of fewer axes would have been broadcast to the others.
        check_mask(mask, (batch, None, query_length, key_length))
        masks.append(mask)
    if causal:
        masks.append((jnp.arange(key_length) <= jnp.arange(query_length)[:, None])[None, None])
    return functools.reduce(operator.and_, masks) if masks else None


def from_torch_mask(mask: Any, heads: int = 0) -> Array:
    """A boolean mask of torch (True = ignore) in the form of this module (True = attend) -> bool [B, Nk]."""
    ignored = jnp.asarray(mask)
    if ignored.dtype != bool:
        raise ArgumentError(
            f"mask {ignored.dtype}: only boolean masks are taken; for an additive one give mask == -inf"
        )
    keep = ~ignored
    if not heads:
        return keep
    return keep[None, None] if keep.ndim == 2 else keep.reshape(-1, heads, *keep.shape[1:])
