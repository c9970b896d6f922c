"""The encoder-decoder Transformer's config, and what follows from it: its parameters, what it captures."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UserError
from .fields import Activation, ModelConfig, identity
from .tree import ZEROS, Parameter, Start, Table


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """Every choice that makes one encoder-decoder Transformer differ from another (Vaswani et al. 2017, arXiv 1706.03762).

    With vocabularies and outputs at 0 it is torch.nn.Transformer: vectors in, vectors out. With decoder_depth
    at 0 too it is an encoder alone, torch.nn.TransformerEncoder: its output is the memory.
    """

    width: int = identity(512, "D, the width of a token")
    heads: int = identity(8, "H, the attention heads of a block")
    head_width: int = identity(0, "Dh, the width of one head; 0: width / heads")
    hidden: int = identity(2048, "F, the width inside the mlp")
    encoder_depth: int = identity(6, "blocks of the encoder")
    decoder_depth: int = identity(6, "blocks of the decoder; 0: an encoder alone, without target and head")

    activation: Activation = identity("gelu", "mlp activation; gelu is the exact erf form")
    norm_first: bool = identity(True, "norms come before attention and mlp (else after the sum)")
    final_norm: bool = identity(True, "LayerNorm after the last block of either stack")
    bias: bool = identity(True, "linear maps inside the blocks have biases")
    norm_bias: bool = identity(True, "LayerNorms have a bias")
    eps: float = identity(1e-6, "epsilon of every LayerNorm")

    dropout: float = identity(0.0, "dropout rate of what attention and mlp add to a token")
    attention_dropout: float = identity(0.0, "dropout rate of the attention weights")
    activation_dropout: float = identity(0.0, "dropout rate inside the mlp, after its activation")
    embedding_dropout: float = identity(0.0, "dropout rate of the tokens that enter a stack")

    source_vocabulary: int = identity(
        0, "ids of the source; 0: the source is vectors [B, S, D] (in a run on text: as many as its words)"
    )
    target_vocabulary: int = identity(
        0, "ids of the target; 0: the target is vectors [B, T, D] (in a run on text: as many as its words)"
    )
    position: Literal["interleaved", "concatenated", "learned", "one_frequency", "none"] = identity(
        "interleaved",
        "what is added to tokens: sinusoids, sine and cosine in turn or one half each; learned; sin(t), cos(t) in turn "
        "(one notebook's fault, kept so that its weights can be carried over); nothing",
    )
    position_offset: int = identity(0, "learned positions: rows before that of the first token")
    max_length: int = identity(512, "tokens of the longest sequence; 0: no limit (learned positions need one)")
    scale_embedding: bool = identity(False, "embeddings are multiplied by sqrt(D)")
    embedding_norm: bool = identity(False, "LayerNorm of embedding plus position")
    tie: Literal["none", "embeddings", "decoder", "all"] = identity(
        "none", "tables that are one: none, source and target, target and head, all three"
    )
    outputs: int = identity(
        0, "K, the width of the head's logits; 0: no head (in a run on text: the target vocabulary)"
    )
    output_bias: bool = identity(True, "the head has a bias")
    causal: bool = identity(True, "a target token sees itself and those before it")

    init: Literal["trunc_normal", "normal", "fan_in", "xavier", "torch"] = identity(
        "xavier",
        "start of the kernels: normal of init_std (cut at 2 std, or not), normal of std 1/sqrt(fan in), Xavier uniform, or torch's Linear default",
    )
    attention_init: Literal["same", "torch"] = identity(
        "same",
        "start of query, key, value: as init says, or as torch's MultiheadAttention (Xavier over the three as one, attention biases 0)",
    )
    init_std: float = identity(0.02, "standard deviation for trunc_normal and normal")
    embedding_std: float = identity(0.02, "standard deviation of embeddings")
    position_std: float = identity(0.02, "standard deviation of learned positions")

    # What follows from the fields above.

    @property
    def resolved_head_width(self) -> int:
        """Dh, resolved."""
        return self.head_width or self.width // self.heads

    @property
    def position_rows(self) -> int:
        """Rows of a learned position table; 0 where positions are computed."""
        return self.max_length + self.position_offset if self.position == "learned" else 0

    @property
    def one_embedding(self) -> bool:
        """Whether source and target share a table, which is then the target's."""
        return self.tie in ("embeddings", "all")

    @property
    def tied_head(self) -> bool:
        """Whether the head's kernel is the target's table."""
        return self.tie in ("decoder", "all")


