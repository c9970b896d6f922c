"""The same models in idiomatic PyTorch, and their weights under our names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import numpy as np
import torch

from convert import rules
from convert.dialects import torch_ref as dialect
from vit_jax.config import ModelConfig, network_of
from vit_jax.errors import UserError

from .transformer import Transformer
from .vit import ViT

Model = ViT | Transformer

__all__ = ["Model", "Transformer", "ViT", "build", "gradients", "load", "named", "parameters"]


def build(config: ModelConfig) -> Model:
    """The network of a config, with initial weights drawn by torch's generator. Raises UserError on a kind that has no twin here."""
    row = network_of(config)
    module, _, name = row.torch.partition(":")
    if not name:
        raise UserError(f"torch_ref has no twin of a {row.name}; train it with python -m vit_jax.train")
    return getattr(import_module(module), name)(config)


def load(model: Model, parameters: Mapping[str, np.ndarray]) -> Model:
    """Put parameters {our dotted name: array} into a model, in the model's dtype; returns it.

    Raises UserError listing what is missing, unclaimed or misshapen.
    """
    tensors = rules.write(dialect.rows(model.config), parameters)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in tensors.items()})
    return model


def parameters(model: Model) -> dict[str, np.ndarray]:
    """A model's parameters as {our dotted name: array}, copied."""
    return named(model, model.state_dict())


def gradients(model: Model) -> dict[str, np.ndarray]:
    """The gradients of a model's parameters under our dotted names; zeros where there is none."""
    return named(
        model, {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    )


def named(model: Model, tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Tensors under the model's names and shapes (weights, gradients, moments) as {our dotted name: array}."""
    arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}
    return rules.read(dialect.rows(model.config), arrays)
