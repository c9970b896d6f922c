"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929) and its published variants.

An image is cut into patches, after the convolutions of a stem if there is one, and each patch becomes a token.
Blocks of attention and mlp transform the tokens, a pool reduces them to one feature, and the head gives logits. The
fields of ViTConfig select the variant.

Dimensions: B batch, h and w image height and width, C channels, N tokens, D width, H heads, L blocks, K classes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ..errors import ArgumentError
from ..machine.numerics import mesh_agnostic, with_promotion
from . import state
from .attention import Attention, AttentionPool, Known, needs_even, with_hidden_token
from .layers import (
    ACTIVATIONS,
    NORMS,
    Convolution,
    Intermediates,
    LayerNorm,
    Linear,
    Mlp,
    accumulation_dtype,
    capture,
    drop_path,
    dropout,
    fold,
    sincos2d,
    sinusoids,
    sow,
)
from .lowering import PLAIN, Lowering
from .positions import axial, mixed_frequencies, patch_positions
from .stack import Stack
from .vit_config import ViTConfig
from .vit_options import MAPS


class Patches(Linear):
    """Images to patch tokens: cut, flatten each patch as (row, column, channel), project; torch has Conv2d for it."""

    def __init__(self, c: ViTConfig, dtype: Any = jnp.float32, lowering: Lowering = PLAIN):
        self.size = c.patch_input[:2]
        self.activation = c.stem_activation
        values = math.prod(c.patch_input)
        super().__init__(values, c.width, c.stem_bias, dtype, lowering)
        self.pre_norm = norm(c, dtype, lowering, values) if c.stem_pre_norm else None
        self.norm = norm(c, dtype, lowering) if c.stem_norm else None

    def __call__(self, images: Array) -> Array:  # [B, h, w, C] -> [B, N, D]
        if self.lowering.tiled and self.pre_norm is None:  # on a TPU
            x = self.convolve(images)
        else:
            x = self.cut(images)
            x = super().__call__(x if self.pre_norm is None else self.pre_norm(x))
        x = x if self.norm is None else self.norm(x)
        return ACTIVATIONS[self.activation](x)

    def cut(self, images: Array) -> Array:  # [B, h, w, C] -> [B, N, (row column C)]
        batch, h, w, channels = images.shape
        rows, columns = self.size
        x = images.reshape(batch, h // rows, rows, w // columns, columns, channels)
        x = x.transpose(0, 1, 3, 2, 4, 5)  # b (gh p) (gw q) c -> b (gh gw) (p q c)
        return x.reshape(batch, -1, rows * columns * channels)

    def convolve(self, images: Array) -> Array:
        """The projected patches by a convolution, which on a TPU copies no image: [B, h, w, C] -> [B, N, D]."""
        # `[...]` takes the array out of a parameter, here and below.
        kernel = self.kernel[...].astype(images.dtype).reshape(*self.size, images.shape[-1], -1)
        axes = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(images, kernel, self.size, "VALID", dimension_numbers=axes)
        x = x.reshape(len(x), -1, x.shape[-1])
        return x if self.bias is None else x + self.bias[...].astype(x.dtype)


class Block(nnx.Module):
    """Attention, then mlp, each added to its input; norms before them (pre-norm), after them, or after the sum."""

    def __init__(self, c: ViTConfig, dtype: Any = jnp.float32, lowering: Lowering = PLAIN):
        self.norm_first, self.branch_norm, self.dropout = c.norm_first, c.branch_norm, c.dropout
        self.drop_path = tuple(c.drop_path * i / max(c.depth - 1, 1) for i in range(c.depth))  # of each block
        self.norm1 = norm(c, dtype, lowering)
        self.attention = Attention(
            c.width,
            c.heads,
            c.resolved_head_width,
            bias=c.attention_bias,
            query_norm=norm(c, dtype, lowering, c.resolved_head_width) if c.qk_norm else None,
            key_norm=norm(c, dtype, lowering, c.resolved_head_width) if c.qk_norm else None,
            inner_norm=norm(c, dtype, lowering, c.heads * c.resolved_head_width) if c.attention_norm else None,
            dropout=c.attention_dropout,
            pairs="" if c.rotary == "none" else c.rotary_pairs,
            mixed=c.rotary == "mixed",
            dtype=dtype,
            lowering=lowering,
        )
        self.scale1 = nnx.Param(jnp.full((c.width,), c.layer_scale, dtype)) if c.layer_scale else None
        self.norm2 = norm(c, dtype, lowering)
        self.mlp = Mlp(
            c.width,
            c.hidden,
            c.activation,
            gated=c.gated,
            bias=c.mlp_bias,
            dropout=c.activation_dropout,
            inner_norm=norm(c, dtype, lowering, c.hidden) if c.mlp_norm else None,
            dtype=dtype,
            lowering=lowering,
        )
        self.scale2 = nnx.Param(jnp.full((c.width,), c.layer_scale, dtype)) if c.layer_scale else None

    def __call__(
        self,
        x: Array,
        i: int | Array,
        *,
        mask: Known | None = None,
        rotary: Array | None = None,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """x after the block: x [B, N, D], keys PRNG keys [B] -> [B, N, D]."""
        attend = partial(self.attend, mask=mask, rotary=rotary, keys=fold(keys, 0), intermediates=intermediates)
        if self.branch_norm:
            x = x + self._branch(attend(x), i, self.scale1, fold(keys, 1), self.norm1)
            return x + self._branch(self.mlp(x, keys=fold(keys, 2)), i, self.scale2, fold(keys, 3), self.norm2)
        if self.norm_first:
            x = x + self._branch(attend(self.norm1(x)), i, self.scale1, fold(keys, 1))
            return x + self._branch(self.mlp(self.norm2(x), keys=fold(keys, 2)), i, self.scale2, fold(keys, 3))
        x = self.norm1(x + self._branch(attend(x), i, self.scale1, fold(keys, 1)))
        return self.norm2(x + self._branch(self.mlp(x, keys=fold(keys, 2)), i, self.scale2, fold(keys, 3)))

    def attend(self, x: Array, **others: Any) -> Array:
        """Self-attention, with the other arguments of a call: [B, N, D] -> [B, N, D]."""
        return self.attention(x, x, x, **others)

    def _branch(
        self,
        y: Array,
        i: int | Array,
        scale: nnx.Param[Array] | None,
        keys: Array | None,
        norm: LayerNorm | None = None,
    ) -> Array:
        """What a branch adds to its input: `y` after dropout, norm, LayerScale (Touvron et al. 2021), drop path."""
        y = dropout(y, self.dropout, fold(keys, 0))
        y = y if norm is None else norm(y)
        y = y if scale is None else y * scale[...].astype(y.dtype)
        return drop_path(y, self.drop_path, i, fold(keys, 1))


class ViT(state.Network):
    """A Vision Transformer: `model(images, keys=None) -> logits`.

    Keys are jax's explicit random state: a call with keys is a training pass, and there is no train() or eval() as in
    torch. Norms, softmax and head compute in float32 or wider.
    """

    def add_layers(self, c: ViTConfig, param_dtype: Any, lowering: Lowering) -> None:
        how = param_dtype, lowering
        self.stem = nnx.List(
            Convolution(n_in, n_out, c.stem_kernel, c.stem_bias, norm(c, *how, n_out), *how)
            for n_in, n_out, _ in c.convolutions
        )
        self.patch = Patches(c, *how)
        self.cls_token = _token(c.cls_token, (c.width,), param_dtype)
        self.distill_token = _token(c.distill_token, (c.width,), param_dtype)
        self.register_tokens = _token(c.registers > 0, (c.registers, c.width), param_dtype)
        self.position = _token(c.position_stored, (c.position_rows, c.width), param_dtype)
        self.pre_norm = norm(c, *how) if c.pre_norm else None
        self.blocks = Stack([Block(c, *how) for _ in range(c.depth)], lowering=lowering)
        self.norm = norm(c, *how) if c.final_norm else None
        self.pool = attention_pool(c, *how) if c.pool in MAPS else None
        self.head_norm = norm(c, *how, c.pooled_width) if c.head_norm else None
        self.head_hidden = Linear(c.pooled_width, c.head_hidden, True, *how) if c.head_hidden else None
        self.head = Linear(c.head_hidden or c.pooled_width, c.classes, c.head_bias, *how) if c.classes else None
        self.distill_norm = norm(c, *how) if c.distill_norm else None
        self.distill_head = Linear(c.width, c.classes, c.head_bias, *how) if c.distill_head and c.classes else None

    @classmethod
    def computed(cls, c: ViTConfig) -> dict[str, np.ndarray]:
        """Trained sinusoids, mixed frequencies."""
        values = {"position": fixed_positions(c)} if c.position_stored and c.position != "learned" else {}
        if c.rotary == "mixed":
            start = mixed_frequencies(c.heads, c.resolved_head_width, c.rotary_base)
            values |= {f"blocks.{i}.attention.frequencies": start for i in range(c.depth)}
        return values

    @mesh_agnostic
    @with_promotion
    def __call__(
        self, images: Array | np.ndarray, *, keys: Array | None = None, intermediates: Intermediates | None = None
    ) -> Array:
        """The logits of images.

        Args:
            images: floating-point [B, h, w, C], normalised as in training. A network that stores no positions takes any
                h and w that its patch divides.
            keys: PRNG keys [B], one an example, of a training pass, whose dropout they draw; None: evaluation.
            intermediates: receives the inner values that it asks for, by their names in `capture`.

        Returns:
            [B, K], float32 or wider; without a head the features [B, D].

        Raises:
            ValueError: for images of another shape, or of integers.
        """
        return self.classify(self.encode(images, keys, intermediates=intermediates), keys, intermediates)

    def both(self, images: Array | np.ndarray, *, keys: Array | None = None) -> tuple[Array, Array]:
        """The logits of the class token and of the distillation token, [B, K] each, each by its own head."""
        if self.cls_token is None or self.head is None or self.distill_head is None:
            raise ArgumentError("the network has no class token and distillation token with a head each")
        return self.two_logits(self.encode(images, keys), keys)

    def capture(self, images: Array | np.ndarray, names: Iterable[str]) -> dict[str, Array]:
        """Inner values of an evaluation pass, {name: array}.

        Args:
            names: any of tokens [B, N, D] (what enters the first block), blocks.I [B, N, D] (what leaves block I),
                features [B, N, D] (after the last norm), pooled [B, D] (what enters the head), attention [B, L, H, N,
                N] (the weights of all blocks, float32) and logits [B, K].
        """
        known = [*self.config.captured(), "attention"]
        return capture(names, known, lambda wanted: self(images, intermediates=wanted))

    @mesh_agnostic
    @with_promotion
    def encode(
        self, images: Array | np.ndarray, keys: Array | None = None, *, intermediates: Intermediates | None = None
    ) -> Array:
        """The tokens [B, N, D] of images after the last block and norm, before pooling."""
        c = sized(self.config, images)
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ArgumentError(f"images are {images.dtype}: give floating-point numbers, normalised as in training")
        x, table = self._embed(cast(Array, images.astype(self.dtype)), c, keys)  # [B, N, D]
        sow(intermediates, "tokens", x)
        real, mask = x.shape[1], None
        # A masked token makes their number even, as cuDNN needs; with it dropout would draw other numbers, so not then.
        draws = keys is not None and (c.dropout or c.attention_dropout or c.activation_dropout)
        if not draws and intermediates is None and needs_even(self.blocks[0].attention, self.dtype) and real % 2:
            x, table, mask = with_hidden_token(x, table)

        def call(block: Block, x: Array, i: int | Array, intermediates: Intermediates | None = None) -> Array:
            return block(x, i, mask=mask, rotary=table, keys=fold(keys, 3 + i), intermediates=intermediates)

        x = self.blocks.apply_blocks(x, call, intermediates)
        x = x if mask is None else x[:, :real]
        x = x if self.norm is None else self.norm(x)
        sow(intermediates, "features", x)
        return x

    def _embed(self, images: Array, c: ViTConfig, keys: Array | None) -> tuple[Array, Array | None]:
        """What enters the blocks: prefix tokens, then patches. Shapes: images [B, h, w, C] -> [B, N, D]."""
        x = images
        for convolution in self.stem:
            x = convolution(x)
        patches = self.patch(x)
        positions = self._positions(c, patches.dtype)
        patches = patches if positions is None else patches + positions[len(positions) - c.patches :]
        patches, table = self.drop_patches(patches, rotary_table(c, accumulation_dtype(self.dtype)), fold(keys, 1))
        tokens, row = [], 0
        for name, count, has_position in c.prefix:
            token = getattr(self, name)[...].astype(patches.dtype).reshape(count, c.width)
            if has_position and positions is not None:
                token, row = token + positions[row : row + count], row + count
            tokens.append(jnp.broadcast_to(token, (images.shape[0], count, c.width)))
        x = jnp.concatenate([*tokens, patches], axis=1) if tokens else patches
        x = dropout(x, c.embedding_dropout, fold(keys, 0))
        return x if self.pre_norm is None else self.pre_norm(x), table

    def _positions(self, c: ViTConfig, dtype: Any) -> Array | None:
        """The position embedding [rows, D], stored or computed; None if there is none."""
        if self.position is not None:
            return self.position[...].astype(dtype)
        return None if c.position == "none" else jnp.asarray(fixed_positions(c), dtype)

    def drop_patches(self, x: Array, table: Array | None, keys: Array | None) -> tuple[Array, Array | None]:
        """Keep a random share of the patch tokens, in their order (PatchDropout, Liu et al. 2022, arXiv 2208.07220).
        Shapes: x [B, n, D], table [n, ...], keys [B] -> (tokens [B, kept, D], their rows of the table [B, kept, ...]).
        """
        rate, n = self.config.patch_dropout, x.shape[1]
        if keys is None or not rate:
            return x, table
        kept = max(1, round(n * (1 - rate)))
        chosen = jax.vmap(lambda key: jnp.sort(jax.random.permutation(key, n)[:kept]))(keys)  # [B, kept]
        return jnp.take_along_axis(x, chosen[..., None], axis=1), None if table is None else table[chosen]

    def classify(self, x: Array, keys: Array | None, intermediates: Intermediates | None = None) -> Array:
        """Pool the tokens [B, N, D] and apply the head: logits [B, K], or the feature [B, D or 2 D] without a head."""
        c = self.config
        first = c.first_patch
        x = x.astype(accumulation_dtype(x.dtype))
        if c.pool == "cls":
            pooled = x[:, 0]
        elif c.pool == "cls_distill":
            pooled = (x[:, 0] + x[:, 1]) / 2
        elif self.pool is not None:
            pooled = self.pool.pool(x if c.pool == "map_all" else x[:, first:])
        elif c.pool == "cls_mean":
            pooled = jnp.concatenate([x[:, 0], x[:, first:].mean(1)], axis=-1)
        elif c.pool in ("mean", "mean_all"):
            pooled = x[:, first if c.pool == "mean" else 0 :].mean(1)
        else:
            raise ValueError(f"pool {c.pool}")
        sow(intermediates, "pooled", pooled)
        if c.pool == "cls_distill" and self.distill_head is not None:  # DeiT: two heads for two tokens
            logits, distilled = self.two_logits(x, keys)
            return (logits + distilled) / 2
        return self.logits(pooled, keys)

    def two_logits(self, x: Array, keys: Array | None) -> tuple[Array, Array]:
        """`both`, from the tokens [B, N, D]."""
        assert self.distill_head is not None
        x = x.astype(accumulation_dtype(x.dtype))
        logits, token = self.logits(x[:, 0], keys), x[:, 1]
        return logits, self.distill_head(token if self.distill_norm is None else self.distill_norm(token))

    def logits(self, pooled: Array, keys: Array | None) -> Array:
        """The head, with its norm, hidden layer and dropout if there are any: [B, D] -> [B, K]."""
        x = pooled if self.head_norm is None else self.head_norm(pooled)
        if self.head_hidden is not None:
            x = ACTIVATIONS[self.config.head_activation](self.head_hidden(x))
        x = dropout(x, self.config.head_dropout, fold(keys, 2))
        return x if self.head is None else self.head(x)


def sized(c: ViTConfig, images: Array | np.ndarray) -> ViTConfig:
    """The config for images of this size: images [B, h, w, C]."""
    (ph, pw), (*expected, channels) = c.patch_size, (*c.image_size, c.channels)
    if images.ndim != 4 or images.shape[3] != channels or (c.position_stored and [*images.shape[1:3]] != expected):
        raise ArgumentError(
            f"images {images.shape} are not [B, {', '.join(map(str, expected))}, {channels}], which this network takes"
        )
    h, w = images.shape[1:3]
    if not h * w or h % ph or w % pw:
        raise ArgumentError(f"images of {h}x{w} pixels are not divisible by the patch {ph}x{pw}: give a size that is")
    return dataclasses.replace(c, image=(h, w))


def _token(present: bool, shape: tuple[int, ...], dtype: Any) -> nnx.Param[Array] | None:
    return nnx.Param(jnp.zeros(shape, dtype)) if present else None


def attention_pool(c: ViTConfig, dtype: Any, lowering: Lowering) -> AttentionPool:
    """The pool with attention, whose mlp may be of another width than those of the blocks."""
    how: dict[str, Any] = {"dtype": dtype, "lowering": lowering}
    mlp = Mlp(c.width, c.pool_hidden or c.hidden, c.activation, gated=c.gated, bias=c.mlp_bias, **how)
    return AttentionPool(c.width, c.resolved_pool_heads, norm(c, **how), mlp, **how)


def norm(c: ViTConfig, dtype: Any, lowering: Lowering, width: int = 0) -> LayerNorm:
    """A norm of the config's kind over the last axis, of this width; 0: D."""
    return NORMS[c.norm_kind](width or c.width, c.eps, c.norm_bias, dtype, lowering)


# ------------------------------------------------------------------------------------- positions


def fixed_positions(c: ViTConfig) -> np.ndarray:
    """Positions [rows, D], float64: prefix tokens that have one (zeros if sincos2d), then patches, row by row."""
    if c.position == "sincos1d":
        return sinusoids("interleaved", c.position_rows, c.width)
    if c.position == "sincos2d":
        return np.concatenate([np.zeros((c.position_rows - c.patches, c.width)), sincos2d(*c.grid, c.width)])
    raise ValueError(f"position {c.position}")


def rotary_table(c: ViTConfig, dtype: Any) -> Array | None:
    """What rotary attention needs of each patch: axial [n, Dh/2] angles, mixed [n, 2] places; None without it."""
    if c.rotary == "none":
        return None
    places = patch_positions(c.grid, c.rotary_places, c.rotary_first, c.rotary_offset, c.rotary_reference)
    if c.rotary == "axial":
        places = axial(places, c.resolved_head_width, c.rotary_base, c.rotary_periods)
    return jnp.asarray(places, dtype)
