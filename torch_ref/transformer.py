"""The encoder-decoder Transformer (Vaswani et al. 2017, arXiv 1706.03762) in PyTorch.

It is the counterpart of vit_jax/models/transformer.py: the same classes in the same order under the same names.
Dimensions: B batch, S and T source and target length, D width, H heads, L blocks, K outputs. Masks are boolean, True
where a token may be attended to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vit_jax.models.transformer_config import TransformerConfig

from .attention import attention_mask
from .decoder import attention, mlp, norm, relative
from .decoder_model import DecoderModel, Embedding, check_vectors
from .initial import initialise
from .layers import Intermediates, apply_blocks, capture, sow


class EncoderBlock(nn.Module):
    """Self-attention, then mlp, each added to its input; a norm before (pre-norm) or after the sum (post-norm)."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.norm_first, self.dropout = c.norm_first, nn.Dropout(c.dropout)
        self.norm1 = norm(c)
        self.attention = attention(c, relative(c, "blocks", False))
        self.norm2 = norm(c)
        self.mlp = mlp(c)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """[B, S, D] -> [B, S, D]; `bias` as of `Attention`."""
        if self.norm_first:
            x = x + self.attend(self.norm1(x), mask, bias, intermediates)
            return x + self.feed_forward(self.norm2(x))
        x = self.norm1(x + self.attend(x, mask, bias, intermediates))
        return self.norm2(x + self.feed_forward(x))

    def attend(
        self, x: Tensor, mask: Tensor | None, bias: Tensor | None, intermediates: Intermediates | None
    ) -> Tensor:
        """Self-attention and dropout: [B, S, D] -> [B, S, D]."""
        return self.dropout(self.attention(x, x, x, mask, bias=bias, intermediates=intermediates))

    def feed_forward(self, x: Tensor) -> Tensor:
        """The mlp and dropout: [B, S, D] -> [B, S, D]."""
        return self.dropout(self.mlp(x))


class Encoder(nn.Module):
    """A stack of encoder blocks and an optional final norm: `encoder(x, mask) -> memory`."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.relative = relative(c, "shared", False)
        self.dropout = nn.Dropout(c.final_dropout)
        self.blocks = nn.ModuleList(EncoderBlock(c) for _ in range(c.encoder_depth))
        self.norm = norm(c) if c.final_norm else None

    def forward(self, x: Tensor, mask: Tensor | None = None, *, intermediates: Intermediates | None = None) -> Tensor:
        """[B, S, D] -> [B, S, D]."""
        bias = None if self.relative is None else self.relative(x.shape[1], x.shape[1])

        def call(block: nn.Module, x: Tensor, intermediates: Intermediates) -> Tensor:
            return block(x, mask, bias, intermediates=intermediates)

        x = apply_blocks(self.blocks, x, call, intermediates, "encoder.")
        return self.dropout(x if self.norm is None else self.norm(x))


class Transformer(DecoderModel):
    """An encoder-decoder Transformer: `model(source, target) -> logits`; an encoder alone: `model(source) -> memory`.

    Without an encoder the source is the memory, vectors [B, S, D]. Initial weights are drawn with torch's global
    generator.

    Raises:
        UserError: for a config that its `check` refuses.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        config.check()
        c = self.config = config
        self.source = Embedding(c, c.source_vocabulary, not c.one_embedding) if c.encoder_depth else None
        self.register_module("target", None)  # its place: optimizers number the parameters in this order
        self.encoder = Encoder(c) if c.encoder_depth else None
        self.add_target(c)
        self.start()

    def forward(
        self,
        source: Tensor,
        target: Tensor | None = None,
        *,
        source_padding: Tensor | None = None,
        target_padding: Tensor | None = None,
        memory_padding: Any = ...,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool | None = None,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
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
            intermediates: receives the inner values that it asks for, by their names in `capture`.

        Returns:
            Logits [B, T, K]; without a head [B, T, D]; of an encoder alone the memory [B, S, D].

        Raises:
            ValueError: for wrong shapes and dtypes.
        """
        if self.target is None or self.decoder is None:
            if target is not None:
                raise ValueError("target is given, but this is an encoder alone: call it with a source")
            return self.encode(source, source_padding, source_mask, intermediates=intermediates)
        if target is None:
            raise ValueError("target is missing: call `encode` for the memory of a source")
        if len(source) != len(target):
            raise ValueError(
                f"source {list(source.shape)} and target {list(target.shape)} are batches of different size"
            )
        memory = self.encode(source, source_padding, source_mask, intermediates=intermediates)
        return self.write(
            memory,
            target,
            intermediates,
            target_padding=target_padding,
            memory_padding=source_padding if memory_padding is ... else memory_padding,
            target_mask=target_mask,
            memory_mask=memory_mask,
            causal=causal,
        )

    def capture(
        self, source: Tensor, target: Tensor | None = None, names: Iterable[str] = (), **masks: Any
    ) -> dict[str, Tensor]:
        """Inner values of an evaluation pass: names [B, S, D] -> {name: tensor}."""
        known = [*self.config.captured(), "encoder.attention", "decoder.self_attention", "decoder.cross_attention"]
        return capture(self, names, known, lambda wanted: self(source, target, intermediates=wanted, **masks))

    @property
    def source_table(self) -> nn.Embedding | None:
        """The embedding of the source, [V, D]; None if the source is vectors."""
        if self.config.one_embedding:
            return self.table
        return None if self.source is None else self.source.embedding

    def encode(
        self,
        source: Tensor,
        source_padding: Tensor | None = None,
        source_mask: Tensor | None = None,
        *,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """The memory of a source: source ids [B, S] -> [B, S, D]; without an encoder the source."""
        if self.source is None or self.encoder is None:
            if source_mask is not None:
                raise ValueError("source_mask is given, but there is no encoder in which it would count: leave it out")
            check_vectors("source", source, self.config.width)
            memory = source
        else:
            x = self.source(source, self.source_table)
            mask = attention_mask(x.shape[0], x.shape[1], x.shape[1], padding=source_padding, mask=source_mask)
            memory = self.encoder(x, mask, intermediates=intermediates)
        sow(intermediates, "memory", memory)
        return memory

    @torch.no_grad()
    def start(self) -> None:
        """Draw all initial weights, in place."""
        c = self.config
        initialise(
            self,
            init=c.init,
            attention_init=c.attention_init,
            init_std=c.init_std,
            token_std=c.embedding_std,
            position_std=c.position_std,
            relative_std=c.width**-0.5,
        )
