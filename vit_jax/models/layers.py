"""The layers that the models are built from: linear maps, norms, activations, attention, dropout.

Dimensions: B batch, N tokens, D width, H heads, Dh head width, I = H*Dh, F hidden; Nq queries, Nk keys. Parameters
have the dtype that they were created with (float32, or float64); a layer computes in the dtype of its input, but norms
and the softmax compute in float32 or wider.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ..config.parameters import Parameter
from ..config.trees import flatten
from .attention_core import Causal, drop, plain_or_fused
from .rotary import angles, apply_rope

Intermediates = dict[
    str, Any
]  # inner values that a caller asks for: {name: None} before a forward pass, {name: array} after


def sow(intermediates: Intermediates | None, name: str, value: Array) -> None:
    """Add a value to the intermediates, if they ask for its name."""
    if intermediates is not None and name in intermediates:
        intermediates[name] = value


def accumulation_dtype(dtype: Any) -> Any:
    """The dtype in which reductions of `dtype` are computed: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


class Linear(nnx.Module):
    """y = x K + b, with the kernel K stored as [in, out].

    Leading axes are flattened for the product: on CPU, XLA computes a product of two matrices about 1.06 times as fast
    as the same product with a batch and a token axis.
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True, dtype: Any = jnp.float32):
        self.kernel = nnx.Param(jnp.zeros((n_in, n_out), dtype))
        self.bias = nnx.Param(jnp.zeros((n_out,), dtype)) if bias else None

    def __call__(self, x: Array) -> Array:  # [..., in] -> [..., out]
        return self.affine(x, self.kernel[...])

    def affine(self, x: Array, kernel: Array) -> Array:
        """x K + b with another form of the kernel."""
        y = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
        y = y.reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class LayerNorm(nnx.Module):
    """y = (x - mean) / sqrt(var + eps) * scale + bias over the last axis (Ba et al. 2016, arXiv 1607.06450).

    The variance is the mean of (x - mean)^2: the one-pass form E[x^2] - E[x]^2 loses all digits if the mean is large.
    """

    def __init__(self, width: int, eps: float, bias: bool = True, dtype: Any = jnp.float32):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.bias = nnx.Param(jnp.zeros((width,), dtype)) if bias else None

    def __call__(self, x: Array) -> Array:  # [..., D] -> [..., D]
        centred = x.astype(accumulation_dtype(x.dtype))
        centred = centred - centred.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + self.eps) * self.scale[...].astype(centred.dtype)
        y = y if self.bias is None else y + self.bias[...].astype(centred.dtype)
        return y.astype(x.dtype)


class RMSNorm(LayerNorm):
    """y = x / sqrt(mean(x^2) + eps) * scale over the last axis, no bias (Zhang & Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float, bias: bool = False, dtype: Any = jnp.float32):
        super().__init__(width, eps, False, dtype)

    def __call__(self, x: Array) -> Array:  # [..., D] -> [..., D]
        y = x.astype(accumulation_dtype(x.dtype))
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.eps) * self.scale[...].astype(y.dtype)
        return y.astype(x.dtype)


