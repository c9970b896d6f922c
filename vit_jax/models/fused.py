"""How attention's formula is computed faster: with a derivative of its own for a CPU, or by a fused kernel.

A fused kernel (jax.nn.dot_product_attention) never holds all weights where cuDNN computes it (Dao et al. 2022, arXiv
2205.14135).

Differentiating the plain formula gives the same values as the derivative here. What differs is how they are computed:

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

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from .layers import drop

FUSED = {"float32", "bfloat16", "float16"}  # dtypes of a fused kernel, whose softmax and sums are in float32
NARROW = 32  # Dh below which products that sum over the first axis of a matrix are slow


def with_fast_derivative(formula: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """Attention's formula, `attention.attention_core`, with the derivative above."""
    core = jax.custom_jvp(formula, nondiff_argnums=(6,))

    def derivative(
        rate: float, primals: tuple[Any, ...], tangents: tuple[Any, ...]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The value and its directional derivative; letters are those of the gradients that its transpose computes."""
        q, k, v, _, bias, kept = primals
        tq, tk, tv, _, tbias, _ = tangents
        narrow = q.shape[-1] < NARROW
        context, weights = core(*primals, rate)
        scores = jnp.einsum("bhqd,bhkd->bhqk", tq, k)  # its transpose is dQ = dS K
        if narrow:  # dK = (Q' dS)'
            scores += jnp.einsum("bhdq,bhdk->bhqk", _keep_stored(_transpose(q)), _keep_stored(_transpose(tk)))
        else:
            scores += jnp.einsum("bhqd,bhkd->bhqk", q, tk)
        scores = scores.astype(weights.dtype)
        moved = weights * (scores if bias is None else scores + tbias.astype(weights.dtype))  # its transpose sums dS
        total = moved.sum(-1, keepdims=True)
        along = drop(moved.astype(v.dtype), kept, rate) @ v  # dP = dO V'
        along -= (total * context.astype(total.dtype)).astype(context.dtype)  # dS = P * (dP - sum(O * dO))
        dropped = drop(weights.astype(v.dtype), kept, rate)
        if narrow:  # dV = (dO' P)'
            transposed = jnp.einsum("bhdk,bhqk->bhdq", _keep_stored(_transpose(tv)), dropped)
            along += _transpose(_keep_stored(transposed))
        else:
            along += dropped @ tv
        return (context, weights), (along, moved - total * weights)

    core.defjvp(derivative)
    return core


def _keep_stored(x: Array) -> Array:
    """x, which XLA may not merge with what is computed before or after it where the program is lowered for a CPU."""
    return jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)


def _transpose(x: Array) -> Array:
    return jnp.swapaxes(x, -1, -2)


def fused_attention(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    scale: float,
    causal: bool,
    capability: tuple[int, int],
    real: int = 0,
) -> Array:
    """The context by a fused kernel: q [B, H, Nq, Dh], k, v [B, H, Nk, Dh], bias [1, H, Nq, Nk] -> [B, H, Nq, Dh]."""
    how = implementation(q.dtype.name, q.shape[-1], capability)
    (queries, keys), lengths = (q.shape[2], k.shape[2]), dict[str, Any]()
    odd = how == "cudnn" and (queries % 2 or keys % 2)
    if odd or real:
        lengths = {"query_seq_lengths": jnp.full(len(q), real or queries, jnp.int32)}
        lengths |= {"key_value_seq_lengths": jnp.full(len(q), real or keys, jnp.int32)}
    if odd:
        # jax 0.10 differentiates cuDNN's kernel at even lengths alone, so one more token is added, and hidden.
        q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, x.shape[2] % 2), (0, 0))) for x in (q, k, v))
        bias = None if bias is None else jnp.pad(bias, ((0, 0), (0, 0), (0, queries % 2), (0, keys % 2)))
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # [B, N, H, Dh]
    bias = None if bias is None else bias.astype(q.dtype)
    context = jax.nn.dot_product_attention(q, k, v, bias, scale=scale, is_causal=causal, implementation=how, **lengths)
    return context[:, :queries].swapaxes(1, 2)


def implementation(dtype: str, width: int, capability: tuple[int, int]) -> Literal["cudnn", "xla"]:
    """Who computes fused attention: cuDNN where it can."""
    return "xla" if obstacle(dtype, width, capability) else "cudnn"


def obstacle(dtype: str, width: int, capability: tuple[int, int], dropout: float = 0.0) -> str:
    """Why cuDNN cannot compute an attention; empty where it can, on NVIDIA GPUs from Ampere on."""
    widest = 256 if capability >= (9, 0) else 128
    if capability < (8, 0):
        major, minor = capability
        return f"a GPU of compute capability {major}.{minor} is older than 8.0" if major else "there is no NVIDIA GPU"
    if dtype not in ("bfloat16", "float16"):
        return f"it computes in {dtype}, not in bfloat16"
    if dropout:
        return f"its weights have dropout {dropout:g}"
    if width % 8 or width > widest:
        return f"its heads are {width} wide, not a multiple of 8 up to {widest}"
    return ""
