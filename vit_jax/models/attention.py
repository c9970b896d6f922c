"""Attention: the layer, its formula, its masks, and the pool that is an attention.

Dimensions: B batch, N tokens, D width, H heads, Dh head width, I = H*Dh; Nq queries, Nk keys. Masks are boolean, True
where a query may attend to a key. A padding is [B, N], True at real tokens; a mask is 4-D and broadcasts to
[B, H, Nq, Nk], so the two cannot be confused. An argument `key` is what attention looks at; `keys` are PRNG keys.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from ..errors import ArgumentError
from .attention_kernels import FUSED, fused_attention, implementation, with_fast_derivative
from .layers import Intermediates, LayerNorm, Linear, Mlp, accumulation_dtype, drop, keep, sow
from .positions.relative import RelativePosition
from .positions.rotary import angles, apply_rope

NUDGE = ".nudge"  # ends the name of an intermediate that the caller gives: see `Attention.__call__`


class Attention(nnx.Module):
    """Multi-head attention, softmax(Q K^T / sqrt Dh) V per head (Vaswani et al. 2017, arXiv 1706.03762, section 3.2).

    Args:
        width: D, of queries and outputs.
        heads: H.
        head_width: Dh.
        key_width: width of the inputs for keys; 0: D.
        value_width: width of the inputs for values; 0: D.
        bias: whether query, key, value and out have biases: one bool for all, or one for each.
        query_norm: what is applied to the queries of each head; None: nothing.
        key_norm: likewise to the keys.
        inner_norm: what is applied to the context of all heads, before the output projection; None: nothing.
        dropout: rate of the weights' dropout, where a call has keys.
        pairs: the values that rotary positions turn together, as in `rotary.apply_rope`; empty: there are none.
        mixed: whether the frequencies of rotary positions are learned.
        scaled: whether the scores are divided by sqrt Dh.
        relative: what gives a bias of the scores, of this layer alone; None: there is none, or a call is given it.
        dtype: of the parameters.
    """

    fused = False  # whether a fused kernel computes what it can
    capability = (0, 0)  # compute capability of the GPU that it is for; (0, 0): no such GPU

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
    ):
        inner = heads * head_width
        query_bias, key_bias, value_bias, out_bias = bias if isinstance(bias, tuple) else (bias,) * 4
        self.heads, self.head_width, self.dropout, self.pairs = heads, head_width, dropout, pairs
        self.scale, self.relative = head_width**-0.5 if scaled else 1.0, relative
        self.query = Linear(width, inner, query_bias, dtype)
        self.key = Linear(key_width or width, inner, key_bias, dtype)
        self.value = Linear(value_width or width, inner, value_bias, dtype)
        self.query_norm, self.key_norm, self.inner_norm = query_norm, key_norm, inner_norm
        self.out = Linear(inner, width, out_bias, dtype)
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
        """Attention of queries to keys and values.

        Args:
            query: [B, Nq, D].
            key: [B, Nk, Dk].
            value: [B, Nk, Dv].
            mask: bool, 4-D, broadcastable to [B, H, Nq, Nk], True where to attend. A query that may attend to nothing
                has a zero context.
            rotary: the rotary table [..., n, d] of the last n tokens, as `rotary.angles` takes it.
            bias: of the scores, [1, H, Nq, Nk]; None: that of the layer's own relative positions, if it has them.
            keys: PRNG keys [B], one an example, that draw dropout; None: evaluation.
            intermediates: receives the weights [B, H, Nq, Nk] if it has the name "attention". An array of the name
                "attention.nudge" is added to the weights that multiply the values: given zeros, the gradient with
                respect to it is the one with respect to the weights.

        Returns:
            [B, Nq, D].

        Raises:
            ValueError: for a mask of another shape or dtype.
        """
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
        """Attention to keys and values that `project` has given.

        Args:
            query: [B, Nq, D].
            k: [B, H, Nk, Dh].
            v: [B, H, Nk, Dh].
            mask: as in a call.
            rotary: the angles [..., N, Dh/2] by which `k` is turned already.
            bias: as in a call.
            keys, intermediates: as in a call.
            name: that of the weights among the intermediates.

        Returns:
            [B, Nq, D].
        """
        q = self.query.to_heads(query, self.heads)
        q = q if self.query_norm is None else self.query_norm(q)
        q = q if rotary is None else apply_rope(q, rotary, self.pairs)
        shape = (q.shape[0], self.heads, q.shape[2], k.shape[2])
        check_mask(mask, shape)
        if bias is None and self.relative is not None:
            bias = self.relative(*shape[2:])
        kept = keep(shape, self.dropout, keys)
        fused = self.fused and (intermediates is None or name not in intermediates)
        context, weights = plain_or_fused(q, k, v, mask, bias, kept, self.dropout, self.scale, fused, self.capability)
        sow(intermediates, name, weights)
        if (nudge := (intermediates or {}).get(name + NUDGE)) is not None:
            context = context + nudge.astype(v.dtype) @ v
        if self.inner_norm is None:
            return self.out.from_heads(context)
        context = context.transpose(0, 2, 1, 3)  # [B, Nq, H, Dh]
        return self.out(self.inner_norm(context.reshape(*context.shape[:2], -1)))


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
    """`attention_core`, or the same by a fused kernel where that is asked for and can compute it.

    A fused kernel does not compute float64, dropout, or a mask that is not `Known`: that may leave a query nothing to
    attend to, and the kernel's context would then not be zero.

    Args:
        q: queries [B, H, Nq, Dh]; unlike those of `attention_core` they are not scaled yet.
        k, v, bias, kept, rate: as there.
        mask: as there, or `Known`.
        scale: of the queries.
        fused: whether a fused kernel may compute it, which gives no weights.
        capability: as of `fused_attention`.

    Returns:
        (context [B, H, Nq, Dh], weights [B, H, Nq, Nk]; None in place of the weights from a fused kernel).
    """
    known, dtypes = isinstance(mask, Known), {x.dtype.name for x in (q, k, v)}
    if fused and (mask is None or known) and kept is None and len(dtypes) == 1 and dtypes <= FUSED:
        real = mask.count if isinstance(mask, Leading) else 0
        return fused_attention(q, k, v, bias, scale, isinstance(mask, Causal), capability, real), None
    return attention_core(q * scale, k, v, mask.array if isinstance(mask, Known) else mask, bias, kept, rate)


@with_fast_derivative
def attention_core(
    q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None, kept: Array | None, rate: float
) -> tuple[Array, Array]:
    """softmax(Q K^T + bias) V.

    Args:
        q: queries [B, H, Nq, Dh], scaled already.
        k: keys [B, H, Nk, Dh].
        v: values [B, H, Nk, Dh].
        mask: bool, broadcastable to the weights, True where to attend; a query that may attend to nothing has zero
            weights, context and gradients. None: all attend to all.
        bias: of the scores, float [1, H, Nq, Nk]; None: there is none.
        kept: bool [B, H, Nq, Nk], True where dropout keeps a weight; None: no dropout.
        rate: of dropout; weights that are kept are scaled by 1 / (1 - rate).

    Returns:
        (context [B, H, Nq, Dh] in the dtype of v, weights [B, H, Nq, Nk] before dropout in float32 or float64).
    """
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    scores = scores.astype(accumulation_dtype(scores.dtype))
    scores = scores if bias is None else scores + bias.astype(scores.dtype)
    weights = jax.nn.softmax(scores, axis=-1, where=mask)
    return drop(weights.astype(v.dtype), kept, rate) @ v, weights


class AttentionPool(Attention):
    """A learned probe attends to all tokens, then an mlp (Lee et al. 2019, arXiv 1810.00825; MAP in big_vision)."""

    def __init__(self, width: int, heads: int, norm: LayerNorm, mlp: Mlp, dtype: Any = jnp.float32):
        super().__init__(width, heads, width // heads, dtype=dtype)
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
    """A mask of known structure, which a fused kernel may use."""

    array: Array


@dataclass(frozen=True)
class Causal(Known):
    """A mask [1, 1, N, N]: each token attends to itself and to those before it."""


@dataclass(frozen=True)
class Leading(Known):
    """A mask [1, 1, 1, N]: all attend to the first `count` tokens, and the outputs of the others are thrown away."""

    count: int


def attention_mask(
    batch: int,
    query_length: int,
    key_length: int,
    *,
    padding: Array | None = None,
    mask: Array | None = None,
    causal: bool = False,
) -> Array | None:
    """One mask for all that hides keys: a padding, a mask, and what comes later.

    Args:
        batch: B.
        query_length: Nq.
        key_length: Nk.
        padding: bool [B, Nk], True at real keys.
        mask: bool, 4-D, broadcastable to [B, H, Nq, Nk], True where to attend.
        causal: whether query i attends to the keys up to i alone.

    Returns:
        A mask, bool, broadcastable to [B, H, Nq, Nk]; None if nothing is masked.

    Raises:
        ValueError: for a padding or mask of another shape or dtype.
    """
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


def needs_even(attention: nnx.Module, dtype: Any) -> bool:
    """Whether the kernel that computes an attention in this dtype needs an even number of tokens."""
    if not isinstance(attention, Attention):  # a user's own, put in its place
        return False
    how = implementation(jnp.dtype(dtype).name, attention.head_width, attention.capability)
    return attention.fused and how == "cudnn"


def with_hidden_token(x: Array, table: Array | None) -> tuple[Array, Array | None, Leading]:
    """Tokens and one more, of zeros, which no other may attend to.

    Args:
        x: [B, N, D].
        table: the rotary table of the last tokens [..., n, d], or None.

    Returns:
        (x [B, N + 1, D], table [..., n + 1, d], the mask that hides it).
    """

    def padded(a: Array) -> Array:
        return jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, 1), (0, 0)])

    count = x.shape[1]
    mask = Leading((jnp.arange(count + 1) < count)[None, None, None], count)
    return padded(x), None if table is None else padded(table), mask


def from_torch_mask(mask: Any, heads: int = 0) -> Array:
    """A boolean mask of torch (True = ignore) in the form of this module (True = attend).

    Args:
        mask: with heads=0 a key_padding_mask [B, Nk], else an attn_mask [Nq, Nk] or [B*H, Nq, Nk].
        heads: H of an attn_mask; 0: it is a padding.

    Returns:
        bool [B, Nk], [1, 1, Nq, Nk] or [B, H, Nq, Nk], in the order of the above.

    Raises:
        ValueError: for a float mask.
    """
    ignored = jnp.asarray(mask)
    if ignored.dtype != bool:
        raise ArgumentError(
            f"mask {ignored.dtype}: only boolean masks are taken; for an additive one give mask == -inf"
        )
    keep = ~ignored
    if not heads:
        return keep
    return keep[None, None] if keep.ndim == 2 else keep.reshape(-1, heads, *keep.shape[1:])


def check_mask(mask: Array | Known | None, shape: tuple[int, int | None, int, int]) -> None:
    """Check a mask.

    Args:
        mask: to be boolean, [B, H, Nq, Nk] or what broadcasts to it.
        shape: (B, H, Nq, Nk); None for H: any.

    Raises:
        ArgumentError: it is not.
    """
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
