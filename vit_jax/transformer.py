"""The encoder-decoder Transformer (Vaswani et al. 2017, arXiv 1706.03762).

The encoder turns a source into a memory; the decoder, looking at the memory and at what it has of
the target, says what comes next. Letters: B batch, S and T source and target length, D width,
H heads, Dh head width, V vocabulary, K outputs. Masks are boolean, True where to look.

Everything that torch.nn.Transformer computes is here but for what its attention calls add_bias_kv and
add_zero_attn, masks that are added to scores, is_causal hints and input without a batch axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from .config import TransformerConfig, check_transformer
from .config.transformer import transformer_captured, transformer_parameters
from .layers import (
    Attention,
    LayerNorm,
    Mlp,
    Tape,
    attention_mask,
    dropout,
    fold,
    initial_values,
    note,
    replace_parameters,
    wide,
)
from .runs import unflatten


class Embedding(nnx.Module):
    """What enters a stack: a table's rows (or given vectors), scaled, placed, normed, dropped out."""

    def __init__(self, c: TransformerConfig, vocabulary: int, stored: bool, dtype: Any = jnp.float32):
        self.config, self.vocabulary = c, vocabulary
        self.embedding = nnx.Param(jnp.zeros((vocabulary, c.width), dtype)) if vocabulary and stored else None
        self.position = nnx.Param(jnp.zeros((c.position_rows, c.width), dtype)) if c.position_rows else None
        self.norm = LayerNorm(c.width, c.eps, c.norm_bias, dtype) if c.embedding_norm else None

    def __call__(self, x: Array, table: Array | None, dtype: Any, *, keys: Array | None = None) -> Array:
        """Ids [B, N], or vectors [B, N, D] where the vocabulary is 0, to [B, N, D]."""
        c, length = self.config, x.shape[1] if x.ndim > 1 else 0
        if self.vocabulary and (x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer)):
            raise ValueError(f"tokens {x.dtype} {list(x.shape)} are not ids [B, N], which this network takes")
        if not self.vocabulary and (x.ndim != 3 or x.shape[-1] != c.width or not jnp.issubdtype(x.dtype, jnp.floating)):
            raise ValueError(
                f"tokens {x.dtype} {list(x.shape)} are not vectors [B, N, {c.width}], which this network takes"
            )
        if not length:
            raise ValueError("a sequence has length 0: give at least one token")
        if c.max_length and length > c.max_length:
            raise ValueError(f"a sequence of {length} tokens is longer than max_length {c.max_length}: shorten it")
        x = self.lookup(x, table, dtype)
        places = self.places(length, dtype)
        x = x if places is None else x + places
        x = x if self.norm is None else self.norm(x)
        return dropout(x, c.embedding_dropout, keys)

    def lookup(self, x: Array, table: Array | None, dtype: Any) -> Array:
        """Ids [...] to rows of the table [..., D], times sqrt(D) where so set; vectors stay."""
        if table is None:
            return x.astype(dtype)
        rows = table[x].astype(dtype)
        return rows * math.sqrt(self.config.width) if self.config.scale_embedding else rows

    def places(self, length: int, dtype: Any) -> Array | None:
        """The positions [N, D] of the first tokens."""
        if self.position is not None:
            first = self.config.position_offset
            return self.position[...][first : first + length].astype(dtype)
        return (
            None
            if self.config.position == "none"
            else jnp.asarray(sinusoids(self.config.position, length, self.config.width), dtype)
        )


