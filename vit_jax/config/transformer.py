"""The config of the encoder-decoder Transformer, its check, its table of parameters, and the values it can capture."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UserError
from .fields import DEEPEST, Activation, ModelConfig, identity
from .tree import ZEROS, Parameter, Start, Table


@dataclass(frozen=True)
class TransformerConfig(ModelConfig):
    """The config of an encoder-decoder Transformer (Vaswani et al. 2017, arXiv 1706.03762).

    With vocabularies and outputs at 0 it is torch.nn.Transformer, which takes and returns vectors. With decoder_depth
    at 0 too it is torch.nn.TransformerEncoder, whose output is the memory. With encoder_depth at 0 it is a decoder over
    a memory that is given: the source is that memory, vectors [B, S, D].
    """

    width: int = identity(512, "D, width of a token")
    heads: int = identity(8, "H, attention heads per block")
    head_width: int = identity(0, "Dh, width of a head; 0: width / heads")
    hidden: int = identity(2048, "F, width of the hidden layer of the mlp")
    encoder_depth: int = identity(6, "blocks of the encoder; 0: none, the source is the memory, as vectors [B, S, D]")
    decoder_depth: int = identity(6, "blocks of the decoder; 0: an encoder only, without target and head")

    activation: Activation = identity("gelu", "activation of the mlp; gelu is the exact erf form")
    norm_first: bool = identity(True, "LayerNorm before attention and mlp (pre-norm), else after the sum (post-norm)")
    final_norm: bool = identity(True, "LayerNorm after the last block of encoder and decoder")
    bias: bool = identity(True, "linear maps of the blocks have biases")
    norm_bias: bool = identity(True, "LayerNorms have a bias")
    eps: float = identity(1e-6, "epsilon of every LayerNorm")

    dropout: float = identity(0.0, "dropout rate of the outputs of attention and mlp")
    attention_dropout: float = identity(0.0, "dropout rate of the attention weights")
    activation_dropout: float = identity(0.0, "dropout rate inside the mlp, after its activation")
    embedding_dropout: float = identity(0.0, "dropout rate of the tokens that enter encoder and decoder")

    source_vocabulary: int = identity(
        0, "number of source ids; 0: the source is vectors [B, S, D] (in a run on text: set by the data)"
    )
    target_vocabulary: int = identity(
        0, "number of target ids; 0: the target is vectors [B, T, D] (in a run on text: set by the data)"
    )
    position: Literal["interleaved", "concatenated", "fairseq", "learned", "one_frequency", "none"] = identity(
        "interleaved",
        "positions that are added to tokens: sinusoids, as sines and cosines in turn (interleaved) or in two halves "
        "(concatenated; fairseq: with the frequencies of that library); learned; sin(t) and cos(t) in turn "
        "(one_frequency, for the weights of one notebook); none",
    )
    position_offset: int = identity(0, "learned and fairseq positions: the position of the first token")
    max_length: int = identity(512, "maximum length of a sequence, in tokens; 0: no limit (learned positions need one)")
    scale_embedding: bool = identity(False, "embeddings are multiplied by sqrt(D)")
    embedding_norm: bool = identity(False, "LayerNorm after the positions are added")
    tie: Literal["none", "embeddings", "decoder", "all"] = identity(
        "none", "tables that are shared: none, source and target (embeddings), target and head (decoder), all three"
    )
    outputs: int = identity(0, "K, number of logits; 0: no head (in a run on text: set by the data)")
    output_bias: bool = identity(True, "the head has a bias")
    causal: bool = identity(True, "a target token attends only to itself and those before it")

    init: Literal["trunc_normal", "normal", "fan_in", "xavier", "torch"] = identity(
        "xavier",
        "initial kernels: normal of init_std, truncated at 2 std or not; truncated normal of std 1/sqrt(fan in); "
        "Xavier uniform; or the default of Linear in PyTorch",
    )
    attention_init: Literal["same", "torch"] = identity(
        "same",
        "initial query, key and value kernels: as init states, "
        "or as MultiheadAttention of PyTorch (Xavier uniform over the three as one; biases of attention 0)",
    )
    init_std: float = identity(0.02, "standard deviation of trunc_normal and normal")
    embedding_std: float = identity(0.02, "standard deviation of initial embeddings")
    position_std: float = identity(0.02, "standard deviation of initial learned positions")

    # Derived from the fields above.

    @property
    def resolved_head_width(self) -> int:
        """Dh, the width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def position_rows(self) -> int:
        """The number of rows of the table of learned positions; 0 if positions are not learned."""
        return self.max_length + self.position_offset if self.position == "learned" else 0

    @property
    def one_embedding(self) -> bool:
        """Whether source and target share one embedding, which is then stored as the target's."""
        return self.tie in ("embeddings", "all")

    @property
    def tied_head(self) -> bool:
        """Whether the kernel of the head is the embedding of the target."""
        return self.tie in ("decoder", "all")


