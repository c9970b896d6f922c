"""Optimizers and schedules of PyTorch with the numbers of a config: the counterpart of training/engine/optim.py."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from vit_jax.config.run import OptimConfig

from .muon import Muon


def freeze(model: nn.Module, names: Mapping[str, str], c: OptimConfig) -> None:
    """Switch off the gradients of what is frozen for the whole run."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(bool(c.freeze_epochs) or not frozen(names[name], c))


def frozen(name: str, c: OptimConfig) -> bool:
    """Whether a pattern of `freeze` matches a parameter."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in c.freeze)


def groups(model: nn.Module, c: OptimConfig) -> list[dict[str, Any]]:
    """Parameter groups for torch.optim, without what is frozen."""
    kernels = muon_weights(model) if c.name == "muon" else set()
    layers = {} if c.layer_decay == 1 else layers_above(model)
    found: dict[tuple[bool, int, bool], dict[str, nn.Parameter]] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter.requires_grad:
                decays = kind_of(module, name.rpartition(".")[2]) in c.decay
                found.setdefault((name not in kernels, -layers.get(name, 0), not decays), {})[name] = parameter
    out = []
    for (by_adam, below, fixed), its in sorted(found.items(), key=lambda each: each[0]):
        scale = c.layer_decay**-below * (1 if by_adam else c.muon_lr / c.lr)
        group = {"params": [*its.values()], "param_names": [*its], "weight_decay": 0.0 if fixed else c.weight_decay}
        if c.layer_decay != 1 or c.name == "muon":
            group |= {"lr": c.lr * scale, "lr_scale": scale}
        if c.name == "muon":
            group |= {"use_muon": not by_adam, "betas": (c.beta1 if by_adam else c.muon_momentum, c.beta2)}
        out.append(group)
    return out


def muon_weights(model: nn.Module) -> set[str]:
    """The names of the weights that Muon updates: linear maps inside blocks, and convolutions after the first."""
    convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    return {f"{name}.weight" for name in convolutions[1:]} | {
        f"{path}.{name}.weight"
        for path, blocks in model.named_modules()
        if isinstance(blocks, nn.ModuleList)
        for name, module in blocks.named_modules()
        if isinstance(module, nn.Linear)
    }


def layers_above(model: nn.Module) -> dict[str, int]:
    """How many layers of a ViT are above each parameter's, with timm's grouping of what is no block -> {torch's name:
    number of layers}.

    The last layer is the head or, without one, the last block and the norm after it.
    """
    before = ("stem", "patch", "cls_token", "distill_token", "register_tokens", "position", "pre_norm")
    depth, above = int(model.config.depth), {}  # type: ignore[union-attr, arg-type]
    for name, _ in model.named_parameters():
        first, *rest = name.split(".")
        if first == "blocks":
            above[name] = depth - int(rest[0])
        else:
            above[name] = 1 if first == "norm" else depth + 1 if first in before else 0
    return {name: layers - min(above.values()) for name, layers in above.items()}


def kind_of(module: nn.Module, name: str) -> str:
    """The kind of a parameter, one of those that OptimConfig.decay lists."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return "norm"
    if isinstance(module, nn.Embedding):
        return "embedding"
    kinds = {
        "weight": "kernel", "bias": "bias", "position": "position", "scale1": "scale", "scale2": "scale",
        "cls_token": "token", "distill_token": "token", "register_tokens": "token", "probe": "token",
        "frequencies": "frequency", "table": "relative",
    }  # fmt: skip
    if name not in kinds:
        raise ValueError(
            f"{type(module).__name__}.{name} has no kind, so weight decay is undefined: add it to `kind_of`"
        )
    return kinds[name]


class Lion(Optimizer):
    """Lion with decoupled weight decay (Chen et al. 2023, arXiv 2302.06675, algorithm 2), which torch does not have."""

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


def make_optimizer(model: nn.Module, c: OptimConfig) -> Optimizer:
    """The optimizer of PyTorch with this name, or Muon or Lion; weight decay is an L2 term in sgd and adam."""
    by_rate = groups(model, c)
    if c.name == "muon":
        return Muon(by_rate, betas=(c.beta1, c.beta2), eps=c.eps)
    if c.name == "lion":
        return Lion(by_rate, c.lr, (c.beta1, c.lion_beta2))
    if c.name in ("sgd", "momentum"):
        momentum = c.momentum if c.name == "momentum" else 0.0
        return torch.optim.SGD(by_rate, lr=c.lr, momentum=momentum, nesterov=c.nesterov and c.name == "momentum")
    adam = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[c.name]
    return adam(by_rate, lr=c.lr, betas=(c.beta1, c.beta2), eps=c.eps)


def make_schedule(optimizer: Optimizer, c: OptimConfig, steps: int, epoch: int, done: int = 0) -> LRScheduler:
    """The schedule of the learning rate for the steps t = done .. steps-1.

    The formulas are those of vit_jax.training.engine.optim.learning_rate.
    """
    if c.schedule == "one_cycle":
        return OneCycleLR(
            optimizer,
            [c.lr * group.get("lr_scale", 1.0) for group in optimizer.param_groups],
            total_steps=steps,
            pct_start=c.pct_start,
            div_factor=c.div_factor,
            cycle_momentum=c.cycle_momentum,
            last_epoch=done - 1,
        )
    warmup = c.warmup_steps or round(c.warmup * epoch)

    def share(t: int) -> float:
        if t < warmup:
            return (t + 1) / warmup
        if c.schedule == "inverse_sqrt":
            return (max(warmup, 1) / (t + 1)) ** 0.5
        if c.schedule == "cosine":
            angle = math.pi * min(t - warmup, steps - warmup) / max(steps - warmup, 1)
            return c.final + (1 - c.final) * 0.5 * (1 + math.cos(angle))
        if c.schedule == "constant":
            return 1.0
        raise ValueError(f"schedule {c.schedule}")

    return LambdaLR(optimizer, share, last_epoch=done - 1)
