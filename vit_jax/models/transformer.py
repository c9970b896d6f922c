"""The encoder-decoder Transformer (Vaswani et al. 2017, arXiv 1706.03762).

The encoder turns a source into a memory; the decoder (decoder_model.py) attends to the memory and to the target so far
and predicts the next token. Dimensions: B batch, S and T source and target length, D width, H heads, L blocks, K
outputs. Masks are boolean, True where a token may be attended to.

It computes what torch.nn.Transformer computes, except add_bias_kv and add_zero_attn of its attention, additive masks,
is_causal hints and input without a batch axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from ..errors import ArgumentError
from ..machine.numerics import mesh_agnostic, with_promotion
from .attention import attention_mask
from .decoder import attention, mlp, norm, relative
from .decoder_model import DecoderModel, Embedding, check_batch, check_vectors
from .layers import Intermediates, capture, dropout, fold, sow
from .lowering import PLAIN, Lowering
from .stack import Stack
from .transformer_config import TransformerConfig

NUDGE = "source.nudge"  # an intermediate that the caller gives: it is added to the embedding of the source


class EncoderBlock(nnx.Module):
    """Self-attention, then mlp, each added to its input; a norm before (pre-norm) or after the sum (post-norm)."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32, lowering: Lowering = PLAIN):
        self.norm_first, self.dropout = c.norm_first, c.dropout
        self.norm1 = norm(c, dtype, lowering)
        self.attention = attention(c, dtype, lowering, relative(c, "blocks", False, dtype))
        self.norm2 = norm(c, dtype, lowering)
        self.mlp = mlp(c, dtype, lowering)

    def __call__(
        self,
        x: Array,
        mask: Array | None = None,
        bias: Array | None = None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """[B, S, D] -> [B, S, D]; `bias` as of `Attention`."""
        if self.norm_first:
            x = x + self.attend(self.norm1(x), mask, bias, keys, intermediates)
            return x + self.feed_forward(self.norm2(x), keys)
        x = self.norm1(x + self.attend(x, mask, bias, keys, intermediates))
        return self.norm2(x + self.feed_forward(x, keys))

    def attend(
        self,
        x: Array,
        mask: Array | None,
        bias: Array | None,
        keys: Array | None,
        intermediates: Intermediates | None,
    ) -> Array:
        """Self-attention and dropout: [B, S, D] -> [B, S, D]."""
        y = self.attention(x, x, x, mask, bias=bias, keys=fold(keys, 0), intermediates=intermediates)
        return dropout(y, self.dropout, fold(keys, 1))

    def feed_forward(self, x: Array, keys: Array | None) -> Array:
        """The mlp and dropout: [B, S, D] -> [B, S, D]."""
        return dropout(self.mlp(x, keys=fold(keys, 2)), self.dropout, fold(keys, 3))


class Encoder(nnx.Module):
    """A stack of encoder blocks and an optional final norm: `encoder(x, mask) -> memory`."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32, lowering: Lowering = PLAIN):
        self.relative = relative(c, "shared", False, dtype)
        self.dropout = c.final_dropout
        self.blocks = Stack([EncoderBlock(c, dtype, lowering) for _ in range(c.encoder_depth)], "encoder.", lowering)
        self.norm = norm(c, dtype, lowering) if c.final_norm else None

    def __call__(
        self,
        x: Array,
        mask: Array | None = None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """[B, S, D] -> [B, S, D]."""
        bias = None if self.relative is None else self.relative(x.shape[1], x.shape[1])

        def call(block: EncoderBlock, x: Array, i: int | Array, intermediates: Intermediates | None = None) -> Array:
            return block(x, mask, bias, keys=fold(keys, i), intermediates=intermediates)

        x = self.blocks.apply_blocks(x, call, intermediates)
        x = x if self.norm is None else self.norm(x)
        return dropout(x, self.dropout, fold(keys, len(self.blocks)))


class Transformer(DecoderModel):
    """An encoder-decoder Transformer: `model(source, target) -> logits`; an encoder alone: `model(source) -> memory`.

    Without an encoder the source is the memory, vectors [B, S, D]. Norms, softmax and head compute in float32 or wider.
    """

    def add_layers(self, c: TransformerConfig, param_dtype: Any, lowering: Lowering) -> None:
        stored = not c.one_embedding
        self.source = Embedding(c, c.source_vocabulary, stored, param_dtype, lowering) if c.encoder_depth else None
        self.encoder = Encoder(c, param_dtype, lowering) if c.encoder_depth else None
        self.add_target(c, param_dtype, lowering)

    @mesh_agnostic
    @with_promotion
    def __call__(
        self,
        source: Array,
        target: Array | None = None,
        *,
        source_padding: Array | None = None,
        target_padding: Array | None = None,
        memory_padding: Any = ...,
        source_mask: Array | None = None,
        target_mask: Array | None = None,
        memory_mask: Array | None = None,
        causal: bool | None = None,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """The logits of the next tokens of a target. Paddings and masks are boolean, True where to attend.

        Args:
            source: ids [B, S] or vectors [B, S, D].
            target: ids [B, T] or vectors [B, T, D]; None: of an encoder alone.
            source_padding: [B, S].
            target_padding: [B, T].
            memory_padding: [B, S]; by default that of the source.
            source_mask: 4-D, broadcastable to [B, H, S, S].
            target_mask: 4-D, broadcastable to [B, H, T, T].
            memory_mask: 4-D, broadcastable to [B, H, T, S].
            causal: whether a target token attends only to itself and those before it; None: as the config has it.
            keys: PRNG keys [B], one an example, of a training pass, whose dropout they draw; None: evaluation.
            intermediates: receives the inner values that it asks for, by their names in `capture`.

        Returns:
            Logits [B, T, K]; without a head [B, T, D]; of an encoder alone the memory [B, S, D].

        Raises:
            ValueError: for wrong shapes and dtypes.
        """
        if self.target is None or self.decoder is None:
            if target is not None:
                raise ArgumentError("target is given, but this is an encoder alone: call it with a source")
            return self.encode(source, source_padding, source_mask, keys=keys, intermediates=intermediates)
        if target is None:
            raise ArgumentError("target is missing: call `encode` for the memory of a source")
        check_batch(source, target)
        memory = self.encode(source, source_padding, source_mask, keys=keys, intermediates=intermediates)
        return self.write(
            memory,
            target,
            keys,
            intermediates,
            target_padding=target_padding,
            memory_padding=source_padding if memory_padding is ... else memory_padding,
            target_mask=target_mask,
            memory_mask=memory_mask,
            causal=causal,
        )

    def capture(
        self, source: Array, target: Array | None = None, names: Iterable[str] = (), **masks: Any
    ) -> dict[str, Array]:
        """Inner values of an evaluation pass, {name: array}; `masks` are keyword arguments of a call.

        Args:
            names: of encoder.blocks.I [B, S, D] and decoder.blocks.I [B, T, D] (what leaves block I), memory [B, S, D],
                encoder.attention [B, L, H, S, S], decoder.self_attention [B, L, H, T, T] and decoder.cross_attention
                [B, L, H, T, S] (the weights of all blocks), and logits (what a call returns).
        """
        known = [*self.config.captured(), "encoder.attention", "decoder.self_attention", "decoder.cross_attention"]
        return capture(names, known, lambda wanted: self(source, target, intermediates=wanted, **masks))

    @property
    def source_table(self) -> Array | None:
        """The embedding of the source, [V, D]; None if the source is vectors."""
        if self.config.one_embedding:
            return self.table
        return None if self.source is None or self.source.embedding is None else self.source.embedding[...]

    @mesh_agnostic
    @with_promotion
    def encode(
        self,
        source: Array,
        source_padding: Array | None = None,
        source_mask: Array | None = None,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """The memory [B, S, D] of a source of ids [B, S] or vectors [B, S, D]; without an encoder the source.

        `intermediates` gives, if it has it, "source.nudge" [B, S, D], which is added to the rows of the embedding.
        """
        if self.source is None or self.encoder is None:
            if source_mask is not None:
                raise ArgumentError(
                    "source_mask is given, but there is no encoder in which it would count: leave it out"
                )
            check_vectors("source", source, self.config.width)
            memory = source.astype(self.dtype)
        else:
            nudge = (intermediates or {}).get(NUDGE)
            x = self.source(source, self.source_table, self.dtype, keys=fold(keys, 0), nudge=nudge)
            mask = attention_mask(x.shape[0], x.shape[1], x.shape[1], padding=source_padding, mask=source_mask)
            memory = self.encoder(x, mask, keys=fold(keys, 2), intermediates=intermediates)
        sow(intermediates, "memory", memory)
        return memory
