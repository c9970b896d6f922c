"""Next-token prediction: what a decoder reads and has to say, and the loss of what it says."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..text.tokenizer import Ids


def shift_target(target: Array, source: Array, ids: Ids, source_pad: int) -> tuple[Array, Array, Array]:
    """What a decoder reads and has to predict: a begin and the target, and the target and an end. Shapes: target int32
    [B, T], source int32 [B, S]. Returns (the decoder's inputs, the labels, False where a label is padding), [B, T+1]
    each.
    """
    begin, blank = jnp.full_like(target[:, :1], ids.begin), jnp.full_like(target[:, :1], ids.pad)
    padded = jnp.concatenate([target, blank], 1)
    count = (target != ids.pad).sum(-1, keepdims=True)
    index = jnp.arange(padded.shape[1])
    labels = jnp.where(index == count, ids.end, padded)
    return jnp.concatenate([begin, target], 1), labels, (index <= count) & (source != source_pad).any(-1, keepdims=True)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def freeze_zero_row(table: Array, row: int) -> Array:
    """A table [V, D], one row of which has no gradient where it is zero: so it stays zero."""
    return table


@freeze_zero_row.defjvp
def _derivative_of_table(row: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (table,), (along,) = primals, tangents
    return table, along.at[row].set(jnp.where(table[row].any(), along[row], 0))


def mean_loss(
    logits: Array, labels: Array, real: Array, smoothing: float, denominator: Array
) -> tuple[Array, dict[str, Array]]:
    """The loss of a batch, or of a part of it: sums over its labels, divided by a number of labels. Shapes: logits [B,
    T, V], labels int32 [B, T], real bool [B, T] -> (cross entropy [], {"accuracy": []}).
    """
    right = (logits.argmax(-1) == labels) & real
    losses = token_losses(logits, labels, smoothing)
    return jnp.where(real, losses, 0).sum() / denominator, {"accuracy": right.sum() / denominator}


def sums(logits: Array, labels: Array, real: Array) -> dict[str, Array]:
    """Sums of each example over its labels: logits [B, T, V], labels int32 [B, T], real bool [B, T] -> [B]."""
    right = (logits.argmax(-1) == labels) & real
    losses = token_losses(logits, labels, 0.0)
    return {"loss": jnp.where(real, losses, 0).sum(-1), "tokens": real.sum(-1), "right": right.sum(-1)}


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def token_losses(logits: Array, labels: Array, smoothing: float) -> Array:
    """The cross entropy of each label, [B, T]: logits [B, T, V].

    With label smoothing e it is -(1-e) log p(label) - e/V sum over v of log p(v), as in PyTorch. It is computed without
    an array of targets, so that besides the logits only their gradient is as large.
    """
    return _formula(logits, labels, smoothing)


@token_losses.defjvp
def _derivative(smoothing: float, primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    """The derivative as it is; on a GPU so that the gradient, the probabilities minus the targets, is written once.

    Otherwise that of a label's logit is added to an array of zeros, and this to the gradient of the rest.
    """
    logits, labels = primals
    losses, derivative = jax.linearize(lambda logits: _formula(logits, labels, smoothing), logits)

    def at_once(along: Array) -> Array:
        is_label = jnp.arange(logits.shape[-1]) == labels[..., None]
        targets = jnp.where(is_label, 1 - smoothing, 0.0).astype(logits.dtype) + smoothing / logits.shape[-1]
        return ((jax.nn.softmax(logits) - targets) * along).sum(-1)

    return losses, jax.lax.platform_dependent(tangents[0], cuda=at_once, default=derivative)


def _formula(logits: Array, labels: Array, smoothing: float) -> Array:
    right = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    losses = jax.nn.logsumexp(logits, -1) - (1 - smoothing) * right
    return losses - smoothing * logits.mean(-1) if smoothing else losses
