"""The captioner: a Vision Transformer reads an image, and a Transformer's decoder writes its caption.

The tokens of the ViT after its last norm (or those of its patches) are the memory that the decoder attends to; where
their width is not the decoder's, they are projected. Hugging Face calls this form VisionEncoderDecoder. In place of an
image, vectors may be given that some other network has made of it.

Dimensions: B batch, h and w image height and width, C channels of an image or width of given vectors, S length of the
memory, T of the caption, D width of the decoder, K outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax import Array

from ..machine.numerics import mesh_agnostic, with_promotion
from .captioner_config import CaptionerConfig
from .decoder_model import DecoderModel, check_batch, check_vectors
from .layers import Intermediates, Linear, capture, fold, sow
from .lowering import Lowering
from .vit import ViT


class Captioner(DecoderModel):
    """A captioner: `model(images, target) -> logits`. Norms, softmax and head compute in float32 or wider."""

    def add_layers(self, c: CaptionerConfig, param_dtype: Any, lowering: Lowering) -> None:
        how: dict[str, Any] = {"dtype": self.dtype, "param_dtype": param_dtype}
        self.vit = None if c.encoder is None else ViT(c.encoder, **how, lowering=lowering.within("vit"))
        self.memory = Linear(c.projected, c.text.width, True, param_dtype, lowering) if c.projected else None
        self.add_target(c.text, param_dtype, lowering)

    @classmethod
    def computed(cls, c: CaptionerConfig) -> dict[str, np.ndarray]:
        return {} if c.encoder is None else {f"vit.{name}": x for name, x in ViT.computed(c.encoder).items()}

    @mesh_agnostic
    @with_promotion
    def __call__(
        self,
        source: Array,
        target: Array,
        *,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
        **masks: Any,
    ) -> Array:
        """The logits [B, T, K] of the next tokens of a caption; `masks` are those of `write`, as of a Transformer.

        Args:
            source: normalised images [B, h, w, C], or vectors [B, S, C].
            target: ids [B, T].
        """
        check_batch(source, target)
        memory = self.encode(source, keys=keys, intermediates=intermediates)
        return self.write(memory, target, keys, intermediates, **masks)

    def capture(self, source: Array, target: Array, names: Iterable[str], **masks: Any) -> dict[str, Array]:
        """Inner values of an evaluation pass, {name: array}; `masks` are keyword arguments of a call.

        Args:
            names: of vit.NAME (tokens, blocks.I, features and attention, as `ViT.capture` gives them), memory [B, S, D]
                (what the decoder attends to), decoder.blocks.I [B, T, D] (what leaves block I), decoder.self_attention
                [B, L, H, T, T] and decoder.cross_attention [B, L, H, T, S] (the weights of all blocks), and logits.
        """
        of_vit = [] if self.vit is None else ["vit.attention"]
        known = [*self.config.captured(), *of_vit, "decoder.self_attention", "decoder.cross_attention"]
        return capture(names, known, lambda wanted: self(source, target, intermediates=wanted, **masks))

    @mesh_agnostic
    @with_promotion
    def encode(self, source: Array, *, keys: Array | None = None, intermediates: Intermediates | None = None) -> Array:
        """The memory [B, S, D] of normalised images [B, h, w, C], or of vectors [B, S, C]."""
        c = self.config
        if self.vit is None:
            check_vectors("source", source, c.memory_width)
            x = source.astype(self.dtype)
        else:
            asked = (name for name in intermediates or () if name.startswith("vit."))
            inner: Intermediates = {name.removeprefix("vit."): None for name in asked}
            x = self.vit.encode(source, fold(keys, 0), intermediates=None if intermediates is None else inner)
            for name, value in inner.items():
                sow(intermediates, f"vit.{name}", value)
            if c.memory == "patches":
                x = x[:, c.vit.first_patch :]
        x = x if self.memory is None else self.memory(x)
        sow(intermediates, "memory", x)
        return x
