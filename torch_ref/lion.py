"""Lion in PyTorch, which has none: the counterpart of optax.scale_by_lion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    """Lion with decoupled weight decay (Chen et al. 2023, arXiv 2302.06675, algorithm 2)."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float]):
        super().__init__(groups, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Do one update of every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = torch.sign(beta1 * momentum + (1 - beta1) * p.grad)
                p.sub_(direction + group["weight_decay"] * p, alpha=group["lr"])
                momentum.mul_(beta2).add_(p.grad, alpha=1 - beta2)
