"""The training steps of others as shapes, for devices that need not be there: big_vision's, and flax's layers.

Each has the loss and the optimizer (optax.adamw, with weight decay on kernels) that ours has beside it, weights in
float32 and products in bfloat16, and no dropout, augmentation or clipping.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import plain, plain_translator
from benchmarks.sides import MEAN, STD
from vit_jax.config.fields import pair
from vit_jax.config.run import RunConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

VARIANTS = {384: "S", 768: "B", 1024: "L"}  # big_vision's name of the size of this width
Loss = Callable[..., Any]  # (parameters, *batch) -> []


class Program(NamedTuple):
    """A jitted step, and the shapes of its arguments."""

    step: Any
    arguments: tuple[Any, ...]


def big_vision(run: RunConfig, batch: Any, devices: list[Any], checkout: Path) -> Program:
    """The step of big_vision's ViT; with remat as its scan has that by default: nothing inside a block is kept."""
    c = run.model
    assert isinstance(c, ViTConfig)
    model = open_big_vision(checkout).Model(
        c.classes,
        variant=f"{VARIANTS[c.width]}/{c.patch}",
        pool_type="tok",
        dtype_mm="bfloat16",
        scan=run.remat != "none",
    )
    image = jnp.zeros((1, *pair(c.image), c.channels))
    parameters = jax.eval_shape(lambda key: model.init(key, image)["params"], jax.random.key(0))

    def loss(parameters: Any, images: Any, labels: Any) -> Any:
        return plain.loss(lambda x: model.apply({"params": parameters}, x, train=True)[0], images, labels, MEAN, STD)

    return program(loss, parameters, run, (batch["image"], batch["label"]), devices)


def open_big_vision(checkout: Path) -> Any:
    """Its module of the ViT, without what that imports only for loading weights, which would need TensorFlow.

    Raises SystemExit where the folder is no checkout of it.
    """
    if not (checkout / "big_vision/models/vit.py").exists():
        raise SystemExit(f"--big-vision {checkout} has no big_vision/models/vit.py: clone google-research/big_vision")
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    for name in ("big_vision.utils", "big_vision.models.common"):
        parent, _, leaf = name.rpartition(".")
        setattr(importlib.import_module(parent), leaf, sys.modules.setdefault(name, types.ModuleType(name)))
    return importlib.import_module("big_vision.models.vit")


def flax(run: RunConfig, batch: Any, devices: list[Any]) -> Program:
    """The step of the same network in flax's layers: plain.py, or plain_translator.py."""
    c, found = run.model, {}

    def build() -> Any:
        if isinstance(c, TransformerConfig):
            model: Any = plain_translator.PlainTranslator(c, nnx.Rngs(0), jnp.bfloat16)
        else:
            model = plain.PlainViT(c, nnx.Rngs(0), jnp.bfloat16, remat=run.remat != "none")
        found["definition"], parameters, others = nnx.split(model, nnx.Param, ...)
        return parameters, others

    parameters, others = jax.eval_shape(build)

    def loss(parameters: Any, *arrays: Any) -> Any:
        model = nnx.merge(found["definition"], parameters, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), others))
        if isinstance(c, TransformerConfig):
            return plain_translator.loss(model, *arrays, pad=c.outputs - 1)
        return plain.loss(model, *arrays, MEAN, STD)

    names = ("source", "target") if isinstance(c, TransformerConfig) else ("image", "label")
    return program(loss, parameters, run, tuple(batch[name] for name in names), devices)


def program(loss: Loss, parameters: Any, run: RunConfig, batch: tuple[Any, ...], devices: list[Any]) -> Program:
    """A step of optax.adamw, whose parameters and moments are donated, with the batch shared by the devices."""
    rule = plain.optimizer(run.optim)

    def step(parameters: Any, moments: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        updates, moments = rule.update(gradients, moments, parameters)
        return value, optax.apply_updates(parameters, updates), moments

    mesh = Mesh(np.asarray(devices), ("data",))
    whole, cut = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def put(tree: Any, sharding: NamedSharding) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    moments = jax.eval_shape(rule.init, parameters)
    return Program(
        jax.jit(step, donate_argnums=(0, 1)), (put(parameters, whole), put(moments, whole), *put(batch, cut))
    )
