"""The layers that the models are built from: linear maps, norms, activations, dropout, the mlp, sinusoids.

Dimensions: B batch, N tokens, D width, F hidden. Parameters have the dtype that they were created with (float32, or
float64); a layer computes in the dtype of its input, but norms compute in float32 or wider.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ..errors import ArgumentError
from .lowering import PLAIN, Lowering, rounded_product


def accumulation_dtype(dtype: Any) -> Any:
    """The dtype in which reductions of `dtype` are computed: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


class Linear(nnx.Module):
    """y = x K + b, with the kernel K stored as [in, out].

    Leading axes are flattened for the product: on CPU, XLA computes a product of two matrices about 1.06 times as fast
    as the same product with a batch and a token axis. On a TPU they are not, and heads are axes of the product.
    """

    def __init__(self, n_in: int, n_out: int, bias: bool = True, dtype: Any = jnp.float32, lowering: Lowering = PLAIN):
        self.lowering = lowering
        self.kernel = nnx.Param(jnp.zeros((n_in, n_out), dtype))
        self.bias = nnx.Param(jnp.zeros((n_out,), dtype)) if bias else None

    def __call__(self, x: Array) -> Array:  # [..., in] -> [..., out]
        return self.affine(x, self.kernel[...])

    def affine(self, x: Array, kernel: Array) -> Array:
        """x K + b with another form of the kernel."""
        product = rounded_product if self.lowering.rounds else jnp.matmul
        rows = x if self.lowering.tiled else x.reshape(-1, x.shape[-1])
        y = product(rows, kernel.astype(x.dtype)).reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)

    def to_heads(self, x: Array, heads: int) -> Array:
        """What a call gives, cut into heads: [B, N, in] -> [B, H, N, out / H]."""
        if not self.lowering.tiled:
            y = self(x)
            return y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)
        y = jnp.einsum("bnd,dhe->bhne", x, self.kernel[...].astype(x.dtype).reshape(x.shape[-1], heads, -1))
        return y if self.bias is None else y + self.bias[...].astype(x.dtype).reshape(heads, 1, -1)

    def from_heads(self, x: Array) -> Array:
        """A call with heads side by side: [B, H, N, in / H] -> [B, N, out]."""
        if not self.lowering.tiled:
            x = x.transpose(0, 2, 1, 3)
            return self(x.reshape(*x.shape[:2], -1))
        y = jnp.einsum("bhne,hed->bnd", x, self.kernel[...].astype(x.dtype).reshape(x.shape[1], x.shape[3], -1))
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)


class LayerNorm(nnx.Module):
    """y = (x - mean) / sqrt(var + eps) * scale + bias over the last axis (Ba et al. 2016, arXiv 1607.06450)."""

    centred = True  # whether the mean is subtracted; without that there is no bias either

    def __init__(self, width: int, eps: float, bias: bool = True, dtype: Any = jnp.float32, lowering: Lowering = PLAIN):
        self.eps, self.lowering = eps, lowering
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.bias = nnx.Param(jnp.zeros((width,), dtype)) if bias and self.centred else None

    def __call__(self, x: Array) -> Array:  # [..., D] -> [..., D]
        y = standardise(x.astype(accumulation_dtype(x.dtype)), self.eps, self.centred, self.lowering.platform)
        y = y * self.scale[...].astype(y.dtype)
        y = y if self.bias is None else y + self.bias[...].astype(y.dtype)
        return y.astype(x.dtype)


class RMSNorm(LayerNorm):
    """y = x / sqrt(mean(x^2) + eps) * scale over the last axis, no bias (Zhang & Sennrich 2019, arXiv 1910.07467)."""

    centred = False


@partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def standardise(x: Array, eps: float, centred: bool, platform: str = "") -> Array:
    """(x - mean) / sqrt(var + eps) over the last axis, with a derivative that needs two sums a row; all orders exist.

    The variance is the mean of (x - mean)^2: the one-pass form E[x^2] - E[x]^2 loses all digits if the mean is large.
    """
    return _standardised(x, eps, centred, platform)[0]


