"""The slots that the models are made of: linear maps, norms, activations, attention, dropout.

Letters: B batch, N tokens, D width, H heads, Dh head width, I = H*Dh, F hidden. Parameters keep
their own dtype (float32, or float64 in tests); a layer computes in the dtype of its input, with
norms, softmax and other reductions in float32 or wider.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, overload

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from .config import Parameter
from .runs import flatten

Tape = dict[str, Any]  # what a caller wants captured: {name: None} before, {name: array} after


def note(tape: Tape | None, name: str, value: Array) -> None:
    """Keep a value, where the caller wants it captured."""
    if tape is not None and name in tape:
        tape[name] = value


def wide(dtype: Any) -> Any:
    """The dtype that reductions of `dtype` run in: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


class Linear(nnx.Module):
    """y = x K + b, with the kernel K stored 2-D as (in, out).

    Leading axes are one for the product: XLA's CPU backend runs a plain matrix product about 1.06
    times as fast as the same product with a batch and a token axis.
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True, dtype: Any = jnp.float32):
        self.kernel = nnx.Param(jnp.zeros((n_in, n_out), dtype))
        self.bias = nnx.Param(jnp.zeros((n_out,), dtype)) if bias else None

    def __call__(self, x: Array) -> Array:  # [..., in] -> [..., out]
        y = x.reshape(-1, x.shape[-1]) @ self.kernel[...].astype(x.dtype)
        y = y.reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class LayerNorm(nnx.Module):
    """y = (x - mean) / sqrt(var + eps) * scale + bias over the last axis (Ba et al. 2016).

    The variance is taken in a second pass, of x - mean: the one-pass form E[x^2] - E[x]^2 loses
    all digits where the mean is large.
    """

    def __init__(self, width: int, eps: float, bias: bool = True, dtype: Any = jnp.float32):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.bias = nnx.Param(jnp.zeros((width,), dtype)) if bias else None

    def __call__(self, x: Array) -> Array:  # [..., D] -> [..., D]
        centred = x.astype(wide(x.dtype))
        centred = centred - centred.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + self.eps) * self.scale[...].astype(centred.dtype)
        y = y if self.bias is None else y + self.bias[...].astype(centred.dtype)
        return y.astype(x.dtype)


def gelu(x: Array) -> Array:
    """Exact GELU, x/2 (1 + erf(x / sqrt 2)) (Hendrycks & Gimpel 2016), in torch's form.

    On CPU this is three times faster than jax.nn.gelu's erfc form.
    """
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "gelu": gelu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


# Dropout. Every example of a batch brings a key of its own, so what is dropped does not depend on
# how the batch is cut over devices or over time. Keys [B] mean training; None means evaluation.


@overload
def fold(keys: Array, site: int) -> Array: ...
@overload
def fold(keys: None, site: int) -> None: ...
@overload
def fold(keys: Array | None, site: int) -> Array | None: ...
def fold(keys: Array | None, site: int) -> Array | None:
    """The keys of one place in the network."""
    return None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, site)


def _keep(key: Array, shape: tuple[int, ...], rate: float) -> Array:
    """A boolean mask that is True with probability 1 - rate, to within 2^-16.

    Sixteen random bits a value instead of 32: drawing them is what dropout costs.
    """
    size = math.prod(shape)
    bits = jax.random.bits(key, ((size + 1) // 2,), jnp.uint32)
    bits = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(-1)[:size].reshape(shape)
    return bits >= jnp.uint16(min(round(rate * 2**16), 2**16 - 1))


def dropout(x: Array, rate: float, keys: Array | None) -> Array:
    """Zero each value of x [B, ...] with probability `rate`; scale the rest by 1/(1-rate)."""
    if keys is None or not rate:
        return x
    kept = jax.vmap(lambda key: _keep(key, x.shape[1:], rate))(keys)
    return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))


def drop_path(x: Array, rate: float, keys: Array | None) -> Array:
    """Stochastic depth (Huang et al. 2016): zero a whole example of x [B, ...], or scale it."""
    if keys is None or not rate:
        return x
    kept = jax.vmap(lambda key: _keep(key, (), rate))(keys)
    kept = kept.reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))


class Mlp(nnx.Module):
    """fc2(act(fc1 x)), or gated fc2(act(gate x) * fc1 x) (Shazeer 2020)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str,
        *,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: Any = jnp.float32,
    ):
        self.activation, self.dropout = activation, dropout
        self.fc1 = Linear(width, hidden, bias, dtype)
        self.gate = Linear(width, hidden, bias, dtype) if gated else None
        self.fc2 = Linear(hidden, width, bias, dtype)

    def __call__(self, x: Array, *, keys: Array | None = None) -> Array:  # [B, N, D] -> [B, N, D]
        act = ACTIVATIONS[self.activation]
        h = act(self.fc1(x)) if self.gate is None else act(self.gate(x)) * self.fc1(x)  # [B, N, F]
        return self.fc2(dropout(h, self.dropout, keys))


