"""Networks from configs: the class that computes them, networks without weights, initial weights."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from ..config.network import NetworkConfig
from ..config.trees import flatten, unflatten
from ..machine.numerics import with_fixed_settings
from .lowering import Lowering, of_evaluation
from .state import initial_values, split_model


def network_class(config: NetworkConfig) -> Any:
    """The class that computes a config's network: `cls(config, *, rngs=None, dtype, param_dtype, lowering)`."""
    return pkgutil.resolve_name(config.computes)


def definition(
    config: NetworkConfig,
    dtype: Any = jnp.float32,
    param_dtype: Any = jnp.float32,
    lowering: Lowering | None = None,
) -> Any:
    """A network without weights, for `state.merge`: no arrays are allocated. By default lowered as for evaluation."""
    cls, how = network_class(config), lowering or of_evaluation(dtype)
    dtype = jnp.float32 if how.rounds else dtype
    network = nnx.eval_shape(lambda: cls(config, dtype=dtype, param_dtype=param_dtype, lowering=how))
    made, tree = split_model(network)
    found, table = {name: x.shape for name, x in flatten(tree).items()}, config.shapes()
    if different := sorted(name for name in found.keys() | table.keys() if found.get(name) != table.get(name)):
        name = different[0]
        raise ValueError(
            f"{cls.__name__}: {name} is {found.get(name, 'absent')} in the module "
            f"and {table.get(name, 'absent')} in its table (config.parameters): "
            "make both the same, so that its kind and its start are known"
        )
    return made


@with_fixed_settings
def start(
    config: NetworkConfig, key: Array, dtype: Any = jnp.float32, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Initial parameters of a network."""
    known = {name: jnp.asarray(array, dtype) for name, array in (given or {}).items()}
    drawn = {name: parameter for name, parameter in config.parameters().items() if name not in known}
    # A network of another package may have none.
    computed: Any = getattr(network_class(config), "computed", lambda config: {})
    return unflatten(known | initial_values(drawn, key, dtype, computed(config)))


def describe_network(config: NetworkConfig) -> str:
    """A network in a few words: its size, parameters and cost."""
    size, cost = config.describe()
    return f"{size}; {config.parameter_count():,} parameters, {cost}"
