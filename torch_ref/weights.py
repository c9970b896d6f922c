"""Networks of PyTorch from configs, and the exchange of their weights under vit_jax's parameter names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import numpy as np
import torch

from convert import rules
from convert.dialects import torch_ref as dialect
from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError

from .captioner import Captioner
from .transformer import Transformer
from .vit import ViT

Model = ViT | Transformer | Captioner


def build(config: NetworkConfig) -> Model:
    """The network of a config, with initial weights drawn with torch's global generator.

    Raises:
        UserError: on a kind of network that is not implemented here.
    """
    module, _, name = config.twin.partition(":")
    if not name:
        raise UserError(f"torch_ref has no {config.name}", remedy="train it with python -m vit_jax.train")
    return getattr(import_module(module), name)(config)


def load(model: Model, parameters: Mapping[str, np.ndarray]) -> Model:
    """Load parameters into a model, in the model's dtype.

    Args:
        model: as `build` gives it.
        parameters: {vit_jax's dotted name: array}.

    Returns:
        The model.

    Raises:
        UserError: listing missing names, unknown names and wrong shapes.
    """
    tensors = rules.write(dialect.rows(model.config), parameters)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in tensors.items()})
    return model


def parameters(model: Model) -> dict[str, np.ndarray]:
    """A copy of a model's parameters as {vit_jax's dotted name: array}."""
    return our_names(model, model.state_dict())


def gradients(model: Model) -> dict[str, np.ndarray]:
    """The gradients of a model's parameters as {vit_jax's dotted name: array}; zeros for parameters without one."""
    return our_names(
        model, {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    )


def names(model: Model) -> dict[str, str]:
    """{name of a parameter in the state dict: its dotted name in vit_jax}."""
    return {theirs: ours for row in dialect.rows(model.config) for ours in row.ours for theirs in row.theirs}


def our_names(model: Model, tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Tensors {name in the state dict: weights, gradients or moments} as {vit_jax's dotted name: array}."""
    arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}
    return rules.read(dialect.rows(model.config), arrays)