class EncoderBlock(nnx.Module):
    """Self-attention, then mlp, each added to its input; norms before or after."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32):
        self.norm_first, self.dropout = c.norm_first, c.dropout
        self.norm1 = LayerNorm(c.width, c.eps, c.norm_bias, dtype)
        self.attention = _attention(c, dtype)
        self.norm2 = LayerNorm(c.width, c.eps, c.norm_bias, dtype)
        self.mlp = Mlp(c.width, c.hidden, c.activation, bias=c.bias, dropout=c.activation_dropout, dtype=dtype)

    def __call__(
        self, x: Array, mask: Array | None = None, *, keys: Array | None = None, tape: Tape | None = None
    ) -> Array:
        """[B, S, D] -> [B, S, D]."""
        if self.norm_first:
            x = x + self.attend(self.norm1(x), mask, keys, tape)
            return x + self.feed(self.norm2(x), keys)
        x = self.norm1(x + self.attend(x, mask, keys, tape))
        return self.norm2(x + self.feed(x, keys))

    def attend(self, x: Array, mask: Array | None, keys: Array | None, tape: Tape | None) -> Array:
        return dropout(self.attention(x, x, x, mask, keys=fold(keys, 0), tape=tape), self.dropout, fold(keys, 1))

    def feed(self, x: Array, keys: Array | None) -> Array:
        return dropout(self.mlp(x, keys=fold(keys, 2)), self.dropout, fold(keys, 3))


class Encoder(nnx.Module):
    """A stack of blocks, with a norm at its end or without: `encoder(x, mask) -> memory`."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32):
        self.blocks = nnx.List([EncoderBlock(c, dtype) for _ in range(c.encoder_depth)])
        self.norm = LayerNorm(c.width, c.eps, c.norm_bias, dtype) if c.final_norm else None

    def __call__(
        self, x: Array, mask: Array | None = None, *, keys: Array | None = None, tape: Tape | None = None
    ) -> Array:
        """[B, S, D] -> [B, S, D]."""
        maps: list[Any] = []
        for i, block in enumerate(self.blocks):
            inner = _wants(tape, "encoder.attention")
            x = block(x, mask, keys=fold(keys, i), tape=inner)
            note(tape, f"encoder.blocks.{i}", x)
            maps += [inner["attention"]] if inner else []
        _note_maps(tape, "encoder.attention", maps)
        return x if self.norm is None else self.norm(x)


