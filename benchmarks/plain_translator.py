"""The translator of vit_jax at the size of opus-mt, written with the layers of flax, for comparison; see plain.py.

Post-norm blocks and one table for source, target and head, as in Marian (Junczys-Dowmunt et al. 2018, arXiv
1804.00344). It supports the fields of a config that such a network has, and refuses any other.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from benchmarks.plain import ACTIVATIONS
from vit_jax.models.transformer_config import TransformerConfig

READ = {"width", "heads", "hidden", "encoder_depth", "decoder_depth", "eps", "source_vocabulary", "target_vocabulary"}
READ |= {"outputs", "activation", "max_length", "init", "attention_init", "init_std", "embedding_std", "position_std"}
FIXED = {"norm_first": False, "final_norm": False, "position": "concatenated", "scale_embedding": True, "tie": "all"}


class Block(nnx.Module):
    """A post-norm block of the encoder, or of the decoder, which also attends to a memory."""

    def __init__(self, c: TransformerConfig, rngs: nnx.Rngs, dtype: Any, decodes: bool):
        def attention() -> nnx.MultiHeadAttention:
            return nnx.MultiHeadAttention(c.heads, c.width, decode=False, dtype=dtype, rngs=rngs)

        def norm() -> nnx.LayerNorm:
            return nnx.LayerNorm(c.width, epsilon=c.eps, dtype=dtype, rngs=rngs)

        self.attention, self.norm1 = attention(), norm()
        self.cross, self.norm2 = (attention(), norm()) if decodes else (None, None)
        self.fc1 = nnx.Linear(c.width, c.hidden, dtype=dtype, rngs=rngs)
        self.fc2 = nnx.Linear(c.hidden, c.width, dtype=dtype, rngs=rngs)
        self.norm3, self.activation = norm(), ACTIVATIONS[c.activation]

    def __call__(self, x: Array, mask: Array, memory: Array | None = None, memory_mask: Array | None = None) -> Array:
        x = self.norm1(x + self.attention(x, mask=mask))
        if self.cross is not None and self.norm2 is not None:
            x = self.norm2(x + self.cross(x, memory, mask=memory_mask))
        return self.norm3(x + self.fc2(self.activation(self.fc1(x))))


class PlainTranslator(nnx.Module):
    """The network of a config: `model(source [B, S], target [B, T], padding bool [B, S]) -> logits [B, T, K]`.

    Raises ValueError for other networks.
    """

    def __init__(self, c: TransformerConfig, rngs: nnx.Rngs, dtype: Any = None):
        other = [f.name for f in dataclasses.fields(c) if getattr(c, f.name) != FIXED.get(f.name, f.default)]
        if other := [name for name in other if name not in READ]:
            raise ValueError(f"the plain translator has no counterpart to {', '.join(other)} of {c}")
        self.width = c.width
        self.table = nnx.Embed(c.outputs, c.width, dtype=dtype, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(c.outputs))
        self.encoder = nnx.List([Block(c, rngs, dtype, decodes=False) for _ in range(c.encoder_depth)])
        self.decoder = nnx.List([Block(c, rngs, dtype, decodes=True) for _ in range(c.decoder_depth)])

    def __call__(self, source: Array, target: Array, padding: Array) -> Array:
        memory, real = self.embed(source), padding[:, None, None, :]
        for block in self.encoder:
            memory = block(memory, real)
        x = self.embed(target)
        for block in self.decoder:
            x = block(x, nnx.make_causal_mask(target), memory, real)
        return self.table.attend(x) + self.bias[...].astype(x.dtype)

    def embed(self, ids: Array) -> Array:
        """[B, N] -> [B, N, D]."""
        x = self.table(ids) * np.sqrt(self.width).astype(np.float32)
        return x + jnp.asarray(sinusoids(ids.shape[1], self.width), x.dtype)


def sinusoids(length: int, width: int) -> np.ndarray:
    """Vaswani et al. 2017, section 3.5, sines first: [N, D]."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(width // 2) * 2 / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def loss(model: Any, source: Array, target: Array, pad: int) -> Array:
    """The mean cross entropy of targets int [B, T] that begin and are padded with `pad` and end with 0, as Marian's."""
    start = jnp.full_like(target[:, :1], pad)
    padded, count = jnp.concatenate([target, start], 1), (target != pad).sum(-1, keepdims=True)
    index = jnp.arange(padded.shape[1])
    labels, real = jnp.where(index == count, 0, padded), index <= count
    logits = model(source, jnp.concatenate([start, target], 1), source != pad).astype(jnp.float32)
    values = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.sum(jnp.where(real, values, 0)) / real.sum()