@standardise.defjvp
def _derivative(
    eps: float, centred: bool, platform: str, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    """dy = (dx - mean(dx) - y mean(y dx)) / sqrt(var + eps), whose transpose has the same form.

    XLA for a TPU would else write each sum of a row as often as the row has values, in float32.
    """
    (x,), (dx,) = primals, tangents
    y, inverse = _standardised(x, eps, centred, platform)
    store = jax.lax.optimization_barrier if platform == "tpu" else lambda total: total
    along = y * store((y * dx).sum(-1, keepdims=True))
    along = along + store(dx.sum(-1, keepdims=True)) if centred else along
    return y, inverse * dx - inverse / x.shape[-1] * along


def _standardised(x: Array, eps: float, centred: bool, platform: str) -> tuple[Array, Array]:
    """(`standardise`, 1 / sqrt(var + eps)).

    On a GPU a barrier makes of each sum a kernel, whose results the backward pass reads. Left to itself, XLA 0.10 fuses
    both with what reads them, and the backward pass writes x once more in float32, to have its sums over rows.
    """
    store = jax.lax.optimization_barrier if platform == "gpu" else lambda total: total
    if centred:
        x = x - store(x.sum(-1, keepdims=True)) / x.shape[-1]
    inverse = jax.lax.rsqrt(store(jnp.square(x).sum(-1, keepdims=True)) / x.shape[-1] + eps)
    return x * inverse, inverse


NORMS: dict[str, type[LayerNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


def gelu(x: Array) -> Array:
    """Exact GELU, x/2 (1 + erf(x / sqrt 2)) (Hendrycks & Gimpel 2016, arXiv 1606.08415)."""
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


class Convolution(Linear):
    """A convolution of stride 2, then LayerNorm over the channels and GELU: one layer of a stem.

    Such stems are those of Xiao et al. 2021 (arXiv 2106.14881), with LayerNorm in place of batch norm. The kernel is
    stored as [in, out], where in is (row, column, channel). Images are padded with zeros, so that each side is halved.
    It is computed as one product: on CPU, XLA takes six times as long for a convolution inside a loop, as in gradient
    accumulation.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        size: int,
        bias: bool,
        norm: LayerNorm,
        dtype: Any = jnp.float32,
        lowering: Lowering = PLAIN,
    ):
        super().__init__(size**2 * n_in, n_out, bias, dtype, lowering)
        self.norm = norm

    def __call__(self, x: Array) -> Array:  # [B, h, w, in] -> [B, h/2, w/2, out]
        batch, rows, columns, channels = x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]
        size = math.isqrt(self.kernel.shape[0] // channels)
        # The image is padded by 1 and cut into squares of 2x2 pixels. Row i of the outputs begins at pixel row 2i, so
        # square i + a meets the rows 2a and, if the kernel has it, 2a + 1 of the kernel. The gradient is then a sum of
        # four arrays of squares; taken pixel by pixel, it would be one of an array for each place of the kernel.
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        squares = x.reshape(batch, rows + 1, 2, columns + 1, 2, channels).transpose(0, 1, 3, 2, 4, 5)
        kernel = self.kernel[...].reshape(size, size, channels, -1)
        windows, kernels = [], []
        for a, b in np.ndindex(2, 2):
            part = kernel[2 * a : 2 * a + 2, 2 * b : 2 * b + 2]
            read = squares[:, a : a + rows, b : b + columns, : part.shape[0], : part.shape[1]]
            windows.append(read.reshape(batch, rows, columns, -1))
            kernels.append(part.reshape(-1, part.shape[-1]))
        y = self.affine(jnp.concatenate(windows, axis=-1), jnp.concatenate(kernels))
        return gelu(self.norm(y))


# Dropout. Every example of a batch has its own PRNG key, so what is dropped does not depend on how the batch is cut for
# devices or accumulation. Keys [B] mean training; None means evaluation.

Keys = TypeVar("Keys", bound=Array | None)


def fold(keys: Keys, site: int | Array) -> Keys:
    """The keys [B] of one dropout site of a network, folded from `keys` [B] and `site`; None where `keys` is None."""
    return keys if keys is None else cast(Keys, jax.vmap(jax.random.fold_in, (0, None))(keys, site))


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
    """Zero each value with a probability, and scale the rest by 1 / (1 - rate): x [B, ...], keys [B]."""
    return drop(x, keep(x.shape, rate, keys), rate)


def drop(x: Array, kept: Array | None, rate: float) -> Array:
    """x [B, ...] with zeros where `kept`, bool [B, ...], is False, and scaled by 1 / (1 - rate) elsewhere."""
    return x if kept is None else jnp.where(kept, x / (1 - rate), jnp.zeros((), x.dtype))


def drop_path(x: Array, rates: Sequence[float], i: int | Array, keys: Array | None) -> Array:
    """Stochastic depth (Huang et al. 2016): zero whole examples, and scale the rest by 1 / (1 - rate); keys [B]."""
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
    """fc2(dropout(act(fc1 x))), gated: fc2(dropout(act(gate x) * fc1 x)) (Shazeer 2020, arXiv 2002.05202)."""

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
        lowering: Lowering = PLAIN,
    ):
        self.activation, self.dropout, self.lowering = activation, dropout, lowering
        self.fc1 = Linear(width, hidden, bias, dtype, lowering)
        self.gate = Linear(width, hidden, bias, dtype, lowering) if gated else None
        self.inner_norm = inner_norm
        self.fc2 = Linear(hidden, width, bias, dtype, lowering)

    def __call__(self, x: Array, *, keys: Array | None = None) -> Array:  # [B, N, D] -> [B, N, D]
        second = jax.checkpoint(self._second) if self.lowering.recompute else self._second
        return second(self.fc1(x), None if self.gate is None else self.gate(x), keys)

    def _second(self, h: Array, gate: Array | None, keys: Array | None) -> Array:
        """The hidden layer [B, N, F] after its first projections, and the last one: [B, N, D]."""
        act = ACTIVATIONS[self.activation]
        h = act(h) if gate is None else act(gate) * h
        h = dropout(h, self.dropout, keys)
        return self.fc2(h if self.inner_norm is None else self.inner_norm(h))


def sinusoids(kind: str, length: int, width: int) -> np.ndarray:
    """Positions: sines and cosines of t / 10000^(2i/D) (Vaswani et al. 2017, section 3.5). Returns [length, D],
    float64. Kinds: interleaved (column 2i is the sine, 2i+1 the cosine), concatenated (all sines, then all cosines),
    fairseq (so too, of t / 10000^(i/(D/2-1))), one_frequency (sin(t) and cos(t) in turn).
    """
    last = width - 2 if kind == "fairseq" else width
    periods = 1 if kind == "one_frequency" else 10000 ** (np.arange(0, width, 2) / last)
    angles = np.arange(length)[:, None] / np.broadcast_to(periods, (width + 1) // 2)  # [length, D/2]
    halves = np.sin(angles), np.cos(angles)
    if kind in ("concatenated", "fairseq"):
        return np.concatenate(halves, axis=1)
    return np.stack(halves, axis=-1).reshape(length, -1)[:, :width]


def sincos2d(rows: int, columns: int, width: int) -> np.ndarray:
    """[rows*columns, D]: sin and cos of x w, then of y w, with w_k = 10000^(-k / (D/4 - 1)) (Beyer et al. 2022)."""
    omega = 10000.0 ** -(np.arange(width // 4) / max(width // 4 - 1, 1))
    y, x = (axis.reshape(-1, 1) * omega for axis in np.mgrid[:rows, :columns])
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)


# Inner values that a caller asks for: {name: None} before a forward pass, {name: array} after it.
Intermediates = dict[str, Any]


def sow(intermediates: Intermediates | None, name: str, value: Array) -> None:
    """Add a value to the intermediates, if they ask for its name."""
    if intermediates is not None and name in intermediates:
        intermediates[name] = value


def capture(names: Iterable[str], known: Sequence[str], forward: Callable[[Intermediates], Array]) -> Intermediates:
    """The inner values of a forward pass."""
    intermediates: Intermediates = dict.fromkeys(names)
    if unknown := [name for name in intermediates if name not in known]:
        raise ArgumentError(f"cannot capture {unknown[0]!r}; there are {', '.join(known)}")
    sow(intermediates, "logits", forward(intermediates))
    return intermediates