class DecoderBlock(nnx.Module):
    """Self-attention, attention to the memory, then mlp, each added to its input; norms before or after."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32):
        self.norm_first, self.dropout = c.norm_first, c.dropout
        self.norm1 = LayerNorm(c.width, c.eps, c.norm_bias, dtype)
        self.self_attention = _attention(c, dtype)
        self.norm2 = LayerNorm(c.width, c.eps, c.norm_bias, dtype)
        self.cross_attention = _attention(c, dtype)
        self.norm3 = LayerNorm(c.width, c.eps, c.norm_bias, dtype)
        self.mlp = Mlp(c.width, c.hidden, c.activation, bias=c.bias, dropout=c.activation_dropout, dtype=dtype)

    def __call__(
        self,
        x: Array,
        memory: Array,
        mask: Array | None = None,
        memory_mask: Array | None = None,
        *,
        keys: Array | None = None,
        tape: Tape | None = None,
        cross_tape: Tape | None = None,
    ) -> Array:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""
        crossed = self.cross_attention.project(memory, memory)
        return self.step(x, None, None, crossed, mask, memory_mask, keys=keys, tape=tape, cross_tape=cross_tape)[0]

    def step(
        self,
        x: Array,
        past: Pair | None,
        index: Array | None,
        memory: Pair,
        mask: Array | None,
        memory_mask: Array | None,
        *,
        keys: Array | None = None,
        tape: Tape | None = None,
        cross_tape: Tape | None = None,
    ) -> tuple[Array, Pair]:
        """The same for tokens [B, N, D] at `index` behind others, whose keys and values [B, H, T, Dh] have room for theirs.

        Returns the keys and values of all of them too. `past` None: these tokens are all.
        """
        y = self.norm1(x) if self.norm_first else x
        own = self.self_attention.project(y, y)
        own = own if past is None or index is None else _insert(past, own, index)
        if self.norm_first:
            x = x + self.attend(y, own, mask, keys, tape)
            x = x + self.look(self.norm2(x), memory, memory_mask, keys, cross_tape)
            return x + self.feed(self.norm3(x), keys), own
        x = self.norm1(x + self.attend(x, own, mask, keys, tape))
        x = self.norm2(x + self.look(x, memory, memory_mask, keys, cross_tape))
        return self.norm3(x + self.feed(x, keys)), own

    def attend(self, x: Array, pair: Pair, mask: Array | None, keys: Array | None, tape: Tape | None) -> Array:
        return dropout(
            self.self_attention.attend(x, *pair, mask, keys=fold(keys, 0), tape=tape), self.dropout, fold(keys, 1)
        )

    def look(self, x: Array, pair: Pair, mask: Array | None, keys: Array | None, tape: Tape | None) -> Array:
        return dropout(
            self.cross_attention.attend(x, *pair, mask, keys=fold(keys, 2), tape=tape), self.dropout, fold(keys, 3)
        )

    def feed(self, x: Array, keys: Array | None) -> Array:
        return dropout(self.mlp(x, keys=fold(keys, 4)), self.dropout, fold(keys, 5))


class Decoder(nnx.Module):
    """A stack of decoder blocks over any memory [B, S, D]: `decoder(x, memory, mask, memory_mask)`."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32):
        self.blocks = nnx.List([DecoderBlock(c, dtype) for _ in range(c.decoder_depth)])
        self.norm = LayerNorm(c.width, c.eps, c.norm_bias, dtype) if c.final_norm else None

    def __call__(
        self,
        x: Array,
        memory: Array,
        mask: Array | None = None,
        memory_mask: Array | None = None,
        *,
        keys: Array | None = None,
        tape: Tape | None = None,
    ) -> Array:
        """[B, T, D], memory [B, S, D] -> [B, T, D]."""
        maps: list[Any] = []
        cross_maps: list[Any] = []
        for i, block in enumerate(self.blocks):
            inner, cross = _wants(tape, "decoder.self_attention"), _wants(tape, "decoder.cross_attention")
            x = block(x, memory, mask, memory_mask, keys=fold(keys, i), tape=inner, cross_tape=cross)
            note(tape, f"decoder.blocks.{i}", x)
            maps += [inner["attention"]] if inner else []
            cross_maps += [cross["attention"]] if cross else []
        _note_maps(tape, "decoder.self_attention", maps)
        _note_maps(tape, "decoder.cross_attention", cross_maps)
        return x if self.norm is None else self.norm(x)

    # One token at a time.

    def init_cache(self, memory: Array, memory_padding: Array | None, length: int) -> Cache:
        """What `step` needs for up to `length` tokens over a memory [B, S, D], padded [B, S] or not.

        Keys and values of the memory are projected here, once. Raises ValueError on a wrong padding or a length below 1.
        """
        if length < 1:
            raise ValueError(f"length is {length}: give 1 or more")
        attention = self.blocks[0].self_attention
        empty = jnp.zeros((memory.shape[0], attention.heads, length, attention.head_width), memory.dtype)
        memory_mask = attention_mask(memory.shape[0], 1, memory.shape[1], padding=memory_padding)
        crossed = [block.cross_attention.project(memory, memory) for block in self.blocks]
        return Cache(jnp.zeros((), jnp.int32), [(empty, empty)] * len(self.blocks), crossed, memory_mask)

    def check(self, tokens: Array, cache: Cache) -> None:
        """Raise ValueError where tokens [B, ...] or this decoder are not those of the cache."""
        batch, heads, _, width = cache.own[0][0].shape
        attention = self.blocks[0].self_attention
        own, mine = (heads, width, len(cache.own)), (attention.heads, attention.head_width, len(self.blocks))
        if tokens.shape[:1] != (batch,) or own != mine:
            raise ValueError(
                f"a cache of batch {batch}, {heads} heads of {width} and {len(cache.own)} blocks does not fit tokens {list(tokens.shape)} "
                f"and a decoder of {mine[0]} heads of {mine[1]} and {mine[2]} blocks: make one with init_cache"
            )

    def step(self, x: Array, cache: Cache) -> tuple[Array, Cache]:
        """The tokens at one place, [B, D] -> [B, D], each seeing those before it, and the cache after them.

        Raises ValueError on a cache of another batch or another decoder. Past the cache's length the result is
        undefined: it is for the caller to stop.
        """
        self.check(x, cache)
        mask = (jnp.arange(cache.length, dtype=jnp.int32) <= cache.index)[None, None, None]  # [1, 1, 1, T]
        x, pairs = x[:, None], []
        for block, past, memory in zip(self.blocks, cache.own, cache.memory, strict=True):
            x, pair = block.step(x, past, cache.index, memory, mask, cache.memory_mask)
            pairs.append(pair)
        x = x if self.norm is None else self.norm(x)
        return x[:, 0], replace(cache, index=cache.index + jnp.int32(1), own=pairs)