def check_transformer(c: TransformerConfig) -> TransformerConfig:
    """Return the config, or raise UserError naming the first field that cannot be."""
    for name in ("width", "heads", "hidden", "encoder_depth"):
        if getattr(c, name) < 1:
            raise UserError(f"model.{name} is {getattr(c, name)}: give a positive number")
    for name in (
        "decoder_depth",
        "head_width",
        "eps",
        "source_vocabulary",
        "target_vocabulary",
        "position_offset",
        "max_length",
        "outputs",
    ):
        if not 0 <= getattr(c, name) < math.inf:
            raise UserError(f"model.{name} is {getattr(c, name)}: give a finite number, 0 or more")
    if not c.head_width and c.width % c.heads:
        raise UserError(
            f"model.width {c.width} is not divisible by model.heads {c.heads}: change one, or give model.head_width"
        )
    if c.position in ("interleaved", "concatenated", "one_frequency") and c.width % 2:
        raise UserError(
            f"model.width {c.width} is odd, which model.position {c.position} cannot fill: give an even width"
        )
    if c.position == "learned" and not c.max_length:
        raise UserError("model.position is learned but model.max_length is 0: give the length of the longest sequence")
    for name in ("target_vocabulary", "outputs"):
        if not c.decoder_depth and getattr(c, name):
            raise UserError(
                f"model.decoder_depth is 0 but model.{name} is {getattr(c, name)}: an encoder alone has no target and no head; give 0, or a decoder"
            )
    if c.position_offset and c.position != "learned":
        raise UserError(
            f"model.position_offset is {c.position_offset} but model.position is {c.position}: only learned positions have one"
        )
    if c.one_embedding and not 0 < c.source_vocabulary == c.target_vocabulary:
        raise UserError(
            f"model.tie is {c.tie} but the vocabularies are {c.source_vocabulary} and {c.target_vocabulary}: give both the same size, or tie less"
        )
    if c.tied_head and not 0 < c.outputs == c.target_vocabulary:
        raise UserError(
            f"model.tie is {c.tie} but model.outputs {c.outputs} is not model.target_vocabulary {c.target_vocabulary}: make them equal, or tie less"
        )
    for f in dataclasses.fields(c):
        if f.name.endswith("dropout") and not 0 <= getattr(c, f.name) < 1:
            raise UserError(f"model.{f.name} is {getattr(c, f.name)}: give a rate of at least 0 and below 1")
    return c


def normal_transformer(c: TransformerConfig) -> TransformerConfig:
    """The config with one spelling of everything: equal functions compare equal.

    head_width is 0 where it is width / heads, and fields without an effect have their defaults.
    """
    changed: dict[str, Any] = {"head_width": 0} if c.head_width * c.heads == c.width else {}
    used = {
        "output_bias": c.outputs,
        "scale_embedding": c.source_vocabulary or c.target_vocabulary,
        "causal": c.decoder_depth,
    }
    if c.position == "none":
        changed["max_length"] = 0  # no limit
    defaults = {f.name: f.default for f in dataclasses.fields(c)}
    changed |= {name: defaults[name] for name, on in used.items() if not on}
    return dataclasses.replace(c, **changed)


def transformer_parameters(c: TransformerConfig) -> dict[str, Parameter]:
    """Every parameter, in reading order. A tied table stands once, as target.embedding; an encoder alone has no target."""
    d, inner = c.width, c.heads * c.resolved_head_width
    table = Table(c.norm_bias, c.init, c.attention_init, c.init_std)
    embedding, position = Start("normal", c.embedding_std), Start("normal", c.position_std)
    sides = (("source", 0 if c.one_embedding else c.source_vocabulary), ("target", c.target_vocabulary))
    for side, vocabulary in sides[: 2 if c.decoder_depth else 1]:
        if vocabulary:
            table[f"{side}.embedding"] = Parameter((vocabulary, d), "embedding", embedding)
        if c.position_rows:
            table[f"{side}.position"] = Parameter((c.position_rows, d), "position", position)
        if c.embedding_norm:
            table.norm(f"{side}.norm", d)
    for stack, depth in (("encoder", c.encoder_depth), ("decoder", c.decoder_depth)):
        for i in range(depth):
            block = f"{stack}.blocks.{i}"
            names = ("attention",) if stack == "encoder" else ("self_attention", "cross_attention")
            for n, name in enumerate(names, 1):
                table.norm(f"{block}.norm{n}", d)
                table.attention(f"{block}.{name}", d, inner, c.bias, c.bias, c.bias, c.bias)
            table.norm(f"{block}.norm{len(names) + 1}", d)
            table.mlp(f"{block}.mlp", d, c.hidden, c.bias)
        if c.final_norm and depth:
            table.norm(f"{stack}.norm", d)
    if c.outputs and not c.tied_head:
        table.dense("head", d, c.outputs, c.output_bias)
    elif c.outputs and c.output_bias:  # a tied head's bias starts at 0 whatever init says
        table["head.bias"] = Parameter((c.outputs,), "bias", ZEROS)
    return table


def transformer_captured(c: TransformerConfig) -> list[str]:
    """The inner values of a forward pass that `capture` gives for any input, in their order, and the logits."""
    encoder, decoder = (
        [f"{stack}.blocks.{i}" for i in range(depth)]
        for stack, depth in (("encoder", c.encoder_depth), ("decoder", c.decoder_depth))
    )
    return [*encoder, "memory", *decoder, "logits"]
