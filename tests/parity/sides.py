"""The two sides of a comparison, each with numpy arrays going in and coming out, by our names and in our shapes.

`forward(inputs)`, `capture(inputs)` and `gradients(inputs, cotangent)` are the same calls on all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import torch_ref.transformer
import torch_ref.vit
from convert import rules
from convert.dialects import torch_ref as dialect
from vit_jax.config import ViTConfig
from vit_jax.layers import merge, replace_parameters, split
from vit_jax.runs import flatten, unflatten
from vit_jax.transformer import Transformer
from vit_jax.vit import ViT

from .cases import Config
from .weights import Inputs

Arrays = dict[str, np.ndarray]
torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)  # it is another function: NaN on empty rows, tanh GELU taken for erf


def doubles(dtype: str) -> Any:
    """The context in which jax keeps float64 as such; outside of it the process stays as it was."""
    return jax.enable_x64(dtype == "float64")


def cast(inputs: Mapping[str, Any], dtype: str) -> Inputs:
    """Floating-point inputs in this dtype; ids and masks as they are."""
    return {k: v.astype(dtype) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for k, v in inputs.items()}


def names(c: Config) -> list[str]:
    """What is captured, in the order of the forward pass."""
    if isinstance(c, ViTConfig):
        return ["tokens", *(f"blocks.{i}" for i in range(c.depth)), "features", "pooled", "logits"]
    return [
        *(f"encoder.blocks.{i}" for i in range(c.encoder_depth)),
        "memory",
        *(f"decoder.blocks.{i}" for i in range(c.decoder_depth)),
        "logits",
    ]


class Ours:
    """A network or layer of ours, not jitted: `call(model, **inputs)`."""

    def __init__(
        self,
        model: Any,
        weights: Mapping[str, np.ndarray],
        dtype: str = "float64",
        call: Callable[..., Any] | None = None,
    ):
        self.dtype, self.call = (
            dtype,
            call or (lambda model, **inputs: model(*_positional(inputs), **_keywords(inputs))),
        )
        with doubles(dtype):
            self.tree = unflatten({k: jnp.asarray(v, dtype) for k, v in weights.items()})
            replace_parameters(model, self.tree)
        self.model = model

    def arrays(self, inputs: Inputs) -> Inputs:
        return {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in cast(inputs, self.dtype).items()}

    def forward(self, inputs: Inputs) -> np.ndarray:
        with doubles(self.dtype):
            return np.asarray(self.call(self.model, **self.arrays(inputs)))

    def capture(self, inputs: Inputs) -> Arrays:
        with doubles(self.dtype):
            given, wanted = self.arrays(inputs), names(self.model.config)
            seen = self.model.capture(*_positional(given), wanted, **_keywords(given))
            return {k: np.asarray(seen[k]) for k in wanted}

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> Arrays:
        """Of sum(output * cotangent): every parameter's, and `input.NAME` for every floating-point input."""
        with doubles(self.dtype):
            given = self.arrays(inputs)
            floats = {k: v for k, v in given.items() if hasattr(v, "dtype") and jnp.issubdtype(v.dtype, jnp.floating)}
            definition = split(self.model)[0]
            _, back = jax.vjp(
                lambda tree, floats: self.call(merge(definition, tree), **{**given, **floats}), self.tree, floats
            )
            tree, floats = back(jnp.asarray(cotangent, self.dtype))
            return {
                **{k: np.asarray(v) for k, v in flatten(tree).items()},
                **{f"input.{k}": np.asarray(v) for k, v in floats.items()},
            }


def ours(c: Config, weights: Mapping[str, np.ndarray], dtype: str = "float64") -> Ours:
    """Our network of a config."""
    with doubles(dtype):
        model = (ViT if isinstance(c, ViTConfig) else Transformer)(
            c, dtype=jnp.dtype(dtype), param_dtype=jnp.dtype(dtype)
        )
    return Ours(model, weights, dtype)


def _positional(inputs: Inputs) -> list[Any]:
    return [inputs[k] for k in ("images", "source", "target") if k in inputs]


def _keywords(inputs: Inputs) -> Inputs:
    return {k: v for k, v in inputs.items() if k not in ("images", "source", "target")}