# Masks. Boolean, True = look there. A padding is [B, N]; a mask is 4-D and broadcasts to [B, H, Nq, Nk],
# so that neither is ever taken for the other.


def attention_mask(
    batch: int,
    queries: int,
    keys: int,
    *,
    padding: Array | None = None,
    mask: Array | None = None,
    causal: bool = False,
) -> Array | None:
    """One mask of all that restricts an attention: a padding of its keys [B, Nk], a 4-D mask, causality.

    Raises ValueError on a wrong shape or dtype.
    """
    parts = []
    if padding is not None:
        if padding.dtype != bool or padding.shape != (batch, keys):
            raise ValueError(
                f"padding {padding.dtype} {list(padding.shape)} is not bool [{batch}, {keys}], True at real positions"
            )
        parts.append(padding[:, None, None, :])
    if mask is not None:
        check_mask(mask, (batch, None, queries, keys))  # here too: a 2-D mask would broadcast to the other parts
        parts.append(mask)
    if causal:
        parts.append((jnp.arange(keys) <= jnp.arange(queries)[:, None])[None, None])
    whole = None
    for part in parts:
        whole = part if whole is None else whole & part
    return whole


def from_torch_mask(mask: Any, heads: int = 0) -> Array:
    """torch's boolean masks (True = ignore) as ours: key padding [B, Nk] with heads=0, else attn_mask.

    attn_mask [Nq, Nk] becomes [1, 1, Nq, Nk]; [B*H, Nq, Nk] becomes [B, H, Nq, Nk]. Raises ValueError
    on a float mask, which has no boolean counterpart.
    """
    keep = ~jnp.asarray(mask) if jnp.asarray(mask).dtype == bool else None
    if keep is None:
        raise ValueError(
            f"mask {jnp.asarray(mask).dtype}: only boolean masks are taken; give mask == -inf for one that is added"
        )
    if not heads:
        return keep
    return keep[None, None] if keep.ndim == 2 else keep.reshape(-1, heads, *keep.shape[1:])


