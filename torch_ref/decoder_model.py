"""The half of a network that writes, in PyTorch: the counterpart of vit_jax/models/decoder_model.py.

It has the same classes in the same order under the same names. Dimensions: B batch, S and T source and target length,
D width, V vocabulary, K outputs. Masks are boolean, True where a token may be attended to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit_jax.models.transformer_config import TransformerConfig

from .attention import attention_mask
from .decoder import Cache, Decoder, norm
from .layers import Intermediates, sinusoids


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
        """The input of a stack of blocks: x ids [B, N], table [V, D] -> [B, N, D]."""
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
        """The vectors of tokens: x ids [...], table [V, D] -> rows of the table [..., D], times sqrt(D) if
        `scale_embedding`.
        """
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


class Head(nn.Module):
    """A linear map to logits, with its own weight or with the embedding of the target (tied)."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.weight = None if c.tied_head else nn.Parameter(torch.zeros(c.outputs, c.width))
        self.bias = nn.Parameter(torch.zeros(c.outputs)) if c.output_bias else None

    def forward(self, x: Tensor, table: nn.Embedding | None) -> Tensor:
        """The logits: x [..., D], table [V, D] -> [..., K]."""
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
        if self.head is None:
            return y
        return self.head(y * self.side.width**-0.5 if self.side.scale_output else y, self.table)

    # Decoding, one token at a time.

    def init_cache(self, memory: Tensor, memory_padding: Tensor | None, length: int) -> Cache:
        """The cache to decode with `decode_step`; projects the keys and values of the memory once. Shapes: memory [B,
        S, D], memory_padding bool [B, S].
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
        """Decode one position: tokens ids [B] -> (logits [B, K] of the next tokens, the cache with these tokens)."""
        assert self.target is not None and self.decoder is not None  # there is a cache, so there is a decoder
        self.decoder.check(tokens, cache)
        x = self.target.with_positions(self.target.lookup(tokens, self.table)[:, None], cache.index)  # [B, 1, D]
        x, cache = self.decoder.step(x[:, 0], cache)
        return self.logits(x), cache


def check_vectors(name: str, x: Tensor, width: int) -> None:
    """Check an input of vectors: x int [B, S, width]."""
    if x.ndim != 3 or x.shape[-1] != width or not x.shape[1] or not x.dtype.is_floating_point:
        raise ValueError(f"{name} {x.dtype} {list(x.shape)} is not vectors [B, S, {width}], which this network takes")
