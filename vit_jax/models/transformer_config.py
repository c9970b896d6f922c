"""The config of the encoder-decoder Transformer: its options and its table of parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from ..config.fields import DEEPEST, Activation, dropout_rate, identity
from ..config.network import ZEROS, Input, NetworkConfig, Parameter, Start, Table
from ..errors import Field, UserError

# A parameter of every Transformer, also of one without an encoder or without a decoder.
_QUERY = r"(encoder\.blocks\.0\.attention|decoder\.blocks\.0\.cross_attention)\.query"


@dataclass(frozen=True)
class TransformerConfig(NetworkConfig):
    """The config of an encoder-decoder Transformer (Vaswani et al. 2017, arXiv 1706.03762).

    With vocabularies and outputs at 0 it is torch.nn.Transformer, which takes and returns vectors. With decoder_depth
    at 0 too it is torch.nn.TransformerEncoder, whose output is the memory. With encoder_depth at 0 it is a decoder over
    a memory that is given: the source is that memory, vectors [B, S, D].
    """

    computes: ClassVar[str] = "vit_jax.models.transformer:Transformer"
    twin: ClassVar[str] = "torch_ref.transformer:Transformer"

    width: int = identity(512, "D, width of a token", at_least=1)
    heads: int = identity(8, "H, attention heads per block", not_in_weights=True, at_least=1)
    head_width: int = identity(0, "Dh, width of a head; 0: width / heads", at_least=0)
    hidden: int = identity(2048, "F, width of the hidden layer of the mlp", at_least=1)
    encoder_depth: int = identity(
        6,
        "blocks of the encoder; 0: none, the source is the memory, as vectors [B, S, D]",
        counts_blocks=True,
        at_least=0,
        at_most=DEEPEST,
    )
    decoder_depth: int = identity(
        6,
        "blocks of the decoder; 0: an encoder only, without target and head",
        counts_blocks=True,
        at_least=0,
        at_most=DEEPEST,
    )

    activation: Activation = identity("gelu", "activation of the mlp; gelu is the exact erf form", not_in_weights=True)
    gated: bool = identity(False, "the activation of the mlp gates a second projection (as in SwiGLU)")
    norm_kind: Literal["layer", "rms"] = identity(
        "layer", "norms: LayerNorm, or RMSNorm, which has no mean and no bias"
    )
    norm_first: bool = identity(True, "norms before attention and mlp (pre-norm), else after the sum (post-norm)")
    final_norm: bool = identity(True, "a norm after the last block of encoder and decoder")
    bias: bool = identity(True, "linear maps of the blocks have biases")
    norm_bias: bool = identity(True, "LayerNorms have a bias")
    eps: float = identity(1e-6, "epsilon of every norm", not_in_weights=True, at_least=0)

    scale_attention: bool = identity(
        True, "attention scores are divided by sqrt(Dh) (T5: not, its initial queries are smaller)", not_in_weights=True
    )
    relative: Literal["none", "shared", "blocks"] = identity(
        "none",
        "learned bias of the scores of self-attention by the distance of key and query (T5): none; one table in the "
        "encoder and one in the decoder, shared by all blocks; or one in each block",
    )
    relative_buckets: int = identity(
        32, "relative positions: rows of a table; the far half of them covers distances on a log scale", at_least=4
    )
    relative_distance: int = identity(
        128, "relative positions: the distance from which all share the last row", not_in_weights=True, at_least=1
    )

    dropout: float = dropout_rate("dropout rate of the outputs of attention and mlp")
    attention_dropout: float = dropout_rate("dropout rate of the attention weights")
    activation_dropout: float = dropout_rate("dropout rate inside the mlp, after its activation")
    embedding_dropout: float = dropout_rate("dropout rate of the tokens that enter encoder and decoder")
    final_dropout: float = dropout_rate("dropout rate of what leaves encoder and decoder")

    source_vocabulary: int = identity(
        0,
        "number of source ids; 0: the source is vectors [B, S, D] (in a run on text: set by the data)",
        from_data=True,
        at_least=0,
    )
    target_vocabulary: int = identity(
        0,
        "number of target ids; 0: the target is vectors [B, T, D] (in a run on text: set by the data)",
        from_data=True,
        at_least=0,
    )
    position: Literal["interleaved", "concatenated", "fairseq", "learned", "one_frequency", "none"] = identity(
        "interleaved",
        "positions that are added to tokens: sinusoids, as sines and cosines in turn (interleaved) or in two halves "
        "(concatenated; fairseq: with the frequencies of that library); learned; sin(t) and cos(t) in turn "
        "(one_frequency, for the weights of one notebook); none",
    )
    position_offset: int = identity(0, "learned and fairseq positions: the position of the first token", at_least=0)
    max_length: int = identity(
        512, "maximum length of a sequence, in tokens; 0: no limit (learned positions need one)", at_least=0
    )
    scale_embedding: bool = identity(False, "embeddings are multiplied by sqrt(D)", not_in_weights=True)
    embedding_norm: bool = identity(False, "a norm after the positions are added")
    tie: Literal["none", "embeddings", "decoder", "all"] = identity(
        "none", "tables that are shared: none, source and target (embeddings), target and head (decoder), all three"
    )
    outputs: int = identity(
        0,
        "K, number of logits; 0: no head (in a run on text: set by the data)",
        from_data=True,
        of_head=True,
        at_least=0,
    )
    output_bias: bool = identity(True, "the head has a bias", of_head=True)
    scale_output: bool = identity(False, "what enters the head is divided by sqrt(D)", not_in_weights=True)
    causal: bool = identity(True, "a target token attends only to itself and those before it", not_in_weights=True)

    init: Literal["trunc_normal", "normal", "fan_in", "xavier", "torch", "t5"] = identity(
        "xavier",
        "initial kernels: normal of init_std, truncated at 2 std or not; truncated normal of std 1/sqrt(fan in); "
        "Xavier uniform; the default of Linear in PyTorch; or normal of std 1/sqrt(fan in), queries by 1/sqrt(Dh) "
        "smaller and a head of std 1 (T5)",
        training_only=True,
    )
    attention_init: Literal["same", "torch"] = identity(
        "same",
        "initial query, key and value kernels: as model.init, "
        "or as MultiheadAttention of PyTorch (Xavier uniform over the three as one; biases of attention 0)",
        training_only=True,
    )
    init_std: float = identity(0.02, "standard deviation of trunc_normal and normal", training_only=True)
    embedding_std: float = identity(0.02, "standard deviation of initial embeddings", training_only=True)
    position_std: float = identity(0.02, "standard deviation of initial learned positions", training_only=True)

    names: ClassVar[tuple[str, ...]] = (rf"{_QUERY}\.kernel", r"!(vit\.patch|memory)\.kernel")
    examples: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "width": (12, 8), "heads": (2, 1), "head_width": (0, 5), "hidden": (20,), "encoder_depth": (2, 1, 0),
        "decoder_depth": (2, 1, 0), "eps": (1e-5, 1e-6), "source_vocabulary": (0, 11, 9),
        "target_vocabulary": (0, 11, 9), "outputs": (0, 11, 9, 12), "position_offset": (0, 2),
        "max_length": (6, 512, 0), "relative_buckets": (4, 8), "relative_distance": (5, 12),
    }  # fmt: skip
    combinations: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"source_vocabulary": 11, "target_vocabulary": 11, "outputs": 11, "max_length": 6},
        {"source_vocabulary": 9, "target_vocabulary": 11, "outputs": 11, "max_length": 6},
    )

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
    def any_length(self) -> bool:
        """Whether texts may be longer than all of training: nothing bounds positions that are relative alone."""
        return self.relative != "none" and self.position == "none" and not self.max_length

    @property
    def tied_head(self) -> bool:
        """Whether the kernel of the head is the embedding of the target."""
        return self.tie in ("decoder", "all")

    def inputs(self) -> tuple[Input, ...]:
        if self.encoder_depth:
            source = self._sequence("source", self.source_vocabulary, "source_padding")
        else:  # the memory, to whose vectors no positions are added
            source = Input("source", "vectors", size=self.width, padding="source_padding")
        return (source, self._sequence("target", self.target_vocabulary)) if self.decoder_depth else (source,)

    def _sequence(self, name: str, vocabulary: int, padding: str = "") -> Input:
        kind: Literal["ids", "vectors"] = "ids" if vocabulary else "vectors"
        return Input(name, kind, size=vocabulary or self.width, longest=self.max_length, padding=padding)

    def check(self) -> None:
        super().check()
        if not self.encoder_depth and not self.decoder_depth:
            raise UserError(Field("encoder_depth"), "and decoder_depth are both 0", "give blocks to one of them")
        if not self.encoder_depth and self.source_vocabulary:
            raise UserError(
                Field("source_vocabulary"),
                f"is {self.source_vocabulary} but encoder_depth is 0, and without an encoder the source is the memory, "
                "which is vectors",
                "give 0, or an encoder",
            )
        if not self.head_width and self.width % self.heads:
            raise UserError(
                Field("width"), f"{self.width} is not divisible by heads {self.heads}", "change one, or give head_width"
            )
        _check_positions(self)
        for name in ("target_vocabulary", "outputs"):
            if not self.decoder_depth and getattr(self, name):
                raise UserError(
                    Field(name),
                    f"is {getattr(self, name)} but decoder_depth is 0, and an encoder alone has no target and no head",
                    "give 0, or a decoder",
                )
        _check_relative(self)
        _check_ties(self)

    def normal(self) -> Self:
        """head_width is 0 if it is width / heads, and fields without an effect have their defaults."""
        changed: dict[str, Any] = {"head_width": 0} if self.head_width * self.heads == self.width else {}
        used = {
            "output_bias": self.outputs,
            "scale_embedding": self.source_vocabulary or self.target_vocabulary,
            "causal": self.decoder_depth,
            "norm_bias": self.norm_kind == "layer",
            "relative_buckets": self.relative != "none",
            "relative_distance": self.relative != "none",
            "scale_output": self.outputs,
        }
        if self.position == "none":
            changed["max_length"] = 0  # no limit
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        changed |= {name: defaults[name] for name, on in used.items() if not on}
        return dataclasses.replace(self, **changed)

    def parameters(self) -> dict[str, Parameter]:
        """Every parameter in reading order. A shared embedding is listed once, as target.embedding."""
        d = self.width
        table = Table(self.norm_bias and self.norm_kind == "layer", self.init, self.attention_init, self.init_std)
        embedding, position = Start("normal", self.embedding_std), Start("normal", self.position_std)
        sides = (
            ("source", self.encoder_depth, 0 if self.one_embedding else self.source_vocabulary),
            ("target", self.decoder_depth, self.target_vocabulary),
        )
        for side, depth, vocabulary in sides:
            if not depth:
                continue
            if vocabulary:
                table[f"{side}.embedding"] = Parameter((vocabulary, d), "embedding", embedding)
            if self.position_rows:
                table[f"{side}.position"] = Parameter((self.position_rows, d), "position", position)
            if self.embedding_norm:
                table.norm(f"{side}.norm", d)
        table.muon = True
        relative = Parameter((self.relative_buckets, self.heads), "relative", Start("normal", d**-0.5))
        for stack, depth in (("encoder", self.encoder_depth), ("decoder", self.decoder_depth)):
            if self.relative == "shared" and depth:
                table[f"{stack}.relative.table"] = relative
            for i in range(depth):
                self._add_block(table, stack, f"{stack}.blocks.{i}", relative)
            if self.final_norm and depth:
                table.norm(f"{stack}.norm", d)
        table.muon, table.head = False, True
        if self.outputs and not self.tied_head:
            kernel = Start("normal", 1.0) if self.init == "t5" else None
            table.dense("head", d, self.outputs, self.output_bias, kernel=kernel)
        elif self.outputs and self.output_bias:  # the bias of a tied head starts at 0 with every init
            table["head.bias"] = Parameter((self.outputs,), "bias", ZEROS)
        return table

    def _add_block(self, table: Table, stack: str, block: str, relative: Parameter) -> None:
        d, inner = self.width, self.heads * self.resolved_head_width
        names = ("attention",) if stack == "encoder" else ("self_attention", "cross_attention")
        for n, name in enumerate(names, 1):
            table.norm(f"{block}.norm{n}", d)
            table.attention(f"{block}.{name}", d, inner, self.bias, head_width=self.resolved_head_width)
            if self.relative == "blocks" and name != "cross_attention":
                table[f"{block}.{name}.relative.table"] = relative
        table.norm(f"{block}.norm{len(names) + 1}", d)
        table.mlp(f"{block}.mlp", d, self.hidden, self.bias, self.gated)

    def describe(self) -> tuple[str, str]:
        what = f"Transformer {self.width} x {self.encoder_depth}+{self.decoder_depth}, {self.heads} heads"
        return what, f"{self.outputs:,} output ids" if self.outputs else "no head"

    def captured(self) -> list[str]:
        encoder, decoder = (
            [f"{stack}.blocks.{i}" for i in range(depth)]
            for stack, depth in (("encoder", self.encoder_depth), ("decoder", self.decoder_depth))
        )
        return [*encoder, "memory", *decoder, "logits"]


def _check_positions(c: TransformerConfig) -> None:
    """What each kind of positions needs of the width, and whether it has a length and an offset."""
    if c.position not in ("learned", "none") and c.width % 2:
        raise UserError(
            Field("width"), f"{c.width} is odd, which position {c.position} cannot fill", "give an even width"
        )
    if c.position == "fairseq" and c.width < 4:
        raise UserError(Field("width"), f"is {c.width}, but position fairseq has two frequencies or more", "give 4")
    if c.position == "learned" and not c.max_length:
        raise UserError(Field("max_length"), "is 0 but position is learned", "give the length of the longest sequence")
    if c.position_offset and c.position not in ("learned", "fairseq"):
        raise UserError(
            Field("position_offset"),
            f"is {c.position_offset} but position is {c.position}, and only learned and fairseq positions have one",
            "give 0, or such positions",
        )


def _check_relative(c: TransformerConfig) -> None:
    """Buckets: half of an encoder's are for later keys, and half of what each direction has for one distance each."""
    if c.relative_buckets % 2:
        raise UserError(Field("relative_buckets"), f"is {c.relative_buckets}, which is odd", "give an even number")
    exact = c.relative_buckets // (2 if c.decoder_depth and c.causal else 4)
    if c.relative_distance <= exact:
        raise UserError(
            Field("relative_distance"),
            f"is {c.relative_distance}, but {exact} of the {c.relative_buckets} buckets have one distance each",
            f"give more than {exact}",
        )


def _check_ties(c: TransformerConfig) -> None:
    """Vocabularies of which an embedding or the head is shared."""
    for name, tied in (("source_vocabulary", c.one_embedding), ("outputs", c.tied_head)):
        if tied and not 0 < getattr(c, name) == c.target_vocabulary:
            what = f"is {c.tie} but {name} {getattr(c, name)} is not target_vocabulary {c.target_vocabulary}"
            raise UserError(Field("tie"), what, "make them equal, or tie less")
