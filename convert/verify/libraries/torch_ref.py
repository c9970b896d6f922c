"""torch_ref's networks: the independent implementation of files of our own layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.config import ModelConfig, network_of
from vit_jax.errors import UserError

from ...dialects import torch_ref as names
from ..weights import Weights
from .built import Built, NotLoaded, Unavailable, filled, tensors, wide


def torch_file(weights: Weights) -> Built:
    """torch_ref's network with the tensors of its own state dict, which no table of ours touches."""
    built = network(weights.config)
    built.module = filled(built.module, tensors(weights.tensors))
    return built


def own_file(weights: Weights) -> Built:
    """torch_ref's network with the tensors of a vit-jax file under their own names."""
    try:
        return with_parameters(weights.config, weights.tensors)
    except UserError as error:
        raise NotLoaded(str(error)) from error


def with_parameters(config: ModelConfig, parameters: Mapping[str, np.ndarray]) -> Built:
    """torch_ref's network with parameters {our dotted name: array}. Raises Unavailable where it has none."""
    import torch_ref

    built = network(config)
    built.module = torch_ref.load(built.module, {name: wide(array) for name, array in parameters.items()})
    return built


def network(config: ModelConfig) -> Built:
    """torch_ref's network of a config in float64, with initial weights. Raises Unavailable where it has none."""
    row = network_of(config)
    if not row.torch:
        raise Unavailable(f"torch_ref has no twin of a {row.name}")
    import torch_ref

    def arguments(given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        given = {n: x.permute(0, 3, 1, 2) if n in pixels else x for n, x in given.items()}
        return [given.get(n) for n in row.arguments], {n: x for n, x in given.items() if n not in row.arguments}

    def call(module: Any, **given: Any) -> Any:
        positional, masks = arguments(given)
        return module(*positional, **masks)

    def capture(module: Any, given: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
        positional, masks = arguments(given)
        return dict(module.capture(*positional, wanted, **masks))

    pixels = {one.name for one in row.inputs(config) if one.kind == "pixels"}
    return Built("torch_ref", torch_ref.build(config).double(), names.rows(config), call, capture=capture)