class Head(nnx.Module):
    """Logits, by a kernel of its own or by the target's table."""

    def __init__(self, c: TransformerConfig, dtype: Any = jnp.float32):
        self.kernel = None if c.tied_head else nnx.Param(jnp.zeros((c.width, c.outputs), dtype))
        self.bias = nnx.Param(jnp.zeros((c.outputs,), dtype)) if c.output_bias else None

    def __call__(self, x: Array, table: Array | None) -> Array:
        """[..., D] -> [..., K]; `table` [V, D] is contracted as it lies, so decoding never transposes it."""
        if self.kernel is not None:
            y = x @ self.kernel[...].astype(x.dtype)
        else:
            assert table is not None
            y = jnp.einsum("...d,vd->...v", x, table.astype(x.dtype))
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class Transformer(nnx.Module):
    """An encoder-decoder Transformer: `model(source, target) -> logits`; an encoder alone: `model(source) -> memory`.

    `rngs` draws the initial weights; without it they are zeros, to be filled. Parameters have
    `param_dtype`; activations are `dtype` (norms, softmax and the head at least float32).
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        rngs: nnx.Rngs | None = None,
        dtype: Any = jnp.float32,
        param_dtype: Any = jnp.float32,
    ):
        c = self.config = check_transformer(config)
        self.dtype = jnp.dtype(dtype)
        self.source = Embedding(c, c.source_vocabulary, not c.one_embedding, param_dtype)
        self.target = Embedding(c, c.target_vocabulary, True, param_dtype) if c.decoder_depth else None
        self.encoder = Encoder(c, param_dtype)
        self.decoder = Decoder(c, param_dtype) if c.decoder_depth else None
        self.head = Head(c, param_dtype) if c.outputs else None
        if rngs is not None:
            replace_parameters(self, unflatten(initial_values(transformer_parameters(c), rngs.params(), param_dtype)))

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
    ) -> Array:
        """Ids [B, S], [B, T] or vectors [B, S, D], [B, T, D] to logits [B, T, K] (or [B, T, D] without a head; of an encoder alone, [B, S, D]).

        Paddings [B, N] and 4-D masks are boolean, True where to look. `memory_padding` is the
        source's unless given; `causal` the config's. `keys` [B], one an example, mean training.
        Raises ValueError on wrong shapes and dtypes.
        """
        given = dict(
            source_padding=source_padding,
            target_padding=target_padding,
            memory_padding=memory_padding,
            source_mask=source_mask,
            target_mask=target_mask,
            memory_mask=memory_mask,
            causal=causal,
        )
        return self.forward(source, target, keys, None, **given)

    def capture(self, source: Array, target: Array | None, names: Iterable[str], **masks: Any) -> dict[str, Array]:
        """Inner values of the evaluation pass, by name; masks as in a call.

        encoder.blocks.I [B, S, D] and decoder.blocks.I [B, T, D] leave a block; memory [B, S, D] is
        what the decoder sees; encoder.attention [B, L, H, S, S], decoder.self_attention
        [B, L, H, T, T] and decoder.cross_attention [B, L, H, T, S] are all layers' weights; logits,
        which are what a call returns. Raises ValueError on any other name.
        """
        known = [
            *transformer_captured(self.config),
            "encoder.attention",
            "decoder.self_attention",
            "decoder.cross_attention",
        ]
        tape: Tape = dict.fromkeys(names)
        if unknown := [n for n in tape if n not in known]:
            raise ValueError(f"cannot capture {unknown[0]!r}; there are {', '.join(known)}")
        note(tape, "logits", self.forward(source, target, None, tape, **masks))
        return tape

    def forward(
        self,
        source: Array,
        target: Array | None,
        keys: Array | None,
        tape: Tape | None,
        *,
        source_padding: Array | None = None,
        target_padding: Array | None = None,
        memory_padding: Any = ...,
        source_mask: Array | None = None,
        target_mask: Array | None = None,
        memory_mask: Array | None = None,
        causal: bool | None = None,
    ) -> Array:
        """The one forward pass behind both calls."""
        if self.target is None or self.decoder is None:
            if target is not None:
                raise ValueError("target is given, but this is an encoder alone: call it with a source")
            return self.encode(source, source_padding, source_mask, keys=keys, tape=tape)
        if target is None:
            raise ValueError("target is missing: call `encode` for the memory of a source")
        if source.shape[:1] != target.shape[:1]:
            raise ValueError(
                f"source {list(source.shape)} and target {list(target.shape)} are batches of different size"
            )
        memory = self.encode(source, source_padding, source_mask, keys=keys, tape=tape)
        y = self.target(target, self.table, self.dtype, keys=fold(keys, 1))
        (batch, length), memory_length = y.shape[:2], memory.shape[1]
        causal = self.config.causal if causal is None else causal
        mask = attention_mask(batch, length, length, padding=target_padding, mask=target_mask, causal=causal)
        memory_padding = source_padding if memory_padding is ... else memory_padding
        memory_mask = attention_mask(batch, length, memory_length, padding=memory_padding, mask=memory_mask)
        y = self.decoder(y, memory, mask, memory_mask, keys=fold(keys, 3), tape=tape)
        return self.logits(y)

    def encode(
        self,
        source: Array,
        source_padding: Array | None = None,
        source_mask: Array | None = None,
        *,
        keys: Array | None = None,
        tape: Tape | None = None,
    ) -> Array:
        """The memory [B, S, D] of a source, ids [B, S] or vectors [B, S, D]."""
        table = (
            self.table
            if self.config.one_embedding
            else None
            if self.source.embedding is None
            else self.source.embedding[...]
        )
        x = self.source(source, table, self.dtype, keys=fold(keys, 0))
        mask = attention_mask(x.shape[0], x.shape[1], x.shape[1], padding=source_padding, mask=source_mask)
        memory = self.encoder(x, mask, keys=fold(keys, 2), tape=tape)
        note(tape, "memory", memory)
        return memory

    @property
    def table(self) -> Array | None:
        """The target's embedding [V, D]."""
        return None if self.target is None or self.target.embedding is None else self.target.embedding[...]

    def logits(self, y: Array) -> Array:  # [..., D] -> [..., K]
        return y if self.head is None else self.head(y.astype(wide(y.dtype)), self.table)

    # Decoding, one token at a time.

    def init_cache(self, memory: Array, memory_padding: Array | None, length: int) -> Cache:
        """What `decode_step` needs to write up to `length` tokens over a memory [B, S, D].

        Keys and values of the memory are projected here, once. Raises ValueError on a wrong padding,
        a length beyond max_length, or a decoder that is not causal or not there.
        """
        c = self.config
        if self.decoder is None:
            raise ValueError("decoder_depth is 0: an encoder alone says no tokens")
        if not c.causal:
            raise ValueError(
                "causal is False: each token of such a decoder sees all others, so it cannot be run one at a time"
            )
        if length < 1 or (c.max_length and length > c.max_length):
            raise ValueError(f"length is {length}: give 1 to max_length {c.max_length}")
        return self.decoder.init_cache(memory, memory_padding, length)

    def decode_step(self, tokens: Array, cache: Cache) -> tuple[Array, Cache]:
        """The tokens at one place, ids [B] or vectors [B, D], to logits [B, K] of the next, and the cache after it.

        Raises ValueError on a cache of another batch or another network. Past the cache's length the
        result is undefined: it is for the caller to stop.
        """
        assert self.target is not None and self.decoder is not None  # else there were no cache
        self.decoder.check(tokens, cache)
        x = self.target.lookup(tokens, self.table, self.dtype)  # [B, D]
        places = self.target.places(cache.length, self.dtype)
        if places is not None:
            x = x + jax.lax.dynamic_slice_in_dim(places, cache.index, 1)
        x = x if self.target.norm is None else self.target.norm(x)
        x, cache = self.decoder.step(x, cache)
        return self.logits(x), cache


