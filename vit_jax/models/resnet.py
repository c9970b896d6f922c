"""The ResNet (He et al. 2016, arXiv 1512.03385) as torchvision has it, for use alone: it is never trained here.

Batch norm would make the examples of a batch depend on each other, so that a run would not be the same on one device
and on eight. Here it always normalises by the mean and variance that are stored with its weights.

Dimensions: B batch, h and w height and width, C channels, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from ..config.fields import pair
from ..errors import ArgumentError
from ..machine.numerics import mesh_agnostic, with_promotion
from . import state
from .layers import Intermediates, Linear, accumulation_dtype, capture, sow
from .lowering import Lowering
from .resnet_config import CAPTURED, EPS, Convolution, ResNetConfig


class Normalised(nnx.Module):
    """A convolution without bias, then batch norm by stored statistics (Ioffe and Szegedy 2015, arXiv 1502.03167).

    The kernel is stored as [rows, columns, inputs of a group, outputs].
    """

    def __init__(self, c: Convolution, dtype: Any = jnp.float32):
        self.c = c
        self.kernel = nnx.Param(jnp.zeros(c.shape, dtype))
        self.scale = nnx.Param(jnp.ones((c.n_out,), dtype))
        self.bias = nnx.Param(jnp.zeros((c.n_out,), dtype))
        self.mean = nnx.Param(jnp.zeros((c.n_out,), dtype))
        self.variance = nnx.Param(jnp.ones((c.n_out,), dtype))

    def __call__(self, x: Array) -> Array:  # [B, h, w, in] -> [B, h/stride, w/stride, out]
        padding = [(self.c.size // 2, self.c.size // 2)] * 2
        y = lax.conv_general_dilated(
            x,
            self.kernel[...].astype(x.dtype),
            (self.c.stride, self.c.stride),
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=self.c.groups,
        )
        scale, bias, mean, variance = (
            p[...].astype(accumulation_dtype(x.dtype)) for p in (self.scale, self.bias, self.mean, self.variance)
        )
        factor = scale * lax.rsqrt(variance + EPS)
        return (y.astype(factor.dtype) * factor + (bias - mean * factor)).astype(x.dtype)


class Block(nnx.Module):
    """Convolutions with ReLU between them, added to their input; a `shortcut` gives that input the same shape."""

    def __init__(self, convolutions: Mapping[str, Convolution], dtype: Any = jnp.float32):
        made = {name: Normalised(one, dtype) for name, one in convolutions.items()}
        self.shortcut = made.pop("shortcut", None)
        self.convs = nnx.List(made.values())

    def __call__(self, x: Array) -> Array:  # [B, h, w, in] -> [B, h/stride, w/stride, out]
        y = x
        for i, convolution in enumerate(self.convs):
            y = convolution(jax.nn.relu(y) if i else y)
        return jax.nn.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(state.Network):
    """A ResNet in evaluation mode: `model(images) -> logits`. Norm, pooling and head compute in float32 or wider."""

    def add_layers(self, c: ResNetConfig, param_dtype: Any, lowering: Lowering) -> None:
        (_, stem), *others = c.convolutions()
        self.stem = Normalised(stem, param_dtype)
        of_blocks: dict[tuple[str, str], dict[str, Convolution]] = {}  # {(stage, block): its convolutions}
        for name, one in others:
            _, stage, index, part = name.split(".", 3)
            of_blocks.setdefault((stage, index), {})[part] = one
        self.stages = nnx.List(
            nnx.List(Block(of_blocks[str(stage), str(index)], param_dtype) for index in range(depth))
            for stage, depth in enumerate(c.stages)
        )
        self.head = Linear(c.features, c.classes, True, param_dtype, lowering)

    @mesh_agnostic
    @with_promotion
    def __call__(self, images: Array, *, intermediates: Intermediates | None = None) -> Array:
        """The logits of images: images int [B, h, w, C] -> [B, K], float32 or wider."""
        expected = (*pair(self.config.image), self.config.channels)
        if images.ndim != 4 or images.shape[1:] != expected:
            raise ArgumentError(
                f"images {images.shape} are not [B, {', '.join(map(str, expected))}], which this network takes"
            )
        if not jnp.issubdtype(images.dtype, jnp.floating):
            raise ArgumentError(f"images are {images.dtype}: give floating-point numbers, normalised as in training")
        x = max_pool(jax.nn.relu(self.stem(images.astype(self.dtype))))
        for stage in self.stages:
            for block in stage:
                x = block(x)
        feature = x.astype(accumulation_dtype(x.dtype)).mean((1, 2))
        sow(intermediates, "pooled", feature)
        return self.head(feature)

    def capture(self, images: Array, names: Iterable[str]) -> dict[str, Array]:
        """Inner values of a pass: names [B, D] -> {name: array}."""
        return capture(names, CAPTURED, lambda wanted: self(images, intermediates=wanted))


def max_pool(x: Array) -> Array:
    """The maximum of each 3x3 pixels, at every second row and column: [B, h, w, D] -> [B, h/2, w/2, D]."""
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-jnp.inf)
    for axis in (1, 2):  # with slices, which ONNX has as well; of lax.reduce_window jax2onnx makes a MaxPool of 4 axes
        last = (x.shape[axis] - 1) // 2 * 2  # one after the first pixel of the last window
        first, second, third = (lax.slice_in_dim(x, k, k + last - 1, 2, axis) for k in range(3))
        x = jnp.maximum(jnp.maximum(first, second), third)
    return x