def check_transformer(c: TransformerConfig) -> TransformerConfig:
    """Return the config unchanged. Raises UserError naming the first invalid field."""
    _check_sizes(c)
    if not c.encoder_depth and not c.decoder_depth:
        raise UserError("model.encoder_depth and model.decoder_depth are both 0: give blocks to one of them")
    if not c.encoder_depth and c.source_vocabulary:
        raise UserError(
            f"model.encoder_depth is 0 but model.source_vocabulary is {c.source_vocabulary}: "
            "without an encoder the source is the memory, which is vectors; give 0, or an encoder"
        )
    if not c.head_width and c.width % c.heads:
        raise UserError(
            f"model.width {c.width} is not divisible by model.heads {c.heads}: change one, or give model.head_width"
        )
    if c.position not in ("learned", "none") and c.width % 2:
        raise UserError(
            f"model.width {c.width} is odd, which model.position {c.position} cannot fill: give an even width"
        )
    if c.position == "fairseq" and c.width < 4:
        raise UserError(f"model.width is {c.width}, but model.position fairseq has two frequencies or more: give 4")
    if c.position == "learned" and not c.max_length:
        raise UserError("model.position is learned but model.max_length is 0: give the length of the longest sequence")
    for name in ("target_vocabulary", "outputs"):
        if not c.decoder_depth and getattr(c, name):
            raise UserError(
                f"model.decoder_depth is 0 but model.{name} is {getattr(c, name)}: "
                "an encoder alone has no target and no head; give 0, or a decoder"
            )
    if c.position_offset and c.position not in ("learned", "fairseq"):
        raise UserError(
            f"model.position_offset is {c.position_offset} but model.position is {c.position}: "
            "only learned and fairseq positions have one; give 0, or such positions"
        )
    _check_ties(c)
    for f in dataclasses.fields(c):
        if f.name.endswith("dropout") and not 0 <= getattr(c, f.name) < 1:
            raise UserError(f"model.{f.name} is {getattr(c, f.name)}: give a rate of at least 0 and below 1")
    return c


def _check_sizes(c: TransformerConfig) -> None:
    """Numbers that have to be positive, or may be 0."""
    for name in ("width", "heads", "hidden"):
        if getattr(c, name) < 1:
            raise UserError(f"model.{name} is {getattr(c, name)}: give a positive number")
    for name in (
        "encoder_depth",
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
    for name in ("encoder_depth", "decoder_depth"):
        if getattr(c, name) > DEEPEST:
            raise UserError(f"model.{name} is {getattr(c, name)}: give at most {DEEPEST} blocks")


def _check_ties(c: TransformerConfig) -> None:
    """Vocabularies of which an embedding or the head is shared."""
    if c.one_embedding and not 0 < c.source_vocabulary == c.target_vocabulary:
        raise UserError(
            f"model.tie is {c.tie} but the vocabularies are {c.source_vocabulary} and {c.target_vocabulary}: "
            "give both the same size, or tie less"
        )
    if c.tied_head and not 0 < c.outputs == c.target_vocabulary:
        raise UserError(
            f"model.tie is {c.tie} but model.outputs {c.outputs} is not model.target_vocabulary {c.target_vocabulary}: "
            "make them equal, or tie less"
        )


def normal_transformer(c: TransformerConfig) -> TransformerConfig:
    """The config in normal form: networks that compute the same function have equal ones.

    head_width is 0 if it is width / heads, and fields without an effect have their defaults.
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
    """{dotted name: Parameter}, in reading order. A shared embedding is listed once, as target.embedding."""
    d, inner = c.width, c.heads * c.resolved_head_width
    table = Table(c.norm_bias, c.init, c.attention_init, c.init_std)
    embedding, position = Start("normal", c.embedding_std), Start("normal", c.position_std)
    sides = (
        ("source", c.encoder_depth, 0 if c.one_embedding else c.source_vocabulary),
        ("target", c.decoder_depth, c.target_vocabulary),
    )
    for side, depth, vocabulary in sides:
        if not depth:
            continue
        if vocabulary:
            table[f"{side}.embedding"] = Parameter((vocabulary, d), "embedding", embedding)
        if c.position_rows:
            table[f"{side}.position"] = Parameter((c.position_rows, d), "position", position)
        if c.embedding_norm:
            table.norm(f"{side}.norm", d)
    table.muon = True
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
    table.muon = False
    if c.outputs and not c.tied_head:
        table.dense("head", d, c.outputs, c.output_bias)
    elif c.outputs and c.output_bias:  # the bias of a tied head starts at 0 with every init
        table["head.bias"] = Parameter((c.outputs,), "bias", ZEROS)
    return table


def transformer_captured(c: TransformerConfig) -> list[str]:
    """The names that `capture` accepts for any input, in the order of the forward pass; the last is the logits."""
    encoder, decoder = (
        [f"{stack}.blocks.{i}" for i in range(depth)]
        for stack, depth in (("encoder", c.encoder_depth), ("decoder", c.decoder_depth))
    )
    return [*encoder, "memory", *decoder, "logits"]
