"""The half of a network that writes (Vaswani et al. 2017, arXiv 1706.03762): embedding, decoder over a memory, head.

A Transformer's encoder makes the memory of a source (transformer.py), a captioner's ViT that of an image; the decoder
attends to it and to the target so far, and the head predicts the next token. Decoding one token at a time goes on from
a cache. Dimensions: B batch, S and T source and target length, D width, H heads, Dh head width, L blocks,
V vocabulary, K outputs. Masks are boolean, True where a token may be attended to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from .attention_core import Causal
from .layers import Attention, Intermediates, LayerNorm, Mlp, accumulation_dtype, attention_mask, dropout, fold
from .stack import Stack
from .transformer_config import TransformerConfig


class Embedding(nnx.Module):
    """The input of a stack: scaled rows of a table, or given vectors, with positions, LayerNorm and dropout."""

    def __init__(self, c: TransformerConfig, vocabulary: int, stored: bool, dtype: Any = jnp.float32):
        self.config, self.vocabulary = c, vocabulary
        self.embedding = nnx.Param(jnp.zeros((vocabulary, c.width), dtype)) if vocabulary and stored else None
        self.position = nnx.Param(jnp.zeros((c.position_rows, c.width), dtype)) if c.position_rows else None
        self.norm = norm(c, dtype) if c.embedding_norm else None

    def __call__(self, x: Array, table: Array | None, dtype: Any, *, keys: Array | None = None) -> Array:
        """The input of a stack of blocks.

        Args:
            x: ids [B, N], or vectors [B, N, D] if the vocabulary is 0.
            table: the embedding [V, D] of ids; None for vectors.
            dtype: of the result.
            keys: PRNG keys [B], one an example, that draw dropout; None: evaluation.

        Returns:
            [B, N, D].

        Raises:
            ValueError: for another shape or dtype, and a length of 0 or beyond max_length.
        """
        c, length = self.config, x.shape[1] if x.ndim > 1 else 0
        if self.vocabulary and (x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer)):
            raise ValueError(f"tokens {x.dtype} {list(x.shape)} are not ids [B, N], which this network takes")
        if not self.vocabulary and (x.ndim != 3 or x.shape[-1] != c.width or not jnp.issubdtype(x.dtype, jnp.floating)):
            raise ValueError(
                f"tokens {x.dtype} {list(x.shape)} are not vectors [B, N, {c.width}], which this network takes"
            )
        if not length:
            raise ValueError("a sequence has length 0: give at least one token")
        if c.max_length and length > c.max_length:
            raise ValueError(f"a sequence of {length} tokens is longer than max_length {c.max_length}: shorten it")
        x = self.lookup(x, table, dtype)
        positions = self.positions(length, dtype)
        x = x if positions is None else x + positions
        x = x if self.norm is None else self.norm(x)
        return dropout(x, c.embedding_dropout, keys)

    def lookup(self, x: Array, table: Array | None, dtype: Any) -> Array:
        """Ids [...] to rows of the table [..., D], times sqrt(D) if `scale_embedding`; vectors are not changed."""
        if table is None:
            return x.astype(dtype)
        rows = table[x].astype(dtype)
        return rows * math.sqrt(self.config.width) if self.config.scale_embedding else rows

    def positions(self, length: int, dtype: Any) -> Array | None:
        """The positions [N, D] of the first `length` tokens; None if there are none."""
        c, last = self.config, self.config.position_offset + length
        if c.position == "none":
            return None
        rows = sinusoids(c.position, last, c.width) if self.position is None else self.position[...]
        return jnp.asarray(rows[c.position_offset : last], dtype)


class DecoderBlock(nnx.Module):
    """Self-attention, attention to the memory, then mlp, each added to its input; pre-norm or post-norm."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32):
        self.norm_first, self.dropout = c.norm_first, c.dropout
        self.norm1 = norm(c, dtype)
        self.self_attention = attention(c, dtype)
        self.norm2 = norm(c, dtype)
        self.cross_attention = attention(c, dtype)
        self.norm3 = norm(c, dtype)
        self.mlp = mlp(c, dtype)

    def __call__(
        self,
        x: Array,
        memory: Array,
        mask: Array | Causal | None = None,
        memory_mask: Array | None = None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
        cross_intermediates: Intermediates | None = None,
    ) -> Array:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""
        crossed = self.cross_attention.project(memory, memory)
        return self.step(
            x,
            None,
            None,
            crossed,
            mask,
            memory_mask,
            keys=keys,
            intermediates=intermediates,
            cross_intermediates=cross_intermediates,
        )[0]

    def step(
        self,
        x: Array,
        past: KeyValue | None,
        index: Array | None,
        memory: KeyValue,
        mask: Array | Causal | None,
        memory_mask: Array | None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
        cross_intermediates: Intermediates | None = None,
    ) -> tuple[Array, KeyValue]:
        """A call for tokens that follow others.

        Args:
            x: [B, N, D].
            past: keys and values [B, H, T, Dh] of earlier tokens, with room for these; None: there are none.
            index: int32 [], the number of earlier tokens; None: there are none.
            memory: keys and values [B, H, S, Dh] of the memory.
            mask: of the target, as of `Attention`.
            memory_mask: of the memory.
            keys: PRNG keys [B], one an example, that draw dropout; None: evaluation.
            intermediates: receives the weights of self-attention, as of `Attention`.
            cross_intermediates: receives the weights of attention to the memory.

        Returns:
            ([B, N, D], the keys and values of all tokens so far).
        """
        y = self.norm1(x) if self.norm_first else x
        own = self.self_attention.project(y, y)
        own = own if past is None or index is None else _insert(past, own, index)
        if self.norm_first:
            x = x + self.attend(y, own, mask, keys, intermediates)
            x = x + self.attend_memory(self.norm2(x), memory, memory_mask, keys, cross_intermediates)
            return x + self.feed_forward(self.norm3(x), keys), own
        x = self.norm1(x + self.attend(x, own, mask, keys, intermediates))
        x = self.norm2(x + self.attend_memory(x, memory, memory_mask, keys, cross_intermediates))
        return self.norm3(x + self.feed_forward(x, keys)), own

    def attend(
        self,
        x: Array,
        pair: KeyValue,
        mask: Array | Causal | None,
        keys: Array | None,
        intermediates: Intermediates | None,
    ) -> Array:
        """Self-attention and dropout: [B, N, D] -> [B, N, D]; `pair` has its keys and values."""
        return dropout(
            self.self_attention.attend(x, *pair, mask, keys=fold(keys, 0), intermediates=intermediates),
            self.dropout,
            fold(keys, 1),
        )

    def attend_memory(
        self, x: Array, pair: KeyValue, mask: Array | None, keys: Array | None, intermediates: Intermediates | None
    ) -> Array:
        """Attention to the memory, and dropout.

        Args:
            x: [R, N, D]. R is B, or K B in a search with K hypotheses for each memory: rows that follow each other then
                share one.
            pair: keys and values [B, H, S, Dh] of the memory.
            mask: of the memory, as of `Attention`.
            keys: as of `step`.
            intermediates: receives the weights, as of `Attention`.

        Returns:
            [R, N, D].
        """
        together = x.reshape(len(pair[0]), -1, x.shape[-1])  # [B, K N, D]
        y = self.cross_attention.attend(together, *pair, mask, keys=fold(keys, 2), intermediates=intermediates)
        return dropout(y.reshape(x.shape), self.dropout, fold(keys, 3))

    def feed_forward(self, x: Array, keys: Array | None) -> Array:
        """The mlp and dropout: [B, N, D] -> [B, N, D]."""
        return dropout(self.mlp(x, keys=fold(keys, 4)), self.dropout, fold(keys, 5))


