"""The canonical parameter tree: what checkpoints hold and what weight conversion is a table over."""

from __future__ import annotations

import typing

from .fields import Kind, pair
from .transformer import TransformerConfig
from .vit import ViTConfig


def parameters(c: ViTConfig | TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of a network as {dotted name: shape}, in reading order."""
    return vit(c) if isinstance(c, ViTConfig) else transformer(c)


class Shapes(dict[str, tuple[int, ...]]):
    """{dotted name: shape}, filled a layer at a time."""

    def __init__(self, norm_bias: bool):
        super().__init__()
        self.norm_bias = norm_bias

    def dense(self, name: str, n_in: int, n_out: int, bias: bool = True) -> None:
        self[f"{name}.kernel"] = (n_in, n_out)
        if bias:
            self[f"{name}.bias"] = (n_out,)

    def norm(self, name: str, width: int) -> None:
        self[f"{name}.scale"] = (width,)
        if self.norm_bias:
            self[f"{name}.bias"] = (width,)

    def mlp(self, name: str, width: int, hidden: int, bias: bool, gated: bool = False) -> None:
        self.dense(f"{name}.fc1", width, hidden, bias)
        if gated:
            self.dense(f"{name}.gate", width, hidden, bias)
        self.dense(f"{name}.fc2", hidden, width, bias)


def vit(c: ViTConfig) -> dict[str, tuple[int, ...]]:
    """A ViT's parameters."""
    d, (ph, pw), inner = c.width, pair(c.patch), c.heads * c.dim_head
    shapes = Shapes(c.norm_bias)
    if c.stem_pre_norm:
        shapes.norm("patch.pre_norm", ph * pw * c.channels)
    shapes.dense("patch", ph * pw * c.channels, d, c.stem_bias)
    if c.stem_norm:
        shapes.norm("patch.norm", d)
    for name, count, _ in c.prefix:
        shapes[name] = (count, d) if name == "register_tokens" else (d,)
    if c.position_stored:
        shapes["position"] = (c.positions, d)
    if c.pre_norm:
        shapes.norm("pre_norm", d)
    for i in range(c.depth):
        block = f"blocks.{i}"
        shapes.norm(f"{block}.norm1", d)
        shapes.dense(f"{block}.attention.query", d, inner, c.query_bias)
        shapes.dense(f"{block}.attention.key", d, inner, c.key_bias)
        shapes.dense(f"{block}.attention.value", d, inner, c.value_bias)
        if c.qk_norm:
            shapes.norm(f"{block}.attention.query_norm", c.dim_head)
            shapes.norm(f"{block}.attention.key_norm", c.dim_head)
        shapes.dense(f"{block}.attention.out", inner, d, c.out_bias)
        if c.layer_scale:
            shapes[f"{block}.scale1"] = (d,)
        shapes.norm(f"{block}.norm2", d)
        shapes.mlp(f"{block}.mlp", d, c.hidden, c.mlp_bias, c.gated)
        if c.layer_scale:
            shapes[f"{block}.scale2"] = (d,)
    if c.final_norm:
        shapes.norm("norm", d)
    if c.pool == "map":
        shapes["pool.probe"] = (d,)
        for name in ("query", "key", "value", "out"):
            shapes.dense(f"pool.{name}", d, d)
        shapes.norm("pool.norm", d)
        shapes.mlp("pool.mlp", d, c.hidden, c.mlp_bias, c.gated)
    if c.head_norm:
        shapes.norm("head_norm", d)
    if c.head_hidden:
        shapes.dense("head_hidden", d, c.head_hidden)
    if c.classes:
        shapes.dense("head", c.head_hidden or d, c.classes, c.head_bias)
    if c.distill_norm:
        shapes.norm("distill_norm", d)
    if c.distill_head and c.classes:
        shapes.dense("distill_head", d, c.classes, c.head_bias)
    return shapes


def transformer(c: TransformerConfig) -> dict[str, tuple[int, ...]]:
    """An encoder-decoder Transformer's parameters. A tied table stands once, as target.embedding; an encoder alone has no target."""
    d, inner, shapes = c.width, c.heads * c.dim_head, Shapes(c.norm_bias)

    def attention(name: str) -> None:
        for part in ("query", "key", "value"):
            shapes.dense(f"{name}.{part}", d, inner, c.bias)
        shapes.dense(f"{name}.out", inner, d, c.bias)

    for side, vocabulary in (("source", 0 if c.one_embedding else c.source_vocabulary), ("target", c.target_vocabulary))[: 2 if c.decoder_depth else 1]:
        if vocabulary:
            shapes[f"{side}.embedding"] = (vocabulary, d)
        if c.position_rows:
            shapes[f"{side}.position"] = (c.position_rows, d)
        if c.embedding_norm:
            shapes.norm(f"{side}.norm", d)
    for stack, depth in (("encoder", c.encoder_depth), ("decoder", c.decoder_depth)):
        for i in range(depth):
            block, names = f"{stack}.blocks.{i}", ("attention",) if stack == "encoder" else ("self_attention", "cross_attention")
            for n, name in enumerate(names, 1):
                shapes.norm(f"{block}.norm{n}", d)
                attention(f"{block}.{name}")
            shapes.norm(f"{block}.norm{len(names) + 1}", d)
            shapes.mlp(f"{block}.mlp", d, c.hidden, c.bias)
        if c.final_norm and depth:
            shapes.norm(f"{stack}.norm", d)
    if c.outputs and not c.tied_head:
        shapes["head.kernel"] = (d, c.outputs)
    if c.outputs and c.output_bias:
        shapes["head.bias"] = (c.outputs,)
    return shapes


def kind(name: str) -> Kind:
    """What sort of parameter a dotted name is; decay masks and initial values go by it."""
    *path, leaf = name.split(".")
    if path and "norm" in path[-1]:
        return "norm"
    if leaf in ("kernel", "bias"):
        return typing.cast(Kind, leaf)
    if leaf in ("scale1", "scale2"):
        return "scale"
    return typing.cast(Kind, leaf) if leaf in ("position", "embedding") else "token"
