"""The half of a network that writes, in PyTorch: embedding, decoder over a memory, head.

It is the counterpart of vit_jax/models/decoder.py: the same classes in the same order under the same names.
Dimensions: B batch, S and T source and target length, D width, H heads, Dh head width, L blocks, V vocabulary,
K outputs. Masks are boolean, True where a token may be attended to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit_jax.models.transformer_config import TransformerConfig

from .layers import Attention, Intermediates, Mlp, attention_mask, sow


class Embedding(nn.Module):
    """The input of a stack: scaled rows of a table, or given vectors, with positions, LayerNorm and dropout."""

    def __init__(self, c: TransformerConfig, vocabulary: int, stored: bool):
        super().__init__()
        self.config, self.vocabulary = c, vocabulary
        self.embedding = nn.Embedding(vocabulary, c.width) if vocabulary and stored else None
        self.position = nn.Parameter(torch.zeros(c.position_rows, c.width)) if c.position_rows else None
        self.norm = norm(c) if c.embedding_norm else None
        self.dropout = nn.Dropout(c.embedding_dropout)

    def forward(self, x: Tensor, table: nn.Embedding | None) -> Tensor:
        """The input of a stack of blocks.

        Args:
            x: ids [B, N], or vectors [B, N, D] if the vocabulary is 0.
            table: the embedding [V, D] of ids; None for vectors.

        Returns:
            [B, N, D].

        Raises:
            ValueError: for another shape or dtype, and a length of 0 or beyond max_length.
        """
        c, length = self.config, x.shape[1] if x.ndim > 1 else 0
        if self.vocabulary and (x.ndim != 2 or x.dtype.is_floating_point or x.dtype == torch.bool):
            raise ValueError(f"tokens {x.dtype} {list(x.shape)} are not ids [B, N], which this network takes")
        if not self.vocabulary and (x.ndim != 3 or x.shape[-1] != c.width or not x.dtype.is_floating_point):
            raise ValueError(
                f"tokens {x.dtype} {list(x.shape)} are not vectors [B, N, {c.width}], which this network takes"
            )
        if not length:
            raise ValueError("a sequence has length 0: give at least one token")
        if c.max_length and length > c.max_length:
            raise ValueError(f"a sequence of {length} tokens is longer than max_length {c.max_length}: shorten it")
        return self.dropout(self.with_positions(self.lookup(x, table), 0))

    def lookup(self, x: Tensor, table: nn.Embedding | None) -> Tensor:
        """Ids [...] to rows of the table [..., D], times sqrt(D) if `scale_embedding`; vectors are not changed."""
        if table is None:
            return x
        rows = table(x)
        return rows * math.sqrt(self.config.width) if self.config.scale_embedding else rows

    def with_positions(self, x: Tensor, first: int) -> Tensor:
        """Tokens [B, N, D] at positions first, first + 1, ...: with positions, and LayerNorm if there is one."""
        c, last = self.config, first + x.shape[1]
        if self.position is not None:
            x = x + self.position[c.position_offset :][first:last]
        elif c.position != "none":
            x = x + sinusoids(c.position, c.position_offset + last, c.width)[c.position_offset + first :].to(x)
        return x if self.norm is None else self.norm(x)


class DecoderBlock(nn.Module):
    """Self-attention, attention to the memory, then mlp, each added to its input; pre-norm or post-norm."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.norm_first, self.dropout = c.norm_first, nn.Dropout(c.dropout)
        self.norm1 = norm(c)
        self.self_attention = attention(c)
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
        *,
        intermediates: Intermediates | None = None,
        cross_intermediates: Intermediates | None = None,
    ) -> Tensor:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""
        return self.step(
            x, None, self.cross_attention.project(memory, memory), mask, memory_mask, intermediates, cross_intermediates
        )[0]

    def step(
        self,
        x: Tensor,
        past: KeyValue | None,
        memory: KeyValue,
        mask: Tensor | None,
        memory_mask: Tensor | None,
        intermediates: Intermediates | None = None,
        cross_intermediates: Intermediates | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """A call for tokens that follow others.

        Args:
            x: [B, N, D].
            past: keys and values [B, H, T, Dh] of earlier tokens; None: there are none.
            memory: keys and values [B, H, S, Dh] of the memory.
            mask: of the target, as of `Attention`.
            memory_mask: of the memory.
            intermediates: receives the weights of self-attention, as of `Attention`.
            cross_intermediates: receives the weights of attention to the memory.

        Returns:
            ([B, N, D], the keys and values of all tokens so far).
        """
        y = self.norm1(x) if self.norm_first else x
        own = _concatenate(past, self.self_attention.project(y, y))
        if self.norm_first:
            x = x + self.attend(y, own, mask, intermediates)
            x = x + self.attend_memory(self.norm2(x), memory, memory_mask, cross_intermediates)
            return x + self.feed_forward(self.norm3(x)), own
        x = self.norm1(x + self.attend(x, own, mask, intermediates))
        x = self.norm2(x + self.attend_memory(x, memory, memory_mask, cross_intermediates))
        return self.norm3(x + self.feed_forward(x)), own

    def attend(
        self, x: Tensor, pair: KeyValue, mask: Tensor | None, intermediates: Intermediates | None = None
    ) -> Tensor:
        """Self-attention and dropout: [B, N, D] -> [B, N, D]; `pair` has its keys and values."""
        return self.dropout(self.self_attention.attend(x, *pair, mask, intermediates=intermediates))

    def attend_memory(
        self, x: Tensor, pair: KeyValue, mask: Tensor | None, intermediates: Intermediates | None = None
    ) -> Tensor:
        """Attention to the memory and dropout: [B, N, D] -> [B, N, D]; `pair` has its keys and values."""
        return self.dropout(self.cross_attention.attend(x, *pair, mask, intermediates=intermediates))

    def feed_forward(self, x: Tensor) -> Tensor:
        """The mlp and dropout: [B, N, D] -> [B, N, D]."""
        return self.dropout(self.mlp(x))


class Decoder(nn.Module):
    """A stack of decoder blocks and an optional final LayerNorm: `decoder(x, memory, mask, memory_mask)`."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
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
        maps: list[Any] = []
        cross_maps: list[Any] = []
        for i, block in enumerate(self.blocks):
            inner, cross = (
                is_wanted(intermediates, "decoder.self_attention"),
                is_wanted(intermediates, "decoder.cross_attention"),
            )
            x = block(x, memory, mask, memory_mask, intermediates=inner, cross_intermediates=cross)
            sow(intermediates, f"decoder.blocks.{i}", x)
            maps += [inner["attention"]] if inner else []
            cross_maps += [cross["attention"]] if cross else []
        sow_maps(intermediates, "decoder.self_attention", maps)
        sow_maps(intermediates, "decoder.cross_attention", cross_maps)
        return x if self.norm is None else self.norm(x)

    # Decoding, one token at a time.

    def init_cache(self, memory: Tensor, memory_padding: Tensor | None, length: int) -> Cache:
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
        """Decode one position.

        Args:
            x: tokens [B, D], which attend to those in the cache.
            cache: as `init_cache` or the last step gave it.

        Returns:
            ([B, D], the cache with these tokens).

        Raises:
            ValueError: for a cache of another batch size or decoder, or one that is full.
        """
        self.check(x, cache)
        x, pairs = x[:, None], []
        for block, past, memory in zip(self.blocks, cache.own, cache.memory, strict=True):
            x, pair = block.step(x, past, memory, None, cache.memory_mask)  # type: ignore[operator]
            pairs.append(pair)
        x = x if self.norm is None else self.norm(x)
        return x[:, 0], replace(cache, index=cache.index + 1, own=pairs)


class Head(nn.Module):
    """A linear map to logits, with its own weight or with the embedding of the target (tied)."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.weight = None if c.tied_head else nn.Parameter(torch.zeros(c.outputs, c.width))
        self.bias = nn.Parameter(torch.zeros(c.outputs)) if c.output_bias else None

    def forward(self, x: Tensor, table: nn.Embedding | None) -> Tensor:
        """[..., D] -> [..., K]; `table` [V, D] is used if the head is tied."""
        if self.weight is not None:
            return F.linear(x, self.weight, self.bias)
        assert table is not None
        return F.linear(x, table.weight, self.bias)


class DecoderModel(nn.Module):
    """The half of a network that writes: the embedding of the target, the decoder over a memory, and the head."""

    def add_target(self, c: TransformerConfig) -> None:
        """Make the three, those that the config has."""
        self.side = c
        self.target = Embedding(c, c.target_vocabulary, True) if c.decoder_depth else None
        self.decoder = Decoder(c) if c.decoder_depth else None
        self.head = Head(c) if c.outputs else None

    def write(
        self,
        memory: Tensor,
        target: Tensor,
        intermediates: Intermediates | None,
        *,
        target_padding: Tensor | None = None,
        memory_padding: Tensor | None = None,
        target_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool | None = None,
    ) -> Tensor:
        """The forward pass from a memory [B, S, D]; the other arguments and the result are those of a call."""
        assert self.target is not None and self.decoder is not None
        y = self.target(target, self.table)
        (batch, length), memory_length = y.shape[:2], memory.shape[1]
        causal = self.side.causal if causal is None else causal
        mask = attention_mask(
            batch, length, length, padding=target_padding, mask=target_mask, causal=causal, device=y.device
        )
        memory_mask = attention_mask(batch, length, memory_length, padding=memory_padding, mask=memory_mask)
        y = self.decoder(y, memory, mask, memory_mask, intermediates=intermediates)
        return self.logits(y)

    @property
    def table(self) -> nn.Embedding | None:
        """The embedding of the target, [V, D]; None if the target is vectors."""
        return None if self.target is None else self.target.embedding

    def logits(self, y: Tensor) -> Tensor:
        """The head: [..., D] -> [..., K]; without a head, `y` unchanged."""
        return y if self.head is None else self.head(y, self.table)

    # Decoding, one token at a time.

    def init_cache(self, memory: Tensor, memory_padding: Tensor | None, length: int) -> Cache:
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

    def decode_step(self, tokens: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Decode one position.

        Args:
            tokens: ids [B] or vectors [B, D], which attend to those in the cache.
            cache: as `init_cache` or the last step gave it.

        Returns:
            (logits [B, K] of the next tokens, the cache with these tokens).

        Raises:
            ValueError: for a cache of another batch size or network, or one that is full.
        """
        assert self.target is not None and self.decoder is not None  # there is a cache, so there is a decoder
        self.decoder.check(tokens, cache)
        x = self.target.with_positions(self.target.lookup(tokens, self.table)[:, None], cache.index)  # [B, 1, D]
        x, cache = self.decoder.step(x[:, 0], cache)
        return self.logits(x), cache


def check_vectors(name: str, x: Tensor, width: int) -> None:
    """Raise ValueError unless `x` is floating-point vectors [B, S, width], at least one a row."""
    if x.ndim != 3 or x.shape[-1] != width or not x.shape[1] or not x.dtype.is_floating_point:
        raise ValueError(f"{name} {x.dtype} {list(x.shape)} is not vectors [B, S, {width}], which this network takes")


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


def _concatenate(past: KeyValue | None, new: KeyValue) -> KeyValue:
    """The keys and values of the tokens so far, followed by those of new ones."""
    return new if past is None else (torch.cat([past[0], new[0]], dim=2), torch.cat([past[1], new[1]], dim=2))


def norm(c: TransformerConfig) -> nn.Module:
    """One of the norms of a block, of a stack or of an embedding."""
    return nn.LayerNorm(c.width, c.eps, bias=c.norm_bias)


def mlp(c: TransformerConfig) -> Mlp:
    """The mlp of a block."""
    return Mlp(c.width, c.hidden, c.activation, bias=c.bias, dropout=c.activation_dropout)


def attention(c: TransformerConfig) -> Attention:
    """An attention of a block."""
    return Attention(c.width, c.heads, c.resolved_head_width, bias=c.bias, dropout=c.attention_dropout)


def is_wanted(intermediates: Intermediates | None, name: str) -> Intermediates | None:
    return {"attention": None} if intermediates is not None and name in intermediates else None


def sow_maps(intermediates: Intermediates | None, name: str, maps: list[Any]) -> None:
    if maps:
        sow(intermediates, name, torch.stack(maps, dim=1))  # [B, L, H, Nq, Nk]


def sinusoids(kind: str, length: int, width: int) -> Tensor:
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
    t = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    if kind == "fairseq":
        frequency = torch.logspace(0, -4, width // 2, dtype=torch.float64)
    if kind == "one_frequency":
        frequency = torch.ones_like(frequency)
    if kind in ("concatenated", "fairseq"):
        return torch.cat([(t * frequency).sin(), (t * frequency).cos()], dim=1)
    positions = torch.empty(length, width, dtype=torch.float64)
    positions[:, 0::2], positions[:, 1::2] = (t * frequency).sin(), (t * frequency).cos()
    return positions
