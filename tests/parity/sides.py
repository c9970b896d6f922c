"""The sides of this suite's comparisons: convert/verify's, and torch modules with name maps written by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from convert.verify.libraries.torch_ref import with_parameters
from convert.verify.sides import ByRows, Ours, Torch, exact_attention
from convert.verify.weights import Arrays

from .cases import Config

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)  # it is another function: NaN on empty rows, tanh GELU taken for erf


def ours(c: Config, weights: Mapping[str, np.ndarray], dtype: str = "float64") -> Ours:
    """Our network of a config."""
    return Ours.network(c, weights, dtype)


def torch_twin(c: Config, weights: Mapping[str, np.ndarray], dtype: str = "float64") -> ByRows:
    """torch_ref's network of a config."""
    return ByRows(with_parameters(c, weights), c, dtype)


class ByMap(Torch):
    """A torch module whose parameters are functions of ours: `mapping({our name: tensor}) -> {its name: tensor}`.

    The mapping is written by hand and shares nothing with convert's tables. Gradients have our names and shapes, by
    autograd through it. Raises ValueError where it does not give every parameter of the module, in its shape, and
    nothing else.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        weights: Mapping[str, np.ndarray],
        mapping: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
        call: Callable[..., torch.Tensor],
        dtype: str = "float64",
    ):
        super().__init__(module, call, dtype)
        self.leaves = {k: torch.from_numpy(v.astype(dtype)).requires_grad_() for k, v in weights.items()}
        self.mapping = mapping
        expected, given = (
            {k: tuple(v.shape) for k, v in some} for some in (module.named_parameters(), mapping(self.leaves).items())
        )
        if expected != given:
            raise ValueError(f"the mapping does not fit: {sorted(set(expected.items()) ^ set(given.items()))}")

    def parameters(self) -> dict[str, torch.Tensor]:
        return self.leaves

    def ours(self, arrays: Arrays) -> Arrays:
        return arrays

    def run(self, given: dict[str, Any]) -> torch.Tensor:
        mapped = self.mapping(self.leaves)

        def module(*args: Any, **kwargs: Any) -> torch.Tensor:
            return torch.func.functional_call(self.module, mapped, args, kwargs)

        with exact_attention():
            return self.call(module, **given)
