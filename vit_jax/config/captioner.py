"""The config of the captioner, its check, its table of parameters, and the values it can capture."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import UserError
from .fields import ModelConfig, identity
from .transformer import (
    TransformerConfig,
    check_transformer,
    normal_transformer,
    transformer_captured,
    transformer_parameters,
)
from .tree import Parameter, Table
from .vit import MAPS, ViTConfig, check_vit, normal_vit, vit_captured, vit_parameters

# The fields of a ViT that concern what follows its tokens, with the values by which it has neither pool nor head.
HEADLESS: dict[str, Any] = {
    "classes": 0, "pool": "mean", "head_norm": False, "head_hidden": 0, "head_activation": "tanh", "head_bias": True,
    "pool_heads": 0, "pool_hidden": 0, "distill_head": False, "distill_norm": False, "head_dropout": 0.0,
    "head_zero": False,
}  # fmt: skip


@dataclass(frozen=True)
class CaptionerConfig(ModelConfig):
    """The config of a captioner: a ViT whose tokens are the memory of a Transformer's decoder.

    The text half is a TransformerConfig with encoder_depth 0. The pool and the head of the ViT do not count.
    """

    vit: ViTConfig = identity(ViTConfig(classes=0), "the encoder of images")
    text: TransformerConfig = identity(TransformerConfig(encoder_depth=0), "the decoder of captions")
    memory: Literal["tokens", "patches", "vectors"] = identity(
        "tokens",
        "what the decoder attends to: all tokens of the ViT after its last norm, or those of its patches alone, "
        "projected where their width is not the decoder's; or vectors [B, S, C] in place of an image, projected",
    )
    memory_width: int = identity(512, "with memory vectors: their width C")

    @property
    def encoder(self) -> ViTConfig | None:
        """The ViT, without pool and head; None if the memory is vectors."""
        return None if self.memory == "vectors" else replace(self.vit, **HEADLESS)

    @property
    def projected(self) -> int:
        """The width from which the memory is projected to that of the decoder; 0: it is not."""
        width = self.memory_width if self.encoder is None else self.vit.width
        return width if self.encoder is None or width != self.text.width else 0


def check_captioner(c: CaptionerConfig) -> CaptionerConfig:
    """Return the config unchanged. Raises UserError naming the first invalid field."""
    if c.encoder is None:
        if c.memory_width < 1:
            raise UserError(f"model.memory_width is {c.memory_width}: give a positive number")
    else:
        for name in ("classes", "head_norm", "head_hidden", "distill_head"):
            if value := getattr(c.vit, name):
                raise UserError(
                    f"model.vit.{name} is {value}, but a captioner reads the tokens of its ViT, which has no head: "
                    f"set it to {HEADLESS[name]}"
                )
        if c.vit.pool in MAPS:
            raise UserError(
                f"model.vit.pool is {c.vit.pool}, but a captioner reads the tokens of its ViT: set it to mean or cls"
            )
        _inside("vit", check_vit, c.encoder)
    if c.text.encoder_depth or not c.text.decoder_depth:
        raise UserError(
            f"model.text.encoder_depth is {c.text.encoder_depth} and model.text.decoder_depth {c.text.decoder_depth}, "
            "but the text half of a captioner is a decoder: set the first to 0 and give the second blocks"
        )
    _inside("text", check_transformer, c.text)
    return c


def _inside(part: str, check: Callable[[Any], Any], config: ModelConfig) -> None:
    """Check a config inside the captioner's: messages name its fields as they are called here."""
    try:
        check(config)
    except UserError as error:
        raise UserError(re.sub(r"\bmodel\.(?=[a-z])", f"model.{part}.", str(error))) from error


def normal_captioner(c: CaptionerConfig) -> CaptionerConfig:
    """The config in normal form: networks that compute the same function have equal ones.

    Its parts are in normal form, and fields without an effect have their defaults.
    """
    text, usual = normal_transformer(c.text), CaptionerConfig()
    if c.encoder is None:
        return replace(c, text=text, vit=usual.vit)
    return replace(c, text=text, vit=normal_vit(c.encoder), memory_width=usual.memory_width)


def captioner_parameters(c: CaptionerConfig) -> dict[str, Parameter]:
    """{dotted name: Parameter}, in reading order. The layers have no order from input to output, so all are 0."""
    table: dict[str, Parameter] = {}
    if c.encoder is not None:
        table |= {f"vit.{name}": p._replace(layer=0) for name, p in vit_parameters(c.encoder).items()}
    if c.projected:
        projection = Table(c.text.norm_bias, c.text.init, c.text.attention_init, c.text.init_std)
        projection.dense("memory", c.projected, c.text.width)
        table |= projection
    return table | transformer_parameters(c.text)


def captioner_captured(c: CaptionerConfig) -> list[str]:
    """The names that `capture` accepts for any input, in the order of the forward pass; the last is the logits."""
    inner = [] if c.encoder is None else vit_captured(c.encoder)
    return [*(f"vit.{name}" for name in inner if name not in ("pooled", "logits")), *transformer_captured(c.text)]