class Decoder(nnx.Module):
    """A stack of decoder blocks and an optional final LayerNorm: `decoder(x, memory, mask, memory_mask)`."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32):
        self.blocks = Stack([DecoderBlock(c, dtype) for _ in range(c.decoder_depth)])
        self.norm = norm(c, dtype) if c.final_norm else None

    def __call__(
        self,
        x: Array,
        memory: Array,
        mask: Array | Causal | None = None,
        memory_mask: Array | None = None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""

        def call(
            block: DecoderBlock,
            x: Array,
            i: int | Array,
            intermediates: Intermediates | None = None,
            cross_intermediates: Intermediates | None = None,
        ) -> Array:
            return block(
                x,
                memory,
                mask,
                memory_mask,
                keys=fold(keys, i),
                intermediates=intermediates,
                cross_intermediates=cross_intermediates,
            )

        x = self.blocks.through(x, call, intermediates, "decoder.", ("self_attention", "cross_attention"))
        return x if self.norm is None else self.norm(x)

    # Decoding, one token at a time.

    def init_cache(self, memory: Array, memory_padding: Array | None, length: int) -> Cache:
        """The cache to decode with `step`; projects the keys and values of the memory once.

        Args:
            memory: [B, S, D].
            memory_padding: bool [B, S], True at real tokens; None: all are.
            length: the most tokens, 1 or more.

        Raises:
            ValueError: for a wrong padding or length.
        """
        if length < 1:
            raise ValueError(f"length is {length}: give 1 or more")
        attention = self.blocks[0].self_attention
        empty = jnp.zeros((memory.shape[0], attention.heads, length, attention.head_width), memory.dtype)
        memory_mask = attention_mask(memory.shape[0], 1, memory.shape[1], padding=memory_padding)
        crossed = [block.cross_attention.project(memory, memory) for block in self.blocks]
        return Cache(jnp.zeros((), jnp.int32), [(empty, empty)] * len(self.blocks), crossed, memory_mask)

    def check(self, tokens: Array, cache: Cache) -> None:
        """Raise ValueError if a cache is not for this decoder and the batch size of tokens [B, ...]."""
        batch, heads, _, width = cache.own[0][0].shape
        attention = self.blocks[0].self_attention
        own, mine = (heads, width, len(cache.own)), (attention.heads, attention.head_width, len(self.blocks))
        if tokens.shape[:1] != (batch,) or own != mine:
            raise ValueError(
                f"a cache of batch {batch}, {heads} heads of {width} and {len(cache.own)} blocks "
                f"does not fit tokens {list(tokens.shape)} and a decoder of {mine[0]} heads of {mine[1]} "
                f"and {mine[2]} blocks: make one with init_cache"
            )

    def step(self, x: Array, cache: Cache) -> tuple[Array, Cache]:
        """Decode one position. Beyond the length of the cache the result is undefined: the caller has to stop.

        Args:
            x: tokens [B, D], which attend to those in the cache.
            cache: as `init_cache` or the last step gave it.

        Returns:
            ([B, D], the cache with these tokens).

        Raises:
            ValueError: for a cache of another batch size or decoder.
        """
        self.check(x, cache)
        mask = (jnp.arange(cache.length, dtype=jnp.int32) <= cache.index)[None, None, None]  # [1, 1, 1, T]
        x, pairs = x[:, None], []
        for block, past, memory in zip(self.blocks, cache.own, cache.memory, strict=True):
            x, pair = block.step(x, past, cache.index, memory, mask, cache.memory_mask)
            pairs.append(pair)
        x = x if self.norm is None else self.norm(x)
        return x[:, 0], replace(cache, index=cache.index + jnp.int32(1), own=pairs)


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


class DecoderModel(nnx.Module):
    """The half of a network that writes: the embedding of the target, the decoder over a memory, and the head."""

    def add_target(self, c: TransformerConfig, dtype: Any, param_dtype: Any) -> None:
        """Make the three, those that the config has; activations will have `dtype`."""
        self.side, self.dtype = c, jnp.dtype(dtype)
        self.target = Embedding(c, c.target_vocabulary, True, param_dtype) if c.decoder_depth else None
        self.decoder = Decoder(c, param_dtype) if c.decoder_depth else None
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
            mask = Causal(mask)
        memory_mask = attention_mask(batch, length, memory_length, padding=memory_padding, mask=memory_mask)
        y = self.decoder(y, memory, mask, memory_mask, keys=fold(keys, 3), intermediates=intermediates)
        return self.logits(y)

    @property
    def table(self) -> Array | None:
        """The embedding of the target, [V, D]; None if the target is vectors."""
        return None if self.target is None or self.target.embedding is None else self.target.embedding[...]

    def logits(self, y: Array) -> Array:
        """The head: [..., D] -> [..., K]; without a head, `y` unchanged."""
        return y if self.head is None else self.head(y.astype(accumulation_dtype(y.dtype)), self.table)

    # Decoding, one token at a time.

    def init_cache(self, memory: Array, memory_padding: Array | None, length: int) -> Cache:
        """The cache to decode with `decode_step`; projects the keys and values of the memory once.

        Args:
            memory: [B, S, D].
            memory_padding: bool [B, S], True at real tokens; None: all are.
            length: the most tokens, at most max_length.

        Raises:
            ValueError: for a wrong padding or length, a decoder that is not causal, or a network without one.
        """
        c = self.side
        if self.decoder is None:
            raise ValueError("decoder_depth is 0: an encoder alone decodes nothing; give it a decoder")
        if not c.causal:
            raise ValueError(
                "causal is False: each token of such a decoder attends to all others, so it cannot decode one at a time"
            )
        if length < 1 or (c.max_length and length > c.max_length):
            raise ValueError(f"length is {length}: give 1 to max_length {c.max_length}")
        return self.decoder.init_cache(memory, memory_padding, length)

    def decode_step(self, tokens: Array, cache: Cache) -> tuple[Array, Cache]:
        """Decode one position. Beyond the length of the cache the result is undefined: the caller has to stop.

        Args:
            tokens: ids [B] or vectors [B, D], which attend to those in the cache.
            cache: as `init_cache` or the last step gave it.

        Returns:
            (logits [B, K] of the next tokens, the cache with these tokens).

        Raises:
            ValueError: for a cache of another batch size or network.
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