Pair = tuple[Array, Array]  # keys and values per head, [B, H, N, Dh] each


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """What a decoder remembers between tokens; for each block, in order."""

    index: Array  # int32 []: tokens so far
    own: list[Pair]  # of the target so far, [B, H, length, Dh]
    memory: list[Pair]  # of the memory, [B, H, S, Dh]
    memory_mask: Array | None  # bool [B, 1, 1, S]

    @property
    def length(self) -> int:
        """The most tokens that there is room for."""
        return self.own[0][0].shape[2]


def _insert(cache: Pair, new: Pair, index: Array) -> Pair:
    """The cache with one more token's keys and values [B, H, 1, Dh]."""
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(old, one.astype(old.dtype), index, axis=2)
        for old, one in zip(cache, new, strict=True)
    )
    return keys, values


def _attention(c: TransformerConfig, dtype: Any) -> Attention:
    biases = dict(query_bias=c.bias, key_bias=c.bias, value_bias=c.bias, out_bias=c.bias)
    return Attention(c.width, c.heads, c.resolved_head_width, **biases, dropout=c.attention_dropout, dtype=dtype)


def _wants(tape: Tape | None, name: str) -> Tape | None:
    return {"attention": None} if tape is not None and name in tape else None


def _note_maps(tape: Tape | None, name: str, maps: list[Any]) -> None:
    if maps:
        note(tape, name, jnp.stack(maps, axis=1))  # [B, L, H, Nq, Nk]


def sinusoids(kind: str, length: int, width: int) -> np.ndarray:
    """Positions [length, D], float64: sin and cos of t / 10000^(2i/D) (Vaswani et al. 2017, 3.5).

    interleaved: sine and cosine in turn; concatenated: all sines, then all cosines; one_frequency:
    sin(t) and cos(t) in turn.
    """
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)  # [length, D/2]
    if kind == "one_frequency":
        angles = np.broadcast_to(np.arange(length)[:, None], angles.shape).astype(np.float64)
    halves = np.sin(angles), np.cos(angles)
    return (
        np.concatenate(halves, axis=1) if kind == "concatenated" else np.stack(halves, axis=-1).reshape(length, width)
    )