class Attention(nnx.Module):
    """Multi-head attention, softmax(Q K^T / sqrt Dh) V per head (Vaswani et al. 2017, section 3.2).

    `key_width` and `value_width` are those of what keys and values are made from; 0: `width`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        *,
        key_width: int = 0,
        value_width: int = 0,
        query_bias: bool = True,
        key_bias: bool = True,
        value_bias: bool = True,
        out_bias: bool = True,
        qk_norm: bool = False,
        eps: float = 1e-6,
        norm_bias: bool = True,
        dropout: float = 0.0,
        dtype: Any = jnp.float32,
    ):
        inner = heads * head_width
        self.heads, self.head_width, self.dropout = heads, head_width, dropout
        self.query = Linear(width, inner, query_bias, dtype)
        self.key = Linear(key_width or width, inner, key_bias, dtype)
        self.value = Linear(value_width or width, inner, value_bias, dtype)
        self.query_norm = LayerNorm(head_width, eps, norm_bias, dtype) if qk_norm else None
        self.key_norm = LayerNorm(head_width, eps, norm_bias, dtype) if qk_norm else None
        self.out = Linear(inner, width, out_bias, dtype)

    def split(self, x: Array) -> Array:  # [B, N, (H Dh)] -> [B, H, N, Dh]
        return x.reshape(*x.shape[:2], self.heads, self.head_width).transpose(0, 2, 1, 3)

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        *,
        keys: Array | None = None,
        tape: Tape | None = None,
    ) -> Array:
        """[B, Nq, D], [B, Nk, Dk], [B, Nk, Dv] -> [B, Nq, D]; a 4-D boolean mask is True where to look.

        A row with nothing to look at has a zero context. `tape["attention"]`, where asked for,
        receives the weights [B, H, Nq, Nk]. Raises ValueError on any other mask.
        """
        return self.attend(query, *self.project(key, value), mask, keys=keys, tape=tape)

    def project(self, key: Array, value: Array) -> tuple[Array, Array]:
        """Keys and values per head, [B, H, Nk, Dh] each: what decoding keeps from step to step."""
        k, v = self.split(self.key(key)), self.split(self.value(value))
        return k if self.key_norm is None else self.key_norm(k), v

    def attend(
        self,
        query: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        *,
        keys: Array | None = None,
        tape: Tape | None = None,
    ) -> Array:
        """The rest of a call, [B, Nq, D] -> [B, Nq, D], on keys and values of `project`."""
        q = self.split(self.query(query))
        q = q if self.query_norm is None else self.query_norm(q)
        check_mask(mask, (len(q), self.heads, q.shape[2], k.shape[2]))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q * self.head_width**-0.5, k)  # [B, H, Nq, Nk]
        weights = jax.nn.softmax(scores.astype(wide(scores.dtype)), axis=-1, where=mask)
        note(tape, "attention", weights)
        weights = dropout(weights.astype(v.dtype), self.dropout, keys)
        context = (weights @ v).transpose(0, 2, 1, 3)  # [B, Nq, H, Dh]
        return self.out(context.reshape(*context.shape[:2], -1))


def check_mask(mask: Array | None, shape: tuple[int, int | None, int, int]) -> None:
    """Refuse what is no boolean 4-D mask for weights of this shape [B, H, Nq, Nk] (None: any)."""
    if mask is None:
        return
    if mask.dtype != bool:
        raise ValueError(
            f"mask {mask.dtype}: only boolean masks are taken, True where to look; a mask that is added to scores is not"
        )
    if mask.ndim != 4 or any(n is not None and m not in (1, n) for m, n in zip(mask.shape, shape, strict=True)):
        wanted = ", ".join("H" if n is None else str(n) for n in shape)
        raise ValueError(
            f"mask {list(mask.shape)} is not 4-D or does not broadcast to [{wanted}] = [B, H, Nq, Nk]; a padding [B, N] goes where paddings go"
        )


class AttentionPool(Attention):
    """One learned probe attends to all tokens, then an mlp (Lee et al. 2019; big_vision's MAP head)."""

    def __init__(
        self, width: int, heads: int, hidden: int, activation: str, eps: float, *, dtype: Any = jnp.float32, **mlp: Any
    ):
        norm_bias = mlp.pop("norm_bias", True)
        super().__init__(width, heads, width // heads, dtype=dtype)
        self.probe = nnx.Param(jnp.zeros((width,), dtype))
        self.norm = LayerNorm(width, eps, norm_bias, dtype)
        self.mlp = Mlp(width, hidden, activation, dtype=dtype, **mlp)

    def pool(self, x: Array) -> Array:  # [B, N, D] -> [B, D]
        probe = jnp.broadcast_to(self.probe[...].astype(x.dtype), (x.shape[0], 1, x.shape[-1]))
        y = self(probe, x, x)
        return (y + self.mlp(self.norm(y)))[:, 0]


# --------------------------------------------------------------- models as trees of named arrays


def split(model: nnx.Module) -> tuple[nnx.GraphDef[Any], dict[str, Any]]:
    """A model as (definition, parameters): a nested dict whose keys are all strings."""
    definition, state = nnx.split(model, nnx.Param)
    return definition, _strings(nnx.to_pure_dict(state))


def merge(definition: nnx.GraphDef[Any], parameters: Mapping[str, Any]) -> Any:
    """The model of `split`, with these parameters."""
    return nnx.merge(definition, nnx.State(_integers(parameters)))


def replace_parameters(model: nnx.Module, parameters: Mapping[str, Any]) -> None:
    """Put these parameters into a model, in place. Raises ValueError where they are not all of its own."""
    if apart := sorted(flatten(split(model)[1]).keys() ^ flatten(parameters).keys()):
        raise ValueError(
            f"{type(model).__name__}: {apart[0]} is only in the module or only in what it is given; its table (config.parameters) has to say it"
        )
    nnx.update(model, nnx.State(_integers(parameters)))


def _strings(tree: Any) -> Any:
    return {str(k): _strings(v) for k, v in tree.items()} if isinstance(tree, Mapping) else tree


def _integers(tree: Any) -> Any:
    """Block numbers as integers again, which is what nnx.List calls its items."""
    return (
        {int(k) if k.isdecimal() else k: _integers(v) for k, v in tree.items()}
        if isinstance(tree, Mapping)
        else nnx.Param(tree)
    )


# ------------------------------------------------------------------------------- initial values


def initial_values(
    parameters: Mapping[str, Parameter], key: Array, dtype: Any = jnp.float32, computed: Mapping[str, Any] | None = None
) -> dict[str, Array]:
    """Initial values {dotted name: array} as their table says; `computed` {dotted name: array} are those that it leaves to the network.

    A parameter's key is folded from its name, so a network with one layer more starts the others alike.
    """
    values = {}
    for name, (shape, _, start) in parameters.items():
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        if start.how == "constant":
            values[name] = jnp.full(shape, start.size, dtype)
        elif start.how == "normal":
            values[name] = jax.random.normal(own, shape, dtype) * start.size
        elif start.how == "truncated":
            values[name] = jax.random.truncated_normal(own, -2, 2, shape, dtype) * start.size
        elif start.how == "uniform":
            values[name] = jax.random.uniform(own, shape, dtype, -start.size, start.size)
        else:
            values[name] = jnp.asarray((computed or {})[name], dtype)
    return values
