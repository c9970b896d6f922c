"""A stack of decoder blocks over a memory, at once or one token at a time: the counterpart of models/decoder.py.

It has the same classes in the same order under the same names. Dimensions: B batch, S and T source and target length,
D width, H heads, Dh head width, L blocks. Masks are boolean, True where a token may be attended to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vit_jax.models.transformer_config import TransformerConfig

from .attention import Attention, attention_mask
from .layers import NORMS, Intermediates, Mlp, apply_blocks
from .relative import RelativePosition

KeyValue = tuple[Tensor, Tensor]  # keys and values per head, [B, H, N, Dh] each


@dataclass(frozen=True)
class Cache:
    """What decoding needs from one token to the next; the lists have one item for each block."""

    index: int  # number of tokens so far
    length: int  # number of tokens that there may be
    own: list[KeyValue | None]  # keys and values of the target so far, [B, H, index, Dh]
    memory: list[KeyValue]  # keys and values of the memory, [B, H, S, Dh]
    memory_mask: Tensor | None  # bool [B, 1, 1, S]

    def take(self, rows: Tensor) -> Cache:
        """The cache of the rows with these numbers, int64 [R], in this order; a row may be taken several times."""
        own = [pair and (pair[0][rows], pair[1][rows]) for pair in self.own]
        memory = [(k[rows], v[rows]) for k, v in self.memory]
        mask = None if self.memory_mask is None else self.memory_mask[rows]
        return replace(self, own=own, memory=memory, memory_mask=mask)


class DecoderBlock(nn.Module):
    """Self-attention, attention to the memory, then mlp, each added to its input; pre-norm or post-norm."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.norm_first, self.dropout = c.norm_first, nn.Dropout(c.dropout)
        self.norm1 = norm(c)
        self.self_attention = attention(c, relative(c, "blocks", c.causal))
        self.norm2 = norm(c)
        self.cross_attention = attention(c)
        self.norm3 = norm(c)
        self.mlp = mlp(c)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""
        crossed = self.cross_attention.project(memory, memory)
        return self.step(x, None, crossed, mask, memory_mask, bias, intermediates)[0]

    def step(
        self,
        x: Tensor,
        past: KeyValue | None,
        memory: KeyValue,
        mask: Tensor | None,
        memory_mask: Tensor | None,
        bias: Tensor | None,
        intermediates: Intermediates | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """A call for tokens that follow others: x [B, N, D], past [B, H, T, Dh], memory [B, H, S, Dh] -> ([B, N, D],
        the keys and values of all tokens so far).
        """
        y = self.norm1(x) if self.norm_first else x
        own = _concatenate(past, self.self_attention.project(y, y))
        if self.norm_first:
            x = x + self.attend(y, own, mask, bias, intermediates)
            x = x + self.attend_memory(self.norm2(x), memory, memory_mask, intermediates)
            return x + self.feed_forward(self.norm3(x)), own
        x = self.norm1(x + self.attend(x, own, mask, bias, intermediates))
        x = self.norm2(x + self.attend_memory(x, memory, memory_mask, intermediates))
        return self.norm3(x + self.feed_forward(x)), own

    def attend(
        self,
        x: Tensor,
        pair: KeyValue,
        mask: Tensor | None,
        bias: Tensor | None,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """Self-attention and dropout: x [B, N, D], pair [B, H, Nk, Dh] -> [B, N, D]."""
        return self.dropout(
            self.self_attention.attend(x, *pair, mask, bias=bias, intermediates=intermediates, name="self_attention")
        )

    def attend_memory(
        self, x: Tensor, pair: KeyValue, mask: Tensor | None, intermediates: Intermediates | None = None
    ) -> Tensor:
        """Attention to the memory, and dropout: x [B, N, D] -> [B, N, D]."""
        return self.dropout(
            self.cross_attention.attend(x, *pair, mask, intermediates=intermediates, name="cross_attention")
        )

    def feed_forward(self, x: Tensor) -> Tensor:
        """The mlp and dropout: [B, N, D] -> [B, N, D]."""
        return self.dropout(self.mlp(x))


class Decoder(nn.Module):
    """A stack of decoder blocks and an optional final norm: `decoder(x, memory, mask, memory_mask)`."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.relative = relative(c, "shared", c.causal)
        self.dropout = nn.Dropout(c.final_dropout)
        self.blocks = nn.ModuleList(DecoderBlock(c) for _ in range(c.decoder_depth))
        self.norm = norm(c) if c.final_norm else None

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""
        bias = None if self.relative is None else self.relative(x.shape[1], x.shape[1])

        def call(block: nn.Module, x: Tensor, intermediates: Intermediates) -> Tensor:
            return block(x, memory, mask, memory_mask, bias, intermediates=intermediates)

        x = apply_blocks(self.blocks, x, call, intermediates, "decoder.", ("self_attention", "cross_attention"))
        return self.dropout(x if self.norm is None else self.norm(x))

    # Decoding, one token at a time.

    def init_cache(self, memory: Tensor, memory_padding: Tensor | None, length: int) -> Cache:
        """The cache to decode with `step`; projects the keys and values of the memory once. Shapes: memory [B, S, D],
        memory_padding bool [B, S].
        """
        if length < 1:
            raise ValueError(f"length is {length}: give 1 or more")
        memory_mask = attention_mask(len(memory), 1, memory.shape[1], padding=memory_padding)
        blocks: Any = self.blocks  # a ModuleList does not tell what it holds
        crossed = [block.cross_attention.project(memory, memory) for block in blocks]
        return Cache(0, length, [None] * len(self.blocks), crossed, memory_mask)

    def check(self, tokens: Tensor, cache: Cache) -> None:
        """Raise ValueError if a cache is full, or not for this decoder and the batch size of tokens [B, ...]."""
        batch, heads, _, width = cache.memory[0][0].shape
        attention: Any = self.blocks[0].self_attention
        own, mine = (heads, width, len(cache.own)), (attention.heads, attention.head_width, len(self.blocks))
        if tokens.shape[:1] != (batch,) or own != mine:
            raise ValueError(
                f"a cache of batch {batch}, {heads} heads of {width} and {len(cache.own)} blocks "
                f"does not fit tokens {list(tokens.shape)} and a decoder of {mine[0]} heads of {mine[1]} "
                f"and {mine[2]} blocks: make one with init_cache"
            )
        if cache.index == cache.length:
            raise ValueError(f"the cache holds {cache.length} tokens and is full: give init_cache a larger length")

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Decode one position: x [B, D] -> ([B, D], the cache with these tokens)."""
        self.check(x, cache)
        bias = None if self.relative is None else self.relative(1, cache.index + 1)
        x, pairs = x[:, None], []
        for block, past, memory in zip(self.blocks, cache.own, cache.memory, strict=True):
            x, pair = block.step(x, past, memory, None, cache.memory_mask, bias)  # type: ignore[operator]
            pairs.append(pair)
        x = x if self.norm is None else self.norm(x)
        return x[:, 0], replace(cache, index=cache.index + 1, own=pairs)


def _concatenate(past: KeyValue | None, new: KeyValue) -> KeyValue:
    """The keys and values of the tokens so far, followed by those of new ones."""
    return new if past is None else (torch.cat([past[0], new[0]], dim=2), torch.cat([past[1], new[1]], dim=2))


def norm(c: TransformerConfig) -> nn.Module:
    """One of the norms of a block, of a stack or of an embedding."""
    return NORMS[c.norm_kind](c.width, c.eps, c.norm_bias)


def mlp(c: TransformerConfig) -> Mlp:
    """The mlp of a block."""
    return Mlp(c.width, c.hidden, c.activation, gated=c.gated, bias=c.bias, dropout=c.activation_dropout)


def attention(c: TransformerConfig, positions: RelativePosition | None = None) -> Attention:
    """An attention of a block; `positions` are its own relative ones."""
    return Attention(
        c.width,
        c.heads,
        c.resolved_head_width,
        bias=c.bias,
        dropout=c.attention_dropout,
        scaled=c.scale_attention,
        relative=positions,
    )


def relative(c: TransformerConfig, of: Literal["shared", "blocks"], causal: bool) -> RelativePosition | None:
    """The relative positions of a stack (shared) or of one of its blocks, if the config has those."""
    return RelativePosition(c.relative_buckets, c.heads, c.relative_distance, causal) if c.relative == of else None
