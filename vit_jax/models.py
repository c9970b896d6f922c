"""From a config to its network: the class that its row names, and untrained networks by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from .config import ModelConfig, network_of, parameters, shapes
from .layers import initial_values, split
from .presets import sized
from .runs import flatten, unflatten


def network_class(config: ModelConfig) -> Any:
    """The class that computes the networks of such configs: `cls(config, *, rngs=None, dtype, param_dtype)`."""
    module, _, name = network_of(config).jax.partition(":")
    return getattr(import_module(module), name)


def definition(config: ModelConfig, dtype: Any = jnp.float32, param_dtype: Any = jnp.float32) -> Any:
    """The network without weights, for `layers.merge`; nothing is allocated.

    Raises ValueError where its parameters are not those of its table.
    """
    cls = network_class(config)
    made, tree = split(nnx.eval_shape(lambda: cls(config, dtype=dtype, param_dtype=param_dtype)))
    found, table = {name: x.shape for name, x in flatten(tree).items()}, shapes(config)
    if apart := sorted(name for name in found.keys() | table.keys() if found.get(name) != table.get(name)):
        said = f"{found.get(apart[0], 'absent')} in the module and {table.get(apart[0], 'absent')} in its table (config.parameters)"
        raise ValueError(
            f"{cls.__name__}: {apart[0]} is {said}: make both the same, so that its kind and its start are known"
        )
    return made


def start(config: ModelConfig, key: Array, dtype: Any = jnp.float32) -> dict[str, Any]:
    """Random initial parameters of a network, as the nested dict that `layers.split` gives."""
    computed = getattr(network_class(config), "computed", None)
    return unflatten(initial_values(parameters(config), key, dtype, computed(config) if computed else {}))


def build(name: str, classes: int = 1000, image: int = 224, seed: int = 0, **fields: Any) -> Any:
    """An untrained Vision Transformer by name (vit-ti16, vit-s16, vit-b32, vit-l16, vit-h14, vit-g14).

    `fields` are ViTConfig's, such as pool="mean". Raises UserError on an unknown name.
    """
    config = sized(name, classes, image, **fields)
    return network_class(config)(config, rngs=nnx.Rngs(seed))