def check_vectors(name: str, x: Array, width: int) -> None:
    """Raise ValueError unless `x` is floating-point vectors [B, S, width], at least one a row."""
    if x.ndim != 3 or x.shape[-1] != width or not x.shape[1] or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"{name} {x.dtype} {list(x.shape)} is not vectors [B, S, {width}], which this network takes")


KeyValue = tuple[Array, Array]  # keys and values per head, [B, H, N, Dh] each


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """What decoding needs from one token to the next; the lists have one item for each block.

    There are R rows of tokens for B memories: R is B, or K B after `take` has made K rows of each.
    """

    index: Array  # int32 []: number of tokens so far
    own: list[KeyValue]  # keys and values of the target so far, [R, H, length, Dh]
    memory: list[KeyValue]  # keys and values of the memory, [B, H, S, Dh]
    memory_mask: Array | None  # bool [B, 1, 1, S]

    def take(self, rows: Array) -> Cache:
        """The cache of other rows. The memory is shared: the first R / B rows belong to the first memory, and so on.

        Args:
            rows: int32 [R], the numbers of the rows in their new order; R is any multiple of B.
        """
        own = [(jnp.take(k, rows, axis=0, mode="clip"), jnp.take(v, rows, axis=0, mode="clip")) for k, v in self.own]
        return replace(self, own=own)

    @property
    def length(self) -> int:
        """The number of tokens that the cache has room for."""
        return self.own[0][0].shape[2]


