"""Optimizers and schedules of PyTorch with the numbers of a config: the counterpart of vit_jax/optim.py."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from vit_jax.config import OptimConfig


def freeze(model: nn.Module, names: Mapping[str, str], c: OptimConfig) -> None:
    """Switch off the gradients of what a pattern of `freeze` matches; `names` {torch's: vit_jax's} are the model's."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatch.fnmatchcase(names[name], pattern) for pattern in c.freeze))


def decay_groups(model: nn.Module, c: OptimConfig) -> list[dict[str, Any]]:
    """Parameter groups for torch.optim, without what is frozen: those that decay, by their kinds, and the others."""
    decays: dict[bool, dict[str, nn.Parameter]] = {True: {}, False: {}}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            if parameter.requires_grad:
                decays[kind_of(module, name.rpartition(".")[2]) in c.decay][name] = parameter
    return [
        {"params": [*its.values()], "param_names": [*its], "weight_decay": c.weight_decay * on}
        for on, its in decays.items()
        if its
    ]


def kind_of(module: nn.Module, name: str) -> str:
    """The kind of the parameter `name` of a module, one of those that OptimConfig.decay lists.

    Raises ValueError on a parameter whose kind is not known.
    """
    if isinstance(module, nn.LayerNorm):
        return "norm"
    if isinstance(module, nn.Embedding):
        return "embedding"
    kinds = {
        "weight": "kernel", "bias": "bias", "position": "position", "scale1": "scale", "scale2": "scale",
        "cls_token": "token", "distill_token": "token", "register_tokens": "token", "probe": "token",
    }  # fmt: skip
    if name not in kinds:
        raise ValueError(
            f"{type(module).__name__}.{name} has no kind, so weight decay is undefined: add it to `kind_of`"
        )
    return kinds[name]


def make_optimizer(model: nn.Module, c: OptimConfig) -> Optimizer:
    """The optimizer of PyTorch with this name; weight decay is an L2 term of the gradient in all but adamw."""
    groups = decay_groups(model, c)
    if c.name in ("sgd", "momentum"):
        momentum = c.momentum if c.name == "momentum" else 0.0
        return torch.optim.SGD(groups, lr=c.lr, momentum=momentum, nesterov=c.nesterov and c.name == "momentum")
    cls = torch.optim.AdamW if c.name == "adamw" else torch.optim.Adam
    return cls(groups, lr=c.lr, betas=(c.beta1, c.beta2), eps=c.eps)


def make_schedule(optimizer: Optimizer, c: OptimConfig, steps: int, epoch: int, done: int = 0) -> LRScheduler:
    """The schedule of the learning rate for the steps t = done .. steps-1; an epoch has `epoch` steps.

    With `done` above 0 the optimizer has the state of that many steps. The formulas are those of
    vit_jax.optim.learning_rate.
    """
    if c.schedule == "one_cycle":
        return OneCycleLR(
            optimizer,
            c.lr,
            total_steps=steps,
            pct_start=c.pct_start,
            div_factor=c.div_factor,
            final_div_factor=c.final_div_factor,
            cycle_momentum=c.cycle_momentum,
            base_momentum=c.base_momentum,
            max_momentum=c.max_momentum,
            last_epoch=done - 1,
        )
    warmup = round(c.warmup * epoch)

    def share(t: int) -> float:
        if t < warmup:
            return (t + 1) / warmup
        if c.schedule == "inverse_sqrt":
            return (max(warmup, 1) / (t + 1)) ** 0.5
        if c.schedule == "cosine":
            angle = math.pi * min(t - warmup, steps - warmup) / max(steps - warmup, 1)
            return c.final + (1 - c.final) * 0.5 * (1 + math.cos(angle))
        return 1.0

    return LambdaLR(optimizer, share, last_epoch=done - 1)
