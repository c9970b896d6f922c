"""torch_ref's networks: the independent implementation of files of our own layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError

from ...dialects import torch_ref as names
from ..weights import Weights
from .built import Built, NotLoaded, Unavailable, fill_module, tensors, to_float64


def torch_file(weights: Weights) -> Built:
    """torch_ref's network with the tensors of its own state dict, which no table of ours touches."""
    built = network(weights.config)
    built.module = fill_module(built.module, tensors(weights.tensors))
    return built


def own_file(weights: Weights) -> Built:
    """torch_ref's network with the tensors of a vit-jax file under their own names."""
    try:
        return with_parameters(weights.config, weights.tensors)
    except UserError as error:
        raise NotLoaded(str(error)) from error


def with_parameters(config: NetworkConfig, parameters: Mapping[str, np.ndarray]) -> Built:
    """torch_ref's network of a config with its parameters, in float64."""
    import torch_ref

    built = network(config)
    built.module = torch_ref.load(built.module, {name: to_float64(array) for name, array in parameters.items()})
    return built


def network(config: NetworkConfig) -> Built:
    """torch_ref's network of a config in float64, with initial weights."""
    if not config.twin:
        raise Unavailable(f"torch_ref has no twin of a {config.name}")
    import torch_ref

    def arranged(given: dict[str, Any]) -> dict[str, Any]:
        return {n: x.permute(0, 3, 1, 2) if n in pixels else x for n, x in given.items()}

    def call(module: Any, **given: Any) -> Any:
        return module(**arranged(given))

    def capture(module: Any, given: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
        return dict(module.capture(names=wanted, **arranged(given)))

    pixels = {one.name for one in config.inputs() if one.kind == "pixels"}
    return Built("torch_ref", torch_ref.build(config).double(), names.rows(config), call, capture=capture)
