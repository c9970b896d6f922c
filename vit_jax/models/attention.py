"""Attention: the layer, its formula, the pool that is an attention, and masks.

Dimensions: B batch, N tokens, D width, H heads, Dh head width, I = H*Dh; Nq queries, Nk keys. Masks are boolean, True
where a query may attend to a key. A padding is [B, N], True at real tokens; a mask is 4-D and broadcasts to
[B, H, Nq, Nk], so the two cannot be confused. An argument `key` is what attention looks at; `keys` are PRNG keys.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from ..errors import ArgumentError
from .fused import FUSED, fused_attention, implementation, obstacle, with_fast_derivative
from .layers import Intermediates, LayerNorm, Linear, Mlp, accumulation_dtype, drop, keep, sow
from .lowering import PLAIN, Lowering
from .positions import RelativePosition, angles, apply_rope


class Attention(nnx.Module):
    """Multi-head attention, softmax(Q K^T / sqrt Dh) V per head (Vaswani et al. 2017, arXiv 1706.03762, 3.2)."""

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        *,
        key_width: int = 0,
        value_width: int = 0,
        bias: bool | tuple[bool, bool, bool, bool] = True,
        query_norm: LayerNorm | None = None,
        key_norm: LayerNorm | None = None,
        inner_norm: LayerNorm | None = None,
        dropout: float = 0.0,
        pairs: str = "",
        mixed: bool = False,
        scaled: bool = True,
        relative: RelativePosition | None = None,
        dtype: Any = jnp.float32,
        lowering: Lowering = PLAIN,
    ):
        inner = heads * head_width
        query_bias, key_bias, value_bias, out_bias = bias if isinstance(bias, tuple) else (bias,) * 4
        self.heads, self.head_width, self.dropout, self.pairs = heads, head_width, dropout, pairs
        self.scale, self.relative, self.lowering = head_width**-0.5 if scaled else 1.0, relative, lowering
        self.query = Linear(width, inner, query_bias, dtype, lowering)
        self.key = Linear(key_width or width, inner, key_bias, dtype, lowering)
        self.value = Linear(value_width or width, inner, value_bias, dtype, lowering)
        self.query_norm, self.key_norm, self.inner_norm = query_norm, key_norm, inner_norm
        self.out = Linear(inner, width, out_bias, dtype, lowering)
        self.frequencies = nnx.Param(jnp.zeros((2, heads, head_width // 2), dtype)) if mixed else None

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | Known | None = None,
        *,
        rotary: Array | None = None,
        bias: Array | None = None,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """query [B, Nq, D], key [B, Nk, Dk], value [B, Nk, Dv], rotary [..., n, d], bias [1, H, Nq, Nk] -> as query."""
        k, v = self.project(key, value)
        if rotary is not None:
            rotary = angles(rotary, None if self.frequencies is None else self.frequencies[...])
            k = apply_rope(k, rotary, self.pairs)
        return self.attend(query, k, v, mask, rotary=rotary, bias=bias, keys=keys, intermediates=intermediates)

    def project(self, key: Array, value: Array) -> tuple[Array, Array]:
        """Keys and values per head, [B, H, Nk, Dh] each; decoding caches them between steps."""
        k, v = self.key.to_heads(key, self.heads), self.value.to_heads(value, self.heads)
        return k if self.key_norm is None else self.key_norm(k), v

    def attend(
        self,
        query: Array,
        k: Array,
        v: Array,
        mask: Array | Known | None = None,
        *,
        rotary: Array | None = None,
        bias: Array | None = None,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
        name: str = "attention",
    ) -> Array:
        """[B, Nq, D] -> [B, Nq, D], to what `project` has given, [B, H, Nk, Dh] each; rotary [..., N, Dh/2]."""
        q = self.query.to_heads(query, self.heads)
        q = q if self.query_norm is None else self.query_norm(q)
        q = q if rotary is None else apply_rope(q, rotary, self.pairs)
        shape = (q.shape[0], self.heads, q.shape[2], k.shape[2])
        check_mask(mask, shape)
        if bias is None and self.relative is not None:
            bias = self.relative(*shape[2:])
        kept = keep(shape, self.dropout, keys)
        fused = not why_plain(self, q.dtype.name) and (intermediates is None or name not in intermediates)
        how = self.dropout, self.scale, fused, self.lowering.capability
        context, weights = plain_or_fused(q, k, v, mask, bias, kept, *how)
        sow(intermediates, name, weights)
        if self.inner_norm is None:
            return self.out.from_heads(context)
        context = context.transpose(0, 2, 1, 3)  # [B, Nq, H, Dh]
        return self.out(self.inner_norm(context.reshape(*context.shape[:2], -1)))


def why_plain(attention: Attention, dtype: str) -> str:
    """Why no fused kernel computes an attention in this dtype; empty where one does."""
    how = attention.lowering.attention
    if how == "plain":
        return "attention-kernel is plain"
    if how == "auto":
        return obstacle(dtype, attention.head_width, attention.lowering.capability, attention.dropout)
    if how != "fused":
        assert_never(how)
    if dtype not in FUSED:
        return f"it computes in {dtype}"
    return f"its weights have dropout {attention.dropout:g}" if attention.dropout else ""


def plain_or_fused(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | Known | None,
    bias: Array | None,
    kept: Array | None,
    rate: float,
    scale: float,
    fused: bool,
    capability: tuple[int, int] = (0, 0),
) -> tuple[Array, Any]:
    """`attention_core`, or the same by a fused kernel where that is asked for and can compute it: q [B, H, Nq, Dh] ->
    [B, H, Nq, Dh].

    A fused kernel does not compute float64, dropout, or a mask that is not `Known`: that may leave a query nothing to
    attend to, and the kernel's context would then not be zero.
    """
    known, dtypes = isinstance(mask, Known), {x.dtype.name for x in (q, k, v)}
    if fused and (mask is None or known) and kept is None and len(dtypes) == 1 and dtypes <= FUSED:
        real = mask.count if isinstance(mask, Known) else 0
        return fused_attention(q, k, v, bias, scale, known and not real, capability, real), None
    return attention_core(q * scale, k, v, mask.array if isinstance(mask, Known) else mask, bias, kept, rate)


@with_fast_derivative
def attention_core(
    q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None, kept: Array | None, rate: float
) -> tuple[Array, Array]:
    """softmax(Q K^T + bias) V: q [B, H, Nq, Dh], k keys [B, H, Nk, Dh], v [B, H, Nk, Dh], bias float [1, H, Nq, Nk],
    kept bool [B, H, Nq, Nk] -> [B, H, Nq, Dh]. A query that may attend to nothing has zero weights, context and
    gradients.
    """
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    scores = scores.astype(accumulation_dtype(scores.dtype))
    scores = scores if bias is None else scores + bias.astype(scores.dtype)
    weights = jax.nn.softmax(scores, axis=-1, where=mask)
    return drop(weights.astype(v.dtype), kept, rate) @ v, weights


class AttentionPool(Attention):
    """A learned probe attends to all tokens, then an mlp (Lee et al. 2019, arXiv 1810.00825; MAP in big_vision)."""

    def __init__(self, width: int, heads: int, norm: LayerNorm, mlp: Mlp, dtype: Any, lowering: Lowering = PLAIN):
        super().__init__(width, heads, width // heads, dtype=dtype, lowering=lowering)
        self.probe = nnx.Param(jnp.zeros((width,), dtype))
        self.norm, self.mlp = norm, mlp

    def pool(self, x: Array) -> Array:
        """[B, N, D] -> [B, D]."""
        probe = jnp.broadcast_to(self.probe[...].astype(x.dtype), (x.shape[0], 1, x.shape[-1]))
        y = self(probe, x, x)
        return (y + self.mlp(self.norm(y)))[:, 0]


# Masks.


@dataclass(frozen=True)
class Known:
    """A mask of known structure, which a fused kernel may use.

    Either it is causal, [1, 1, N, N]: each token attends to itself and to those before it. Or, [1, 1, 1, N], all attend
    to the first `count` tokens, and the outputs of the others are thrown away.
    """

    array: Array
    count: int = 0  # 0: it is causal


def needs_even(attention: nnx.Module, dtype: Any) -> bool:
    """Whether the kernel that computes an attention in this dtype needs an even number of tokens."""
    if not isinstance(attention, Attention):  # a user's own, put in its place
        return False
    name = jnp.dtype(dtype).name
    how = implementation(name, attention.head_width, attention.lowering.capability)
    return how == "cudnn" and not why_plain(attention, name)


def with_hidden_token(x: Array, table: Array | None) -> tuple[Array, Array | None, Known]:
    """x [B, N, D] and table [..., n, d] with one more token, of zeros, and the mask that hides it from all."""

    def padded(a: Array) -> Array:
        return jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, 1), (0, 0)])

    count = x.shape[1]
    mask = Known((jnp.arange(count + 1) < count)[None, None, None], count)
    return padded(x), None if table is None else padded(table), mask


def check_mask(mask: Array | Known | None, shape: tuple[int, int | None, int, int]) -> None:
    """Check a mask: mask [B, H, Nq, Nk]."""
    mask = mask.array if isinstance(mask, Known) else mask
    if mask is None:
        return
    if mask.dtype != bool:
        raise ArgumentError(
            f"mask {mask.dtype}: only boolean masks are taken, True where to attend; for an additive one give mask == 0"
        )
    if mask.ndim != 4 or any(n is not None and m not in (1, n) for m, n in zip(mask.shape, shape, strict=True)):
        wanted = ", ".join("H" if n is None else str(n) for n in shape)
        raise ArgumentError(
            f"mask {list(mask.shape)} is not 4-D or does not broadcast to [{wanted}] = [B, H, Nq, Nk]; "
            "give it that shape, or give a padding [B, N] as a padding argument"
        )


def attention_mask(
    batch: int,
    query_length: int,
    key_length: int,
    *,
    padding: Array | None = None,
    mask: Array | None = None,
    causal: bool = False,
) -> Array | None:
    """What padding [B, Nk], mask [B, H, Nq, Nk] and `causal` leave of keys, bool, 4-D; None if that is all."""
    masks = []
    if padding is not None:
        if padding.dtype != bool or padding.shape != (batch, key_length):
            raise ArgumentError(
                f"padding {padding.dtype} {list(padding.shape)} is not bool [{batch}, {key_length}], "
                "True at real tokens: give it that dtype and shape"
            )
        masks.append(padding[:, None, None, :])
    if mask is not None:
        # Attention checks it too, but only after a mask of fewer axes would have been broadcast to the others.
        check_mask(mask, (batch, None, query_length, key_length))
        masks.append(mask)
    if causal:
        masks.append((jnp.arange(key_length) <= jnp.arange(query_length)[:, None])[None, None])
    return functools.reduce(operator.and_, masks) if masks else None
