"""The captioner in PyTorch: a Vision Transformer reads an image, and a Transformer's decoder writes its caption.

It is the counterpart of vit_jax/models/captioner.py: the same class with the same attributes.
Dimensions: B batch, h and w image height and width, C channels of an image or width of given vectors, S length of the
memory, T of the caption, D width of the decoder, K outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vit_jax.models.captioner_config import CaptionerConfig

from .decoder_model import DecoderModel, check_vectors
from .initial import initialise
from .layers import Intermediates, capture, sow
from .vit import ViT


class Captioner(DecoderModel):
    """A captioner: `model(images, target) -> logits`.

    Initial weights are drawn with torch's global generator.

    Raises:
        UserError: for a config that its `check` refuses.
    """

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        config.check()
        c = self.config = config
        self.vit = None if c.encoder is None else ViT(c.encoder)
        self.memory = nn.Linear(c.projected, c.text.width) if c.projected else None
        self.add_target(c.text)
        self.start()

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        target_padding: Tensor | None = None,
        memory_padding: Tensor | None = None,
        target_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        causal: bool | None = None,
        intermediates: Intermediates | None = None,
    ) -> Tensor:
        """The logits of the next tokens of a caption. Paddings and masks are boolean, True where to attend.

        Args:
            source: normalised images [B, C, h, w], or vectors [B, S, C].
            target: ids [B, T].
            target_padding: [B, T].
            memory_padding: [B, S].
            target_mask: 4-D, broadcastable to [B, H, T, T].
            memory_mask: 4-D, broadcastable to [B, H, T, S].
            causal: whether a token attends only to itself and those before it; None: as config.text has it.
            intermediates: receives the inner values that it asks for, by their names in `capture`.

        Returns:
            [B, T, K].

        Raises:
            ValueError: for wrong shapes and dtypes.
        """
        if len(source) != len(target):
            raise ValueError(
                f"source {list(source.shape)} and target {list(target.shape)} are batches of different size"
            )
        return self.write(
            self.encode(source, intermediates=intermediates),
            target,
            intermediates,
            target_padding=target_padding,
            memory_padding=memory_padding,
            target_mask=target_mask,
            memory_mask=memory_mask,
            causal=causal,
        )

    def capture(self, source: Tensor, target: Tensor, names: Iterable[str], **masks: Any) -> dict[str, Tensor]:
        """Inner values of an evaluation pass -> {name: tensor}."""
        of_vit = [] if self.vit is None else ["vit.attention"]
        known = [*self.config.captured(), *of_vit, "decoder.self_attention", "decoder.cross_attention"]
        return capture(self, names, known, lambda wanted: self(source, target, intermediates=wanted, **masks))

    def encode(self, source: Tensor, *, intermediates: Intermediates | None = None) -> Tensor:
        """The memory of images or vectors: source [B, C, h, w] -> [B, S, D]."""
        c = self.config
        if self.vit is None:
            check_vectors("source", source, c.memory_width)
            x = source
        else:
            inner: Intermediates | None = None
            if intermediates is not None:
                inner = {name.removeprefix("vit."): None for name in intermediates if name.startswith("vit.")}
            x = self.vit.encode(source, intermediates=inner)
            for name, value in (inner or {}).items():
                sow(intermediates, f"vit.{name}", value)
            if c.memory == "patches":
                x = x[:, c.vit.first_patch :]
        x = x if self.memory is None else self.memory(x)
        sow(intermediates, "memory", x)
        return x

    @torch.no_grad()
    def start(self) -> None:
        """Draw the initial weights of all but the ViT, which has drawn its own, in place."""
        c = self.config.text
        for part in (self.memory, self.target, self.decoder, self.head):
            if part is not None:
                initialise(
                    part,
                    init=c.init,
                    attention_init=c.attention_init,
                    init_std=c.init_std,
                    token_std=c.embedding_std,
                    position_std=c.position_std,
                    relative_std=c.width**-0.5,
                )
