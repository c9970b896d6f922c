"""The config of the captioner: a ViT and a Transformer as one network, and its table of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from ..config.fields import Mark, identity
from ..config.network import Input, NetworkConfig, Parameter, Table
from ..errors import Field, UserError, fields_inside
from .transformer_config import TransformerConfig
from .vit_config import ViTConfig
from .vit_options import MAPS

# The fields of a ViT that concern what follows its tokens, with the values by which it has neither pool nor head.
HEADLESS: dict[str, Any] = {
    "classes": 0, "pool": "mean", "head_norm": False, "head_hidden": 0, "head_activation": "tanh", "head_bias": True,
    "pool_heads": 0, "pool_hidden": 0, "distill_head": False, "distill_norm": False, "head_dropout": 0.0,
    "head_zero": False,
}  # fmt: skip
# The fields of the parts that a captioner fixes: those, and the ids of sources, which its text half does not have.
FIXED = {f"vit.{name}" for name in HEADLESS} | {"text.source_vocabulary"}


@dataclass(frozen=True)
class CaptionerConfig(NetworkConfig):
    """The config of a captioner: a ViT whose tokens are the memory of a Transformer's decoder.

    The text half is a TransformerConfig with encoder_depth 0. The pool and the head of the ViT do not count.
    """

    computes: ClassVar[str] = "vit_jax.models.captioner:Captioner"
    twin: ClassVar[str] = "torch_ref.captioner:Captioner"
    encoder_field: ClassVar[str] = "vit"

    vit: ViTConfig = identity(ViTConfig(classes=0), "the encoder of images")
    text: TransformerConfig = identity(TransformerConfig(encoder_depth=0), "the decoder of captions")
    memory: Literal["tokens", "patches", "vectors"] = identity(
        "tokens",
        "what the decoder attends to: all tokens of the ViT after its last norm, or those of its patches alone, "
        "projected where their width is not the decoder's; or vectors [B, S, C] in place of an image, projected",
    )
    memory_width: int = identity(512, "with memory vectors: their width C", at_least=1)

    names: ClassVar[tuple[str, ...]] = (
        r"decoder\.blocks\.0\.cross_attention\.query\.kernel", r"(vit\.patch|memory)\.kernel",
    )  # fmt: skip
    examples: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **{f"vit.{name}": values for name, values in ViTConfig.examples.items() if name not in HEADLESS},
        **{f"text.{name}": values for name, values in TransformerConfig.examples.items()},
        "text.encoder_depth": (0,), "text.source_vocabulary": (0,), "text.decoder_depth": (2, 1),
        "memory_width": (6, 12),
    }  # fmt: skip
    combinations: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {}, {"text.target_vocabulary": 11, "text.outputs": 11, "text.max_length": 6, "text.tie": "decoder"},
    )  # fmt: skip

    @classmethod
    def marked(cls, mark: Mark) -> tuple[str, ...]:
        """As of other networks, without what is fixed. What follows the tokens of the ViT is never evaluated."""
        found = tuple(name for name in super().marked(mark) if name not in FIXED)
        return (*found, *(f"vit.{name}" for name in HEADLESS)) if mark == "training_only" else found

    @property
    def encoder(self) -> ViTConfig | None:
        """The ViT, without pool and head; None if the memory is vectors."""
        return None if self.memory == "vectors" else replace(self.vit, **HEADLESS)

    @property
    def projected(self) -> int:
        """The width from which the memory is projected to that of the decoder; 0: it is not."""
        width = self.memory_width if self.encoder is None else self.vit.width
        return width if self.encoder is None or width != self.text.width else 0

    def inputs(self) -> tuple[Input, ...]:
        if self.encoder is None:
            source = Input("source", "vectors", size=self.memory_width, padding="memory_padding")
        else:
            source = replace(self.encoder.inputs()[0], name="source")
        return (source, *self.text.inputs()[1:])

    def check(self) -> None:
        super().check()
        if self.encoder is not None:
            values = {name: getattr(self.vit, name) for name in ("classes", "head_norm", "head_hidden", "distill_head")}
            values |= {"pool": self.vit.pool if self.vit.pool in MAPS else ""}
            for name, value in values.items():
                if value:
                    what = f"is {value}, but a captioner reads the tokens of its ViT, without pool and head"
                    raise UserError(Field(f"vit.{name}"), what, f"set it to {HEADLESS[name]}")
            with fields_inside("vit"):
                self.encoder.check()
        if self.text.encoder_depth or not self.text.decoder_depth:
            raise UserError(
                Field("text.encoder_depth"),
                f"is {self.text.encoder_depth} and text.decoder_depth {self.text.decoder_depth}, but the text half of "
                "a captioner is a decoder",
                "set the first to 0 and give the second blocks",
            )
        with fields_inside("text"):
            self.text.check()

    def normal(self) -> Self:
        """The config in normal form: its parts are in normal form, and fields without an effect have their defaults."""
        text, usual = self.text.normal(), CaptionerConfig()
        if self.encoder is None:
            return replace(self, text=text, vit=usual.vit)
        return replace(self, text=text, vit=self.encoder.normal(), memory_width=usual.memory_width)

    def parameters(self) -> dict[str, Parameter]:
        """{dotted name: Parameter}, in reading order. The layers have no order from input to output, so all are 0."""
        table: dict[str, Parameter] = {}
        if self.encoder is not None:
            table |= {f"vit.{name}": p._replace(layer=0) for name, p in self.encoder.parameters().items()}
        if self.projected:
            projection = Table(self.text.norm_bias, self.text.init, self.text.attention_init, self.text.init_std)
            projection.dense("memory", self.projected, self.text.width)
            table |= projection
        return table | self.text.parameters()

    def describe(self) -> tuple[str, str]:
        text = f"decoder {self.text.width} x {self.text.decoder_depth}, {self.text.heads} heads"
        outputs = f"{self.text.outputs:,} output ids"
        if self.encoder is None:
            return f"Captioner of vectors {self.memory_width} wide, {text}", outputs
        what, cost = self.encoder.describe()
        return f"Captioner: {what}; {text}", f"{cost} before the decoder, {outputs}"

    def pipeline(self) -> str:
        return "" if self.encoder is None else "image-to-text"

    def activations(self) -> int:
        return 0 if self.encoder is None else self.encoder.activations()

    def largest(self) -> int:
        return 0 if self.encoder is None else self.encoder.largest()

    def captured(self) -> list[str]:
        inner = [] if self.encoder is None else self.encoder.captured()
        return [*(f"vit.{name}" for name in inner if name not in ("pooled", "logits")), *self.text.captured()]
