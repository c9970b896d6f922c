"""The binary cross entropy of classes and labels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def binary_losses(logits: Array, targets: Array, positive: Array | None = None, focal: float = 0.0) -> Array:
    """-(q t log s + (1 - t) log (1 - s)), s the sigmoid of the logits: BCEWithLogitsLoss(pos_weight=q), [B, K]."""
    there, not_there = -jax.nn.log_sigmoid(logits) * targets, -jax.nn.log_sigmoid(-logits) * (1 - targets)
    losses = (there if positive is None else there * positive) + not_there
    if focal:
        s = jax.nn.sigmoid(logits)
        losses = losses * (1 - s * targets - (1 - s) * (1 - targets)) ** focal
    return losses


def positive(total: Array) -> Array:
    """A sum that may be divided by: 1 in place of 0, of which the dividend is 0 too."""
    return jnp.where(total > 0, total, 1)