NORMS: dict[str, type[LayerNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


def gelu(x: Array) -> Array:
    """Exact GELU, x/2 (1 + erf(x / sqrt 2)) (Hendrycks & Gimpel 2016, arXiv 1606.08415), in the dtype of x.

    With erf, as torch has it: on CPU three times as fast as the erfc form of jax.nn.gelu.
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


# Dropout. Every example of a batch has its own PRNG key, so what is dropped does not depend on how the batch is cut for
# devices or accumulation. Keys [B] mean training; None means evaluation.


@overload
def fold(keys: Array, site: int | Array) -> Array: ...
@overload
def fold(keys: None, site: int | Array) -> None: ...
@overload
def fold(keys: Array | None, site: int | Array) -> Array | None: ...
def fold(keys: Array | None, site: int | Array) -> Array | None:
    """The keys of one dropout site of a network.

    Args:
        keys: PRNG keys [B], one an example; None in evaluation.
        site: the number of the site, an int or int32 [].

    Returns:
        Keys [B], folded from `keys` and `site`; None where `keys` is None.
    """
    return None if keys is None else jax.vmap(jax.random.fold_in, (0, None))(keys, site)


def _keep(key: Array, shape: tuple[int, ...], rate: float | Array) -> Array:
    """A boolean mask of this shape that is True with probability 1 - rate, to within 2^-16.

    A rate that is an array, uint16 [], is in parts of 2^16, as `_parts` gives it. There are 16 random bits for each
    value, not 32, because drawing bits is most of the cost of dropout.
    """
    size = math.prod(shape)
    bits = jax.random.bits(key, ((size + 1) // 2,), jnp.uint32)
    bits = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(-1)[:size].reshape(shape)
    return bits >= (rate if isinstance(rate, Array) else _parts(rate))


def _parts(rate: float) -> np.uint16:
    """A rate in parts of 2^16, at most all but one."""
    return np.uint16(min(round(rate * 2**16), 2**16 - 1))


def keep(shape: tuple[int, ...], rate: float, keys: Array | None) -> Array | None:
    """What dropout keeps of an array of this shape [B, ...], as booleans; None if nothing is dropped."""
    return jax.vmap(lambda key: _keep(key, shape[1:], rate))(keys) if keys is not None and rate else None


def dropout(x: Array, rate: float, keys: Array | None) -> Array:
    """Zero each value of x [B, ...] with probability `rate` and scale the rest by 1/(1-rate); keys None: return x."""
    return drop(x, keep(x.shape, rate, keys), rate)


def drop_path(x: Array, rates: Sequence[float], i: int | Array, keys: Array | None) -> Array:
    """Stochastic depth (Huang et al. 2016): zero whole examples at random, and scale the rest by 1 / (1 - rate).

    Args:
        x: what a branch adds to its input, [B, ...].
        rates: the rate of each block.
        i: the number of the block, an int, or an int32 [] that is known only when the step runs.
        keys: PRNG keys [B], one an example; None: x is returned.
    """
    if keys is None or not any(rates) or (isinstance(i, int) and not rates[i]):
        return x
    if isinstance(i, int):
        rate: Any = rates[i]
        scale: Any = 1 - rate
    else:
        rate, scale = jnp.asarray([*map(_parts, rates)])[i], jnp.asarray([1 - rate for rate in rates], x.dtype)[i]
    kept = jax.vmap(lambda key: _keep(key, (), rate))(keys)
    kept = kept.reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(kept, x / scale, jnp.zeros((), x.dtype))


class Mlp(nnx.Module):
    """fc2(dropout(act(fc1 x))), gated: fc2(dropout(act(gate x) * fc1 x)) (Shazeer 2020, arXiv 2002.05202).

    Args:
        width: D, of inputs and outputs.
        hidden: F, width of the hidden layer.
        activation: a key of ACTIVATIONS.
        gated: whether there is a gate.
        bias: whether the projections have biases.
        dropout: rate of the hidden layer's dropout, where a call has keys [B].
        inner_norm: what is applied before fc2; None: nothing.
        dtype: of the parameters.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str,
        *,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        inner_norm: LayerNorm | None = None,
        dtype: Any = jnp.float32,
    ):
        self.activation, self.dropout = activation, dropout
        self.fc1 = Linear(width, hidden, bias, dtype)
        self.gate = Linear(width, hidden, bias, dtype) if gated else None
        self.inner_norm = inner_norm
        self.fc2 = Linear(hidden, width, bias, dtype)

    def __call__(self, x: Array, *, keys: Array | None = None) -> Array:  # [B, N, D] -> [B, N, D]
        act = ACTIVATIONS[self.activation]
        h = act(self.fc1(x)) if self.gate is None else act(self.gate(x)) * self.fc1(x)  # [B, N, F]
        h = dropout(h, self.dropout, keys)
        return self.fc2(h if self.inner_norm is None else self.inner_norm(h))


# Masks are boolean, True where a query may attend to a key. A padding is [B, N], True at real tokens; a mask is 4-D and
# broadcasts to [B, H, Nq, Nk], so the two cannot be confused.


def attention_mask(
    batch: int,
    query_length: int,
    key_length: int,
    *,
    padding: Array | None = None,
    mask: Array | None = None,
    causal: bool = False,
) -> Array | None:
    """What masks an attention, as one mask.

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
            raise ValueError(
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
    combined = None
    for each in masks:
        combined = each if combined is None else combined & each
    return combined


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
    keep = ~jnp.asarray(mask) if jnp.asarray(mask).dtype == bool else None
    if keep is None:
        raise ValueError(
            f"mask {jnp.asarray(mask).dtype}: only boolean masks are taken; for an additive one give mask == -inf"
        )
    if not heads:
        return keep
    return keep[None, None] if keep.ndim == 2 else keep.reshape(-1, heads, *keep.shape[1:])


class Attention(nnx.Module):
    """Multi-head attention, softmax(Q K^T / sqrt Dh) V per head (Vaswani et al. 2017, arXiv 1706.03762, section 3.2).

    Args:
        width: D, of queries and outputs.
        heads: H.
        head_width: Dh.
        key_width: width of the inputs for keys; 0: D.
        value_width: width of the inputs for values; 0: D.
        bias: whether query, key, value and out have biases, each or all.
        query_norm: what is applied to the queries of each head; None: nothing.
        key_norm: likewise to the keys.
        inner_norm: what is applied to the context of all heads, before the output projection; None: nothing.
        dropout: rate of the weights' dropout, where a call has keys.
        pairs: the values that rotary positions turn together, as in `rotary.turn`; empty: there are none.
        mixed: whether the frequencies of rotary positions are learned.
        dtype: of the parameters.
    """

    fused = False  # whether a fused kernel computes what it can

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
        dtype: Any = jnp.float32,
    ):
        inner = heads * head_width
        query_bias, key_bias, value_bias, out_bias = bias if isinstance(bias, tuple) else (bias,) * 4
        self.heads, self.head_width, self.dropout, self.pairs = heads, head_width, dropout, pairs
        self.query = Linear(width, inner, query_bias, dtype)
        self.key = Linear(key_width or width, inner, key_bias, dtype)
        self.value = Linear(value_width or width, inner, value_bias, dtype)
        self.query_norm, self.key_norm, self.inner_norm = query_norm, key_norm, inner_norm
        self.out = Linear(inner, width, out_bias, dtype)
        self.frequencies = nnx.Param(jnp.zeros((2, heads, head_width // 2), dtype)) if mixed else None

    def split_heads(self, x: Array) -> Array:
        """[B, N, (H Dh)] -> [B, H, N, Dh]."""
        return x.reshape(*x.shape[:2], self.heads, self.head_width).transpose(0, 2, 1, 3)

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | Causal | None = None,
        *,
        rotary: Array | None = None,
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
            rotary: the rotary table of the last tokens, as `rotary.angles` takes it.
            keys: PRNG keys [B], one an example, that draw dropout; None: evaluation.
            intermediates: receives the weights [B, H, Nq, Nk] if it has the name "attention".

        Returns:
            [B, Nq, D].

        Raises:
            ValueError: for a mask of another shape or dtype.
        """
        k, v = self.project(key, value)
        if rotary is not None:
            rotary = angles(rotary, None if self.frequencies is None else self.frequencies[...])
            k = apply_rope(k, rotary, self.pairs)
        return self.attend(query, k, v, mask, rotary=rotary, keys=keys, intermediates=intermediates)

    def project(self, key: Array, value: Array) -> tuple[Array, Array]:
        """Keys and values per head, [B, H, Nk, Dh] each; decoding caches them between steps."""
        k, v = self.split_heads(self.key(key)), self.split_heads(self.value(value))
        return k if self.key_norm is None else self.key_norm(k), v

    def attend(
        self,
        query: Array,
        k: Array,
        v: Array,
        mask: Array | Causal | None = None,
        *,
        rotary: Array | None = None,
        keys: Array | None = None,
        intermediates: Intermediates | None = None,
    ) -> Array:
        """A call with keys and values that `project` has given.

        Args:
            query: [B, Nq, D].
            k: [B, H, Nk, Dh].
            v: [B, H, Nk, Dh].
            mask: as of a call.
            rotary: the angles [..., N, Dh/2] by which `k` is turned already.
            keys, intermediates: as of a call.

        Returns:
            [B, Nq, D].
        """
        q = self.split_heads(self.query(query))
        q = q if self.query_norm is None else self.query_norm(q)
        q = q if rotary is None else apply_rope(q, rotary, self.pairs)
        shape = (q.shape[0], self.heads, q.shape[2], k.shape[2])
        check_mask(mask, shape)
        kept, how = keep(shape, self.dropout, keys), dict(fused=self.fused, captured=intermediates is not None)
        context, weights = plain_or_fused(q * self.head_width**-0.5, k, v, mask, kept, self.dropout, **how)
        sow(intermediates, "attention", weights)
        context = context.transpose(0, 2, 1, 3)  # [B, Nq, H, Dh]
        context = context.reshape(*context.shape[:2], -1)
        return self.out(context if self.inner_norm is None else self.inner_norm(context))


def check_mask(mask: Array | Causal | None, shape: tuple[int, int | None, int, int]) -> None:
    """Raise ValueError if a mask is not boolean, 4-D and broadcastable to `shape` [B, H, Nq, Nk] (None: any size)."""
    mask = mask.array if isinstance(mask, Causal) else mask
    if mask is None:
        return
    if mask.dtype != bool:
        raise ValueError(
            f"mask {mask.dtype}: only boolean masks are taken, True where to attend; for an additive one give mask == 0"
        )
    if mask.ndim != 4 or any(n is not None and m not in (1, n) for m, n in zip(mask.shape, shape, strict=True)):
        wanted = ", ".join("H" if n is None else str(n) for n in shape)
        raise ValueError(
            f"mask {list(mask.shape)} is not 4-D or does not broadcast to [{wanted}] = [B, H, Nq, Nk]; "
            "give it that shape, or give a padding [B, N] as a padding argument"
        )


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


# --------------------------------------------------------------- models as trees of named arrays


def split_model(model: nnx.Module) -> tuple[nnx.GraphDef[Any], dict[str, Any]]:
    """A model as (definition, parameters); parameters are a nested dict of arrays whose keys are all strings."""
    definition, state = nnx.split(model, nnx.Param)
    return definition, _strings(nnx.to_pure_dict(state))


def merge(definition: nnx.GraphDef[Any], parameters: Mapping[str, Any]) -> Any:
    """A model from a definition and parameters, as `split_model` gives them."""
    return nnx.merge(definition, nnx.State(_integers(parameters)))


def replace_parameters(model: nnx.Module, parameters: Mapping[str, Any]) -> None:
    """Replace all parameters of a model, in place. Raises ValueError if the names differ from the model's."""
    if different := sorted(flatten(split_model(model)[1]).keys() ^ flatten(parameters).keys()):
        raise ValueError(
            f"{type(model).__name__}: {different[0]} is only in the module or only in the given parameters: "
            "make the module and its table (config.parameters) the same"
        )
    nnx.update(model, nnx.State(_integers(parameters)))


def _strings(tree: Any) -> Any:
    return {str(k): _strings(v) for k, v in tree.items()} if isinstance(tree, Mapping) else tree


def _integers(tree: Any) -> Any:
    """The tree with block numbers as integers, as nnx.List names its items, and arrays as nnx.Param."""
    return (
        {int(k) if k.isdecimal() else k: _integers(v) for k, v in tree.items()}
        if isinstance(tree, Mapping)
        else nnx.Param(tree)
    )


# ------------------------------------------------------------------------------- initial values


def initial_values(
    parameters: Mapping[str, Parameter], key: Array, dtype: Any = jnp.float32, computed: Mapping[str, Any] | None = None
) -> dict[str, Array]:
    """Initial values as each parameter's `start` in the table states.

    Args:
        parameters: the table, {dotted name: Parameter}.
        key: a PRNG key. That of a parameter is folded from its name, so another layer in the network does not change
            the others' initial values.
        dtype: of the values.
        computed: {dotted name: array} of the parameters whose start is "computed".

    Returns:
        {dotted name: array of `dtype`}.
    """
    values = {}
    for name, (shape, _, start, *_) in parameters.items():
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
