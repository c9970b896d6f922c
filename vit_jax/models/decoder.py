"""A stack of decoder blocks over a memory (Vaswani et al. 2017, arXiv 1706.03762), at once or one token at a time.

Decoding one token at a time goes on from a cache of keys and values. Dimensions: B batch, S and T source and target
length, D width, H heads, Dh head width, L blocks. Masks are boolean, True where a token may be attended to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from ..errors import ArgumentError
from .attention import Attention, Known, attention_mask
from .layers import NORMS, Intermediates, LayerNorm, Mlp, dropout, fold
from .lowering import PLAIN, Lowering
from .positions import RelativePosition
from .stack import Stack
from .transformer_config import TransformerConfig

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
        """The cache of other rows, int32 [R]. The memory is shared: the first R / B rows are of the first."""
        own = [(jnp.take(k, rows, axis=0, mode="clip"), jnp.take(v, rows, axis=0, mode="clip")) for k, v in self.own]
        return replace(self, own=own)

    @property
    def length(self) -> int:
        """The number of tokens that the cache has room for."""
        return self.own[0][0].shape[2]


class DecoderBlock(nnx.Module):
    """Self-attention, attention to the memory, then mlp, each added to its input; pre-norm or post-norm."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32, lowering: Lowering = PLAIN):
        self.norm_first, self.dropout = c.norm_first, c.dropout
        self.norm1 = norm(c, dtype, lowering)
        self.self_attention = attention(c, dtype, lowering, relative(c, "blocks", c.causal, dtype))
        self.norm2 = norm(c, dtype, lowering)
        self.cross_attention = attention(c, dtype, lowering)
        self.norm3 = norm(c, dtype, lowering)
        self.mlp = mlp(c, dtype, lowering)

    def __call__(
        self,
        x: Array,
        memory: Array,
        mask: Array | Known | None = None,
        memory_mask: Array | None = None,
        bias: Array | None = None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""
        masks, crossed = (mask, memory_mask, bias), self.cross_attention.project(memory, memory)
        return self.step(x, None, None, crossed, *masks, keys=keys, intermediates=intermediates)[0]

    def step(
        self,
        x: Array,
        past: KeyValue | None,
        index: Array | None,
        memory: KeyValue,
        mask: Array | Known | None,
        memory_mask: Array | None,
        bias: Array | None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> tuple[Array, KeyValue]:
        """A call for tokens that follow others: x [B, N, D], past [B, H, T, Dh], index int32 [], memory [B, H, S, Dh],
        keys PRNG keys [B] -> ([B, N, D], the keys and values of all tokens so far).
        """
        y = self.norm1(x) if self.norm_first else x
        own = self.self_attention.project(y, y)
        if past is not None and index is not None:
            own = _insert(past, own, index)
            if self.self_attention.relative is not None:
                bias = self.self_attention.relative.at(index, own[0].shape[2])
        if self.norm_first:
            x = x + self.attend(y, own, mask, bias, keys, intermediates)
            x = x + self.attend_memory(self.norm2(x), memory, memory_mask, keys, intermediates)
            return x + self.feed_forward(self.norm3(x), keys), own
        x = self.norm1(x + self.attend(x, own, mask, bias, keys, intermediates))
        x = self.norm2(x + self.attend_memory(x, memory, memory_mask, keys, intermediates))
        return self.norm3(x + self.feed_forward(x, keys)), own

    def attend(
        self,
        x: Array,
        pair: KeyValue,
        mask: Array | Known | None,
        bias: Array | None,
        keys: Array | None,
        intermediates: Intermediates | None,
    ) -> Array:
        """Self-attention and dropout: x [B, N, D], mask [B, H, N, Nk], keys [B] -> [B, N, D]."""
        return dropout(
            self.self_attention.attend(
                x, *pair, mask, bias=bias, keys=fold(keys, 0), intermediates=intermediates, name="self_attention"
            ),
            self.dropout,
            fold(keys, 1),
        )

    def attend_memory(
        self, x: Array, pair: KeyValue, mask: Array | None, keys: Array | None, intermediates: Intermediates | None
    ) -> Array:
        """Attention to the memory, and dropout: x [R, N, D], pair [B, H, S, Dh] -> [R, N, D]."""
        together = x.reshape(pair[0].shape[0], -1, x.shape[-1])  # [B, K N, D]
        y = self.cross_attention.attend(
            together, *pair, mask, keys=fold(keys, 2), intermediates=intermediates, name="cross_attention"
        )
        return dropout(y.reshape(x.shape), self.dropout, fold(keys, 3))

    def feed_forward(self, x: Array, keys: Array | None) -> Array:
        """The mlp and dropout: [B, N, D] -> [B, N, D]."""
        return dropout(self.mlp(x, keys=fold(keys, 4)), self.dropout, fold(keys, 5))


class Decoder(nnx.Module):
    """A stack of decoder blocks and an optional final norm: `decoder(x, memory, mask, memory_mask)`."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32, lowering: Lowering = PLAIN):
        self.relative = relative(c, "shared", c.causal, dtype)
        self.dropout = c.final_dropout
        self.blocks = Stack([DecoderBlock(c, dtype, lowering) for _ in range(c.decoder_depth)], "decoder.", lowering)
        self.norm = norm(c, dtype, lowering) if c.final_norm else None

    def __call__(
        self,
        x: Array,
        memory: Array,
        mask: Array | Known | None = None,
        memory_mask: Array | None = None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""
        bias = None if self.relative is None else self.relative(x.shape[1], x.shape[1])
        masks = mask, memory_mask, bias

        def call(block: DecoderBlock, x: Array, i: int | Array, intermediates: Intermediates | None = None) -> Array:
            return block(x, memory, *masks, keys=fold(keys, i), intermediates=intermediates)

        x = self.blocks.apply_blocks(x, call, intermediates, ("self_attention", "cross_attention"))
        x = x if self.norm is None else self.norm(x)
        return dropout(x, self.dropout, fold(keys, len(self.blocks)))

    # Decoding, one token at a time.

    def init_cache(self, memory: Array, memory_padding: Array | None, length: int) -> Cache:
        """The cache to decode with `step`, of memory [B, S, D], padding [B, S]; projects the memory once."""
        if length < 1:
            raise ArgumentError(f"length is {length}: give 1 or more")
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
            raise ArgumentError(
                f"a cache of batch {batch}, {heads} heads of {width} and {len(cache.own)} blocks "
                f"does not fit tokens {list(tokens.shape)} and a decoder of {mine[0]} heads of {mine[1]} "
                f"and {mine[2]} blocks: make one with init_cache"
            )

    def step(self, x: Array, cache: Cache) -> tuple[Array, Cache]:
        """Decode one position, x [B, D] -> ([B, D], the cache with it); beyond the cache's length that is undefined."""
        self.check(x, cache)
        mask = (jnp.arange(cache.length, dtype=jnp.int32) <= cache.index)[None, None, None]  # [1, 1, 1, T]
        bias = None if self.relative is None else self.relative.at(cache.index, cache.length)
        x, pairs = x[:, None], []
        for block, past, memory in zip(self.blocks, cache.own, cache.memory, strict=True):
            x, pair = block.step(x, past, cache.index, memory, mask, cache.memory_mask, bias)
            pairs.append(pair)
        x = x if self.norm is None else self.norm(x)
        return x[:, 0], replace(cache, index=cache.index + jnp.int32(1), own=pairs)


def _insert(cache: KeyValue, new: KeyValue, index: Array) -> KeyValue:
    """The keys and values [B, H, length, Dh] with those of one more token [B, H, 1, Dh] at `index`."""
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(old, one.astype(old.dtype), index, axis=2)
        for old, one in zip(cache, new, strict=True)
    )
    return keys, values


def norm(c: TransformerConfig, dtype: Any, lowering: Lowering) -> LayerNorm:
    """One of the norms of a block, of a stack or of an embedding."""
    return NORMS[c.norm_kind](c.width, c.eps, c.norm_bias, dtype, lowering)


def mlp(c: TransformerConfig, dtype: Any, lowering: Lowering) -> Mlp:
    """The mlp of a block."""
    return Mlp(
        c.width,
        c.hidden,
        c.activation,
        gated=c.gated,
        bias=c.bias,
        dropout=c.activation_dropout,
        dtype=dtype,
        lowering=lowering,
    )


def attention(
    c: TransformerConfig, dtype: Any, lowering: Lowering, positions: RelativePosition | None = None
) -> Attention:
    """An attention of a block; `positions` are its own relative ones."""
    return Attention(
        c.width,
        c.heads,
        c.resolved_head_width,
        bias=c.bias,
        dropout=c.attention_dropout,
        scaled=c.scale_attention,
        relative=positions,
        dtype=dtype,
        lowering=lowering,
    )


def relative(
    c: TransformerConfig, of: Literal["shared", "blocks"], causal: bool, dtype: Any
) -> RelativePosition | None:
    """The relative positions of a stack (shared) or of one of its blocks, if the config has those."""
    return (
        RelativePosition(c.relative_buckets, c.heads, c.relative_distance, causal, dtype) if c.relative == of else None
    )
