"""The half of a network that writes (Vaswani et al. 2017, arXiv 1706.03762): embedding, decoder over a memory, head.

A Transformer's encoder makes the memory of a source (transformer.py), a captioner's ViT that of an image; the decoder
(decoder.py) attends to it and to the target so far, and the head predicts the next token. Dimensions: B batch, S and T
source and target length, D width, V vocabulary, K outputs. Masks are boolean, True where a token may be attended to.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from ..errors import ArgumentError
from ..machine.numerics import mesh_agnostic, with_promotion
from .attention import Known, attention_mask
from .decoder import Cache, Decoder, norm
from .layers import Intermediates, accumulation_dtype, dropout, fold, sinusoids
from .lowering import PLAIN, Lowering
from .state import Network
from .transformer_config import TransformerConfig


class Embedding(nnx.Module):
    """The input of a stack: scaled rows of a table, or given vectors, with positions, LayerNorm and dropout."""

    def __init__(
        self,
        c: TransformerConfig,
        vocabulary: int,
        stored: bool,
        dtype: Any = jnp.float32,
        lowering: Lowering = PLAIN,
    ):
        self.config, self.vocabulary = c, vocabulary
        self.embedding = nnx.Param(jnp.zeros((vocabulary, c.width), dtype)) if vocabulary and stored else None
        self.position = nnx.Param(jnp.zeros((c.position_rows, c.width), dtype)) if c.position_rows else None
        self.norm = norm(c, dtype, lowering) if c.embedding_norm else None

    def __call__(
        self, x: Array, table: Array | None, dtype: Any, *, keys: Array | None = None, nudge: Array | None = None
    ) -> Array:
        """The input of a stack of blocks: x ids [B, N], table [V, D], keys PRNG keys [B] -> [B, N, D]."""
        c, length = self.config, x.shape[1] if x.ndim > 1 else 0
        if self.vocabulary and (x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer)):
            raise ArgumentError(f"tokens {x.dtype} {list(x.shape)} are not ids [B, N], which this network takes")
        if not self.vocabulary and (x.ndim != 3 or x.shape[-1] != c.width or not jnp.issubdtype(x.dtype, jnp.floating)):
            raise ArgumentError(
                f"tokens {x.dtype} {list(x.shape)} are not vectors [B, N, {c.width}], which this network takes"
            )
        if not length:
            raise ArgumentError("a sequence has length 0: give at least one token")
        if c.max_length and length > c.max_length:
            raise ArgumentError(f"a sequence of {length} tokens is longer than max_length {c.max_length}: shorten it")
        x = self.lookup(x, table, dtype)
        x = x if nudge is None else x + nudge.astype(dtype)
        positions = self.positions(length, dtype)
        x = x if positions is None else x + positions
        x = x if self.norm is None else self.norm(x)
        return dropout(x, c.embedding_dropout, keys)

    def lookup(self, x: Array, table: Array | None, dtype: Any) -> Array:
        """The vectors of ids, times sqrt(D) if `scale_embedding`: x ids [...], table [V, D] -> [..., D]."""
        if table is None:
            return x.astype(dtype)
        rows = table[x].astype(dtype)
        return rows * math.sqrt(self.config.width) if self.config.scale_embedding else rows

    def positions(self, length: Any, dtype: Any) -> Array | None:
        """The positions of the first tokens -> [N, D]; None if there are none."""
        c, last = self.config, self.config.position_offset + length
        if c.position == "none":
            return None
        if not isinstance(length, int):  # symbolic, as in a program for any length: a part of all rows
            known = c.position_offset + c.max_length
            rows = sinusoids(c.position, known, c.width) if self.position is None else self.position[...]
            return jax.lax.slice_in_dim(jnp.asarray(rows, dtype), c.position_offset, last)
        rows = sinusoids(c.position, last, c.width) if self.position is None else self.position[...]
        return jnp.asarray(rows[c.position_offset : last], dtype)


class Head(nnx.Module):
    """A linear map to logits, with its own kernel or with the embedding of the target (tied)."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32):
        self.kernel = None if c.tied_head else nnx.Param(jnp.zeros((c.width, c.outputs), dtype))
        self.bias = nnx.Param(jnp.zeros((c.outputs,), dtype)) if c.output_bias else None

    def __call__(self, x: Array, table: Array | None) -> Array:
        """[..., D] -> [..., K]; `table` [V, D] is used if the head is tied; einsum avoids a transpose in each step."""
        if self.kernel is not None:
            y = x @ self.kernel[...].astype(x.dtype)
        else:
            assert table is not None
            y = jnp.einsum("...d,vd->...v", x, table.astype(x.dtype))
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class DecoderModel(Network):
    """The half of a network that writes: the embedding of the target, the decoder over a memory, and the head."""

    def add_target(self, c: TransformerConfig, param_dtype: Any, lowering: Lowering) -> None:
        """Make `target`, `decoder` and `head`, those that the config has."""
        self.side = c
        self.target = Embedding(c, c.target_vocabulary, True, param_dtype, lowering) if c.decoder_depth else None
        self.decoder = Decoder(c, param_dtype, lowering) if c.decoder_depth else None
        self.head = Head(c, param_dtype) if c.outputs else None

    def write(
        self,
        memory: Array,
        target: Array,
        keys: Array | None,
        intermediates: Intermediates | None,
        *,
        target_padding: Array | None = None,
        memory_padding: Array | None = None,
        target_mask: Array | None = None,
        memory_mask: Array | None = None,
        causal: bool | None = None,
    ) -> Array:
        """The forward pass from a memory [B, S, D]; the other arguments and the result are those of a call."""
        assert self.target is not None and self.decoder is not None
        y = self.target(target, self.table, self.dtype, keys=fold(keys, 1))
        (batch, length), memory_length = y.shape[:2], memory.shape[1]
        causal = self.side.causal if causal is None else causal
        mask: Any = attention_mask(batch, length, length, padding=target_padding, mask=target_mask, causal=causal)
        if causal and target_padding is None and target_mask is None:
            mask = Known(mask)
        memory_mask = attention_mask(batch, length, memory_length, padding=memory_padding, mask=memory_mask)
        y = self.decoder(y, memory, mask, memory_mask, keys=fold(keys, 3), intermediates=intermediates)
        return self.logits(y)

    @property
    def table(self) -> Array | None:
        """The embedding of the target, [V, D]; None if the target is vectors."""
        return None if self.target is None or self.target.embedding is None else self.target.embedding[...]

    def logits(self, y: Array) -> Array:
        """The head: [..., D] -> [..., K]; without a head, `y` unchanged."""
        if self.head is None:
            return y
        y = y.astype(accumulation_dtype(y.dtype))
        return self.head(y * self.side.width**-0.5 if self.side.scale_output else y, self.table)

    # Decoding, one token at a time.

    @mesh_agnostic
    @with_promotion
    def init_cache(self, memory: Array, memory_padding: Array | None, length: int) -> Cache:
        """The cache to decode with `decode_step`, of memory [B, S, D], padding [B, S]; projects the memory once."""
        c = self.side
        if self.decoder is None:
            raise ArgumentError("decoder_depth is 0: an encoder alone decodes nothing; give it a decoder")
        if not c.causal:
            raise ArgumentError(
                "causal is False: each token of such a decoder attends to all others, so it cannot decode one at a time"
            )
        if length < 1 or (c.max_length and length > c.max_length):
            raise ArgumentError(f"length is {length}: give 1 to max_length {c.max_length}")
        return self.decoder.init_cache(memory, memory_padding, length)

    @mesh_agnostic
    @with_promotion
    def decode_step(self, tokens: Array, cache: Cache) -> tuple[Array, Cache]:
        """Decode one position: ids [B] -> (logits [B, K] of the next, the cache with these).

        Beyond the length of the cache the result is undefined: the caller has to stop.
        """
        assert self.target is not None and self.decoder is not None  # there is a cache, so there is a decoder
        self.decoder.check(tokens, cache)
        x = self.target.lookup(tokens, self.table, self.dtype)  # [B, D]
        positions = self.target.positions(cache.length, self.dtype)
        if positions is not None:
            x = x + jax.lax.dynamic_slice_in_dim(positions, cache.index, 1)
        x = x if self.target.norm is None else self.target.norm(x)
        x, cache = self.decoder.step(x, cache)
        return self.logits(x), cache


def check_batch(source: Array, target: Array) -> None:
    """Check that a source and a target have as many examples."""
    if source.shape[:1] != target.shape[:1]:
        raise ArgumentError(
            f"source {list(source.shape)} and target {list(target.shape)} are batches of different size"
        )


def check_vectors(name: str, x: Array, width: int) -> None:
    """Check an argument of vectors: x [B, S, width]."""
    if x.ndim != 3 or x.shape[-1] != width or not x.shape[1] or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ArgumentError(
            f"{name} {x.dtype} {list(x.shape)} is not vectors [B, S, {width}], which this network takes"
        )
