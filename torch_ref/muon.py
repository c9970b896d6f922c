"""Muon in PyTorch, in the dtype of the parameters: the counterpart of vit_jax/training/engine/muon.py.

torch.optim.Muon computes the iteration in bfloat16, and takes matrices only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Muon(Optimizer):
    """Muon for the groups with `use_muon`, AdamW for the others.

    In both, betas[0] is the decay of the first moment, exp_avg. A convolution's weight is a matrix [out, in * h * w].
    """

    def __init__(self, groups: list[dict[str, Any]], **defaults: Any):
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Do one update of every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    (muon_step if group["use_muon"] else adam_step)(p, p.grad, self.state[p], group)


def muon_step(p: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """Jordan et al. 2024, kellerjordan.github.io/posts/muon, with Nesterov momentum."""
    beta = group["betas"][0]
    momentum = state.setdefault("exp_avg", torch.zeros_like(p)).lerp_(gradient, 1 - beta)
    matrix = gradient.lerp(momentum, beta).flatten(1)
    n_out, n_in = matrix.shape
    p.sub_(orthogonal(matrix).view_as(p), alpha=group["lr"] * max(1, n_out / n_in) ** 0.5)


def adam_step(p: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """Kingma & Ba 2015, arXiv 1412.6980, algorithm 1."""
    beta1, beta2 = group["betas"]
    if not state:
        state |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    state["step"] += 1
    t = state["step"].item()
    first = state["exp_avg"].lerp_(gradient, 1 - beta1) / (1 - beta1**t)
    second = state["exp_avg_sq"].lerp_(gradient**2, 1 - beta2) / (1 - beta2**t)
    p.sub_(first / (second.sqrt() + group["eps"]), alpha=group["lr"])


def orthogonal(matrix: Tensor) -> Tensor:
    """Five iterations of Newton-Schulz, which move the singular values of a matrix towards 1."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
    return x