class Torch:
    """A torch module whose parameters are functions of ours: `mapping({our name: tensor}) -> {its name: tensor}`.

    So its gradients come in our names and shapes, by autograd through the mapping. Raises ValueError
    where the mapping does not give every parameter of the module, in its shape, and nothing else.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        weights: Mapping[str, np.ndarray],
        mapping: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
        call: Callable[..., torch.Tensor],
        dtype: str = "float64",
    ):
        self.dtype, self.call = dtype, call
        self.module = module.to(getattr(torch, dtype)).eval()
        self.leaves = {k: torch.from_numpy(v.astype(dtype)).requires_grad_() for k, v in weights.items()}
        self.parameters = mapping(self.leaves)
        expected, given = (
            {k: tuple(v.shape) for k, v in p} for p in (module.named_parameters(), self.parameters.items())
        )
        if expected != given:
            raise ValueError(
                f"the mapping does not fit the module: {sorted(set(expected.items()) ^ set(given.items()))}"
            )

    def arrays(self, inputs: Inputs) -> Inputs:
        return {
            k: torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v
            for k, v in cast(inputs, self.dtype).items()
        }

    def run(self, given: Inputs) -> torch.Tensor:
        return self.call(
            lambda *args, **kwargs: torch.func.functional_call(self.module, self.parameters, args, kwargs), **given
        )

    def forward(self, inputs: Inputs) -> np.ndarray:
        return self.run(self.arrays(inputs)).detach().numpy()

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> Arrays:
        given = self.arrays(inputs)
        floats = {
            k: v.requires_grad_() for k, v in given.items() if isinstance(v, torch.Tensor) and v.is_floating_point()
        }
        output = (self.run(given) * torch.from_numpy(cotangent.astype(self.dtype))).sum()
        wanted = {**self.leaves, **{f"input.{k}": v for k, v in floats.items()}}
        found = torch.autograd.grad(output, list(wanted.values()), allow_unused=True, retain_graph=True)
        return {
            k: (torch.zeros_like(v) if g is None else g).numpy()
            for (k, v), g in zip(wanted.items(), found, strict=True)
        }


class Twin:
    """torch_ref's network of a config; weights and gradients cross by convert's rows."""

    def __init__(self, c: Config, weights: Mapping[str, np.ndarray], dtype: str = "float64"):
        self.dtype, self.config, self.rows = dtype, c, dialect.rows(c)
        self.module = (torch_ref.vit.ViT if isinstance(c, ViTConfig) else torch_ref.transformer.Transformer)(c)
        self.module = self.module.to(getattr(torch, dtype)).eval()
        state = rules.write(self.rows, {k: v.astype(dtype) for k, v in weights.items()})
        self.module.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})

    def arrays(self, inputs: Inputs) -> Inputs:
        given = {
            k: torch.from_numpy(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v
            for k, v in cast(inputs, self.dtype).items()
        }
        return {
            k: v.permute(0, 3, 1, 2) if k == "images" else v for k, v in given.items()
        }  # [B, h, w, C] -> [B, C, h, w]

    def forward(self, inputs: Inputs) -> np.ndarray:
        with torch.no_grad():
            given = self.arrays(inputs)
            return self.module(*_positional(given), **_keywords(given)).numpy()

    def capture(self, inputs: Inputs) -> Arrays:
        with torch.no_grad():
            given, wanted = self.arrays(inputs), names(self.config)
            seen = self.module.capture(*_positional(given), wanted, **_keywords(given))
            return {k: seen[k].numpy() for k in wanted}

    def parameters(self) -> Arrays:
        """Its weights, as ours."""
        return rules.read(self.rows, {k: v.detach().numpy() for k, v in self.module.named_parameters()})

    def gradients(self, inputs: Inputs, cotangent: np.ndarray) -> Arrays:
        given = self.arrays(inputs)
        floats = {
            k: v.requires_grad_() for k, v in given.items() if isinstance(v, torch.Tensor) and v.is_floating_point()
        }
        self.module.zero_grad()
        (
            self.module(*_positional(given), **_keywords(given)) * torch.from_numpy(cotangent.astype(self.dtype))
        ).sum().backward()
        found = {
            k: (torch.zeros_like(p) if p.grad is None else p.grad).numpy() for k, p in self.module.named_parameters()
        }
        back = {
            f"input.{k}": (v.grad.permute(0, 2, 3, 1) if k == "images" else v.grad).numpy() for k, v in floats.items()
        }
        return rules.read(self.rows, found) | back
