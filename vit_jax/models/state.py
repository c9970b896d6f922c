"""What networks share: their base class, and their parts, a definition and a nested dict of arrays, drawn at first."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn, assert_never

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ..config.network import Parameter
from ..config.trees import flatten, unflatten
from ..errors import ArgumentError
from .lowering import PLAIN, Lowering


class Network(nnx.Module):
    """A network that is called as `model(inputs, keys=None)`, where keys mean a training pass.

    Args:
        config: of the network's own class.
        rngs: what the weights are drawn with, as the config states; None: they are constants, to be replaced.
        lowering: how programs are written for their devices, as a training step chooses.
    """

    def __init__(
        self,
        config: Any,
        *,
        rngs: nnx.Rngs | None = None,
        dtype: Any = jnp.float32,
        param_dtype: Any = jnp.float32,
        lowering: Lowering = PLAIN,
    ):
        config.check()
        self.config, self.dtype = config, jnp.dtype(dtype)
        self.add_layers(config, param_dtype, lowering)
        if rngs is not None:
            drawn = initial_values(config.parameters(), rngs.params(), param_dtype, self.computed(config))
            replace_parameters(self, unflatten(drawn))

    def add_layers(self, c: Any, param_dtype: Any, lowering: Lowering) -> None:
        """Make the layers of a network of this config."""
        raise NotImplementedError

    @classmethod
    def computed(cls, c: Any) -> dict[str, np.ndarray]:
        """Initial values, float64, of the parameters whose start is "computed"."""
        return {}

    def train(self, **attributes: Any) -> None:
        """Do nothing: there is no mode."""
        if self.config != self.config.without_dropout():
            raise ArgumentError(
                "networks here have no training mode: dropout is drawn in calls that have PRNG keys, one an example; "
                "give keys=jax.random.split(key, batch) to the call"
            )

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_nnx_tabulate_id":  # what nnx.tabulate puts around methods asks for it, after that has failed
            for each in {cls for _, module in nnx.iter_modules(self) for cls in type(module).__mro__}:
                for method, function in [*vars(each).items()]:
                    if inspect.isfunction(function) and function.__globals__["__name__"] == "flax.nnx.summary":
                        setattr(each, method, vars(function)["__wrapped__"])
            raise ArgumentError("an earlier call of nnx.tabulate failed in the middle; its traces are gone: call again")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


def split_model(model: nnx.Module) -> tuple[nnx.GraphDef[Any], dict[str, Any]]:
    """A model as (definition, parameters); parameters are a nested dict of arrays whose keys are all strings."""
    definition, state = nnx.split(model, nnx.Param)
    return definition, _strings(nnx.to_pure_dict(state))


def merge(definition: nnx.GraphDef[Any], parameters: Mapping[str, Any]) -> Any:
    """A model from what `split_model` gives."""
    return nnx.merge(definition, nnx.State(_integers(parameters)))


def replace_parameters(model: nnx.Module, parameters: Mapping[str, Any]) -> None:
    """Replace all parameters of a model, in place."""
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


def initial_values(
    parameters: Mapping[str, Parameter], key: Array, dtype: Any = jnp.float32, computed: Mapping[str, Any] = {}
) -> dict[str, Array]:
    """Initial values as each parameter's `start` in the table states -> {dotted name: array of `dtype`}."""
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
        elif start.how == "computed":
            values[name] = jnp.asarray(computed[name], dtype)
        else:
            assert_never(start.how)
    return values
