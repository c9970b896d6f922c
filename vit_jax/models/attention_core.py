"""The core of attention, softmax(Q K') V: plain, with a derivative of its own that is faster on a CPU, or fused.

A fused kernel (jax.nn.dot_product_attention) never holds all weights where cuDNN computes it (Dao et al. 2022, arXiv
2205.14135). `plain_or_fused` alone decides which of the two computes, and `implementation` by which library.

Differentiating the plain formula gives the same values. What differs is how they are computed:

- Of the softmax, the sum over a row of P * dP is taken as that over the context, sum(O * dO): Dh products a query
  instead of Nk (Dao et al. 2022, arXiv 2205.14135, appendix B.4). With dropout it is the same sum, because the mask is
  in O as in the weights that made it.
- On a CPU, dV = P' dO and dK = dS' Q, which sum over the first axis of a matrix, are computed as (dO' P)' and (Q' dS)'
  where heads are narrow: XLA has a slow loop for the former (github.com/jax-ml/jax/issues/19327). Barriers keep it from
  undoing the transposes. From heads of 32 on that loop is as fast, and it keeps more cores busy.

The rule gives the derivative in forward mode, and jax transposes it: so forward mode (jax.jvp), reverse mode, higher
orders, vmap, scan and remat all work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

FUSED = {"float32", "bfloat16", "float16"}  # dtypes of a fused kernel, whose softmax and sums are in float32
NARROW = 32  # Dh below which products that sum over the first axis of a matrix are slow


@dataclass(frozen=True)
class Causal:
    """A mask [1, 1, N, N] of which it is known that each token attends to itself and to those before it."""

    array: Array


def plain_or_fused(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | Causal | None,
    kept: Array | None,
    rate: float,
    *,
    fused: bool,
    captured: bool,
) -> tuple[Array, Any]:
    """`attention_core`, or the same by a fused kernel where that can compute it.

    A fused kernel cannot in float64, where weights are captured or dropped, and under a mask that may leave a query
    nothing to attend to, whose context would not be zero: under any but a causal one.

    Args:
        q, k, v, kept, rate: as of `attention_core`.
        mask: as there, or `Causal`.
        fused: whether a fused kernel may compute it.
        captured: whether the weights are asked for.

    Returns:
        (context [B, H, Nq, Dh], weights [B, H, Nq, Nk]; None in place of the weights from a fused kernel).
    """
    causal, dtypes = isinstance(mask, Causal), {x.dtype.name for x in (q, k, v)}
    if fused and (mask is None or causal) and kept is None and not captured and len(dtypes) == 1 and dtypes <= FUSED:
        return _fused_attention(q, k, v, causal), None
    return attention_core(q, k, v, mask.array if isinstance(mask, Causal) else mask, kept, rate)


def _fused_attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """The context by a fused kernel."""
    how = implementation(q.dtype.name, q.shape[-1], capability())
    queries, keys, lengths = q.shape[2], k.shape[2], dict[str, Any]()
    if how == "cudnn" and (queries % 2 or keys % 2):
        # jax 0.10 differentiates cuDNN's kernel at even lengths alone, so one more token is added, and hidden.
        lengths = {"query_seq_lengths": jnp.full(len(q), queries, jnp.int32)}
        lengths |= {"key_value_seq_lengths": jnp.full(len(q), keys, jnp.int32)}
        q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, x.shape[2] % 2), (0, 0))) for x in (q, k, v))
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # [B, N, H, Dh]
    context = jax.nn.dot_product_attention(q, k, v, scale=1.0, is_causal=causal, implementation=how, **lengths)
    return context[:, :queries].swapaxes(1, 2)


def implementation(dtype: str, width: int, capability: tuple[int, int]) -> Literal["cudnn", "xla"]:
    """Who computes fused attention: cuDNN where it can, on NVIDIA GPUs from Ampere on.

    It takes float16 and bfloat16, and heads of a `width` that is a multiple of 8 and at most 128, from Hopper on 256.
    """
    widest = 256 if capability >= (9, 0) else 128
    can = capability >= (8, 0) and dtype in ("bfloat16", "float16") and width % 8 == 0 and width <= widest
    return "cudnn" if can else "xla"


def capability() -> tuple[int, int]:
    """The compute capability of the NVIDIA GPU that jax computes on, 9.0 as (9, 0); (0, 0) on anything else."""
    stated = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(jax.local_devices()[0], "compute_capability", "")))
    return (int(stated[1]), int(stated[2])) if stated else (0, 0)


@partial(jax.custom_jvp, nondiff_argnums=(5,))
def attention_core(
    q: Array, k: Array, v: Array, mask: Array | None, kept: Array | None, rate: float
) -> tuple[Array, Array]:
    """softmax(Q K') V.

    Args:
        q: queries [B, H, Nq, Dh], scaled already.
        k: keys [B, H, Nk, Dh].
        v: values [B, H, Nk, Dh].
        mask: bool, broadcastable to the weights, True where to attend; a query that may attend to nothing has zero
            weights, context and gradients. None: all attend to all.
        kept: bool [B, H, Nq, Nk], True where dropout keeps a weight; None: no dropout.
        rate: of dropout; weights that are kept are scaled by 1 / (1 - rate).

    Returns:
        (context [B, H, Nq, Dh] in the dtype of v, weights [B, H, Nq, Nk] before dropout in float32 or float64).
    """
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    weights = jax.nn.softmax(scores.astype(jnp.promote_types(scores.dtype, jnp.float32)), axis=-1, where=mask)
    return drop(weights.astype(v.dtype), kept, rate) @ v, weights


@attention_core.defjvp
def _derivative(
    rate: float, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The value and its directional derivative; the letters are those of the gradients that its transpose computes."""
    q, k, v, _, kept = primals
    tq, tk, tv, *_ = tangents
    context, weights = attention_core(*primals, rate)
    scores = jnp.einsum("bhqd,bhkd->bhqk", tq, k)  # its transpose is dQ = dS K
    if q.shape[-1] < NARROW:
        scores += jnp.einsum(
            "bhdq,bhdk->bhqk", _keep_stored(_transpose(q)), _keep_stored(_transpose(tk))
        )  # dK = (Q' dS)'
    else:
        scores += jnp.einsum("bhqd,bhkd->bhqk", q, tk)
    moved = weights * scores.astype(weights.dtype)
    total = moved.sum(-1, keepdims=True)
    along = drop(moved.astype(v.dtype), kept, rate) @ v  # dP = dO V'
    along -= (total * context.astype(total.dtype)).astype(context.dtype)  # dS = P * (dP - sum(O * dO))
    left = drop(weights.astype(v.dtype), kept, rate)
    if q.shape[-1] < NARROW:
        along += _transpose(
            _keep_stored(jnp.einsum("bhdk,bhqk->bhdq", _keep_stored(_transpose(tv)), left))
        )  # dV = (dO' P)'
    else:
        along += left @ tv
    return (context, weights), (along, moved - total * weights)


def drop(x: Array, kept: Array | None, rate: float) -> Array:
    """x with zeros where `kept` is False, and scaled by 1 / (1 - rate) elsewhere; kept None: x."""
    return x if kept is None else jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))


def _keep_stored(x: Array) -> Array:
    """x, which XLA may not merge with what is computed before or after it where the program is lowered for a CPU."""
    return jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)


def _transpose(x: Array) -> Array:
    return jnp.swapaxes(x, -1, -2)