def _insert(cache: KeyValue, new: KeyValue, index: Array) -> KeyValue:
    """The keys and values [B, H, length, Dh] with those of one more token [B, H, 1, Dh] at `index`."""
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(old, one.astype(old.dtype), index, axis=2)
        for old, one in zip(cache, new, strict=True)
    )
    return keys, values


def norm(c: TransformerConfig, dtype: Any) -> LayerNorm:
    """One of the norms of a block, of a stack or of an embedding."""
    return LayerNorm(c.width, c.eps, c.norm_bias, dtype)


def mlp(c: TransformerConfig, dtype: Any) -> Mlp:
    """The mlp of a block."""
    return Mlp(c.width, c.hidden, c.activation, bias=c.bias, dropout=c.activation_dropout, dtype=dtype)


def attention(c: TransformerConfig, dtype: Any) -> Attention:
    """An attention of a block."""
    return Attention(c.width, c.heads, c.resolved_head_width, bias=c.bias, dropout=c.attention_dropout, dtype=dtype)


def sinusoids(kind: str, length: int, width: int) -> np.ndarray:
    """Positions: sines and cosines of t / 10000^(2i/D) (Vaswani et al. 2017, section 3.5).

    Args:
        kind: interleaved (column 2i is the sine, 2i+1 the cosine), concatenated (all sines, then all cosines), fairseq
            (so too, of t / 10000^(i/(D/2-1)), so that the lowest frequency is 1/10000), or one_frequency (sin(t) and
            cos(t) in turn).
        length: the number of positions.
        width: D.

    Returns:
        [length, D], float64.
    """
    last = width - 2 if kind == "fairseq" else width
    periods = 1 if kind == "one_frequency" else 10000 ** (np.arange(0, width, 2) / last)
    angles = np.arange(length)[:, None] / np.broadcast_to(periods, width // 2)  # [length, D/2]
    halves = np.sin(angles), np.cos(angles)
    if kind in ("concatenated", "fairseq"):
        return np.concatenate(halves, axis=1)
    return np.stack(halves, axis=-1).reshape(length, width)
