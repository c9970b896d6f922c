"""The network and the training step of vit_jax, written with the layers of flax and optax, for comparison.

It is written as a user of flax would: nnx.Conv for the patches, nnx.MultiHeadAttention, nnx.LayerNorm (with its
one-pass variance), nnx.Linear, jax.nn.gelu, optax.adamw. The step is split/merge under jax.jit with the state donated,
which takes less time on the host than nnx.jit (`step.py --nnx-jit` measures that). It supports the fields of a config
that the compared presets use, and refuses any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

from vit_jax.config.run import OptimConfig
from vit_jax.models.vit_config import ViTConfig

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}


class Block(nnx.Module):
    """A pre-norm block."""

    def __init__(self, c: ViTConfig, rngs: nnx.Rngs, dtype: Any):
        self.norm1 = nnx.LayerNorm(c.width, epsilon=c.eps, dtype=dtype, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(c.heads, c.width, decode=False, dtype=dtype, rngs=rngs)
        self.norm2 = nnx.LayerNorm(c.width, epsilon=c.eps, dtype=dtype, rngs=rngs)
        self.fc1 = nnx.Linear(c.width, c.hidden, dtype=dtype, rngs=rngs)
        self.fc2 = nnx.Linear(c.hidden, c.width, dtype=dtype, rngs=rngs)
        self.activation = ACTIVATIONS[c.activation]

    def __call__(self, x: Array) -> Array:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(self.activation(self.fc1(self.norm2(x))))


class PlainViT(nnx.Module):
    """The network of a config: `model(images [B, h, w, C]) -> logits [B, K]`, which computes in `dtype`.

    With `remat` the backward pass computes each block again, of which it keeps the input alone. Raises ValueError for
    other networks.
    """

    def __init__(self, c: ViTConfig, rngs: nnx.Rngs, dtype: Any = None, remat: bool = False):
        _check(c)
        self.remat = remat
        size = (c.patch, c.patch) if isinstance(c.patch, int) else c.patch
        self.patch = nnx.Conv(c.channels, c.width, size, strides=size, padding="VALID", dtype=dtype, rngs=rngs)
        self.stem_activation = ACTIVATIONS[c.stem_activation]
        self.cls_token = nnx.Param(jnp.zeros((1, 1, c.width)))
        self.position = nnx.Param(jnp.zeros((1, c.patches + 1, c.width)))
        self.blocks = nnx.List([Block(c, rngs, dtype) for _ in range(c.depth)])
        self.norm = nnx.LayerNorm(c.width, epsilon=c.eps, dtype=dtype, rngs=rngs)
        self.head_hidden = nnx.Linear(c.width, c.head_hidden, dtype=dtype, rngs=rngs) if c.head_hidden else None
        self.head_activation = ACTIVATIONS[c.head_activation] if c.head_hidden else None
        self.head = nnx.Linear(c.head_hidden or c.width, c.classes, dtype=dtype, rngs=rngs)

    def __call__(self, images: Array) -> Array:
        x = self.stem_activation(self.patch(images))
        x = x.reshape(len(x), -1, x.shape[-1])
        cls = jnp.broadcast_to(self.cls_token[...], (len(x), 1, x.shape[-1]))
        x = jnp.concatenate([cls.astype(x.dtype), x], axis=1) + self.position[...].astype(x.dtype)
        for block in self.blocks:
            x = nnx.remat(type(block).__call__)(block, x) if self.remat else block(x)
        x = self.norm(x)[:, 0]
        if self.head_hidden is not None and self.head_activation is not None:
            x = self.head_activation(self.head_hidden(x))
        return self.head(x)


# The fields that PlainViT reads, and those of initial values, which do not matter here. All others must have their
# defaults.
READ = {
    "image",
    "channels",
    "patch",
    "classes",
    "width",
    "depth",
    "heads",
    "hidden",
    "eps",
    "stem_activation",
    "activation",
    "head_hidden",
    "head_activation",
}
STARTS = {"init", "attention_init", "init_std", "token_std", "position_std", "head_zero"}


def _check(c: ViTConfig) -> None:
    """Raise ValueError for a config of another network than PlainViT computes."""
    other = [f.name for f in dataclasses.fields(c) if f.name not in READ | STARTS and getattr(c, f.name) != f.default]
    if other or c.activation not in ACTIVATIONS or (c.head_hidden and c.head_activation not in ACTIVATIONS):
        raise ValueError(f"the plain network has no counterpart to {', '.join(other) or 'these activations'} of {c}")


def weights(parameters: dict[str, np.ndarray], c: ViTConfig) -> dict[str, np.ndarray]:
    """The parameters {dotted name: array} of vit_jax as those of PlainViT: reshaped, some under another name."""
    heads, inner = (c.heads, c.resolved_head_width), c.heads * c.resolved_head_width
    size = (c.patch, c.patch) if isinstance(c.patch, int) else c.patch
    moved = {}
    for name, x in parameters.items():
        parent, _, leaf = name.rpartition(".")
        if name == "patch.kernel":
            x = x.reshape(*size, c.channels, c.width)
        elif name in ("cls_token", "position"):
            x = x.reshape(1, -1, c.width)
        elif parent.endswith(("query", "key", "value")):
            x = x.reshape(*((c.width, *heads) if leaf == "kernel" else heads))
        elif parent.endswith("attention.out") and leaf == "kernel":
            x = x.reshape(*heads, c.width)
        assert inner == c.width
        moved[name.replace("mlp.", "")] = x
    return moved


def load(model: PlainViT, parameters: dict[str, np.ndarray], c: ViTConfig) -> None:
    """Load the parameters {dotted name: array} of vit_jax into the model."""
    moved = weights(parameters, c)
    state = nnx.state(model, nnx.Param)
    for path, variable in nnx.to_flat_state(state):
        x = moved.pop(".".join(map(str, path)))
        if x.shape != variable.shape:
            raise ValueError(f"{path}: {x.shape} is not {variable.shape}")
        variable.set_value(jnp.array(x))  # a copy, because the step donates its state
    if moved:
        raise ValueError(f"the model has no parameters {', '.join(moved)}")
    nnx.update(model, state)


def loss(model: Any, images: Array, labels: Array, mean: tuple[float, ...], std: tuple[float, ...]) -> Array:
    """The mean cross entropy of uint8 images [B, h, w, C] with labels int [B]."""
    x = (images.astype(jnp.float32) / 255 - jnp.asarray(mean)) / jnp.asarray(std)
    return optax.softmax_cross_entropy_with_integer_labels(model(x).astype(jnp.float32), labels).mean()


def optimizer(c: OptimConfig) -> optax.GradientTransformation:
    """optax.adamw at a constant rate, with weight decay on kernels only, as in vit_jax."""
    return optax.adamw(c.lr, c.beta1, c.beta2, c.eps, weight_decay=c.weight_decay, mask=_kernels)


def _kernels(parameters: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: any(getattr(p, "key", None) == "kernel" for p in path), parameters
    )


class Trainer:
    """A training step with its state: `step(images, labels) -> loss`."""

    def __init__(
        self, model: PlainViT, c: OptimConfig, mean: tuple[float, ...], std: tuple[float, ...], nnx_jit: bool = False
    ):
        self.nnx_jit, rule = nnx_jit, optimizer(c)
        if nnx_jit:
            self.model = model
            self.optimizer = nnx.Optimizer(model, rule, wrt=nnx.Param)

            @partial(nnx.jit, donate_argnums=(0, 1))
            def update(model: PlainViT, optimizer: nnx.Optimizer, images: Array, labels: Array) -> Array:
                value, gradients = nnx.value_and_grad(loss)(model, images, labels, mean, std)
                optimizer.update(model, gradients)
                return value

            self.compiled: Any = update
        else:
            definition, self.parameters, others = nnx.split(model, nnx.Param, ...)
            self.moments = rule.init(self.parameters)

            @partial(jax.jit, donate_argnums=(0, 1))
            def step(parameters: Any, moments: Any, others: Any, images: Array, labels: Array) -> Any:
                def of(parameters: Any) -> Array:
                    return loss(nnx.merge(definition, parameters, others), images, labels, mean, std)

                value, gradients = jax.value_and_grad(of)(parameters)
                updates, moments = rule.update(gradients, moments, parameters)
                return value, optax.apply_updates(parameters, updates), moments

            self.others, self.compiled = others, step

    def step(self, images: Any, labels: Any) -> Array:
        """Do one update; returns the loss before it."""
        if self.nnx_jit:
            return self.compiled(self.model, self.optimizer, images, labels)
        value, self.parameters, self.moments = self.compiled(self.parameters, self.moments, self.others, images, labels)
        return value
