"""Schedules, optimizers and decay masks, step for step what torch's of the same names do.

A state is kept by role ({"mu", "nu"} for Adam, {"trace"} for momentum), the form in which
checkpoints and weight conversion hold it; optax computes the updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from .config import OptimConfig, Parameter, roles
from .runs import flatten, unflatten

Schedule = Callable[[Array | int], Array]
Tree = dict[str, Any]


def learning_rate(c: OptimConfig, steps: int, epoch: int) -> Schedule:
    """The rate at step t = 0 .. steps-1, for `epoch` steps an epoch.

    constant and cosine rise linearly over W = warmup * epoch steps, lr (t+1)/W, then stay, or fall
    along half a cosine from lr to final * lr at t = steps; inverse_sqrt falls as lr sqrt(W / (t+1))
    (Vaswani et al. 2017, section 5.3, scaled so that its peak is lr). one_cycle is torch's OneCycleLR.
    """
    if c.schedule == "one_cycle":
        start = c.lr / c.div_factor
        return one_cycle(steps, c.pct_start, start, c.lr, start / c.final_div_factor)
    warmup = round(c.warmup * epoch)

    def schedule(step: Array | int) -> Array:
        t = jnp.asarray(step, float)
        share = jnp.ones_like(t)
        if c.schedule == "cosine":
            progress = jnp.clip((t - warmup) / max(steps - warmup, 1), 0, 1)
            share = c.final + (1 - c.final) * (1 + jnp.cos(math.pi * progress)) / 2
        if c.schedule == "inverse_sqrt":
            share = jnp.sqrt(max(warmup, 1) / (t + 1))
        return c.lr * jnp.where(t < warmup, (t + 1) / max(warmup, 1), share)

    return schedule


def one_cycle(steps: int, pct_start: float, first: float, middle: float, last: float) -> Schedule:
    """Half a cosine from `first` to `middle`, another to `last` (Smith & Topin 2018, as torch steps it).

    torch's phases end at step pct_start * steps - 1 and at steps - 1; optax's at pct_start * steps
    and at steps, which is another schedule.
    """
    turn, end = pct_start * steps - 1, steps - 1

    def anneal(a: float, b: float, share: Array) -> Array:
        return b + (a - b) / 2 * (1 + jnp.cos(math.pi * share))

    def schedule(step: Array | int) -> Array:
        t = jnp.asarray(step, float)
        up = anneal(first, middle, t / turn if turn > 0 else jnp.ones_like(t))
        down = anneal(middle, last, jnp.clip((t - turn) / max(end - turn, 1e-9), 0, 1))
        return jnp.where(t <= turn, up, down)

    return schedule


def momentum(c: OptimConfig, steps: int) -> Schedule | float:
    """beta1 of Adam or momentum of SGD: a number, or its cycle against the rate."""
    if c.schedule == "one_cycle" and c.cycle_momentum:
        return one_cycle(steps, c.pct_start, c.max_momentum, c.base_momentum, c.max_momentum)
    return c.momentum if c.name == "momentum" else c.beta1


class Optimizer:
    """`init(parameters) -> moments`, `update(gradients, moments, parameters, step) -> updates, moments`.

    `table` says what each parameter is.
    """

    def __init__(self, config: OptimConfig, steps: int, epoch: int, table: Mapping[str, Parameter]):
        self.config, self.table = config, table
        self.rate = learning_rate(config, steps, epoch)
        self.momentum = momentum(config, steps)

    def init(self, parameters: Tree) -> Tree:
        """Zero moments, by role. Raises ValueError on a parameter that the table lacks."""
        flat = known(parameters, self.table)
        return {role: unflatten({name: jnp.zeros_like(x) for name, x in flat.items()}) for role in roles(self.config)}

    def update(self, gradients: Tree, moments: Tree, parameters: Tree, step: Array) -> tuple[Tree, Tree]:
        """What to add to the parameters at step t = 0, 1, ..., and the moments after it."""
        c = self.config
        beta: Any = self.momentum
        if callable(beta):
            beta = beta(step).astype(jax.tree.leaves(parameters)[0].dtype)
        if c.clip:
            gradients = clip(gradients, c.clip)
        if c.name != "adamw":
            gradients = self.decayed(gradients, parameters)
        if c.name in ("adam", "adamw"):
            rule = optax.scale_by_adam(beta, c.beta2, c.eps)  # type: ignore[arg-type]  # a traced beta works
            updates, new = rule.update(gradients, optax.ScaleByAdamState(step, moments["mu"], moments["nu"]))
            moments = {"mu": new.mu, "nu": new.nu}  # type: ignore[union-attr]
        elif c.name == "momentum":
            updates, new = optax.trace(beta, c.nesterov).update(gradients, optax.TraceState(moments["trace"]))  # type: ignore[arg-type]
            moments = {"trace": new.trace}  # type: ignore[union-attr]
        else:
            updates = gradients
        if c.name == "adamw":
            updates = self.decayed(updates, parameters)
        rate = self.rate(step)
        return jax.tree.map(lambda u: -rate.astype(u.dtype) * u, updates), moments

    def decayed(self, updates: Tree, parameters: Tree) -> Tree:
        """Updates plus weight_decay * parameter, for the kinds of parameter that decay."""
        if not self.config.weight_decay:
            return updates
        mask = decay_mask(parameters, self.table, self.config.decay)
        return jax.tree.map(lambda u, p, on: u + self.config.weight_decay * p if on else u, updates, parameters, mask)


def decay_mask(parameters: Tree, table: Mapping[str, Parameter], kinds: tuple[str, ...]) -> Tree:
    """The tree with True where a parameter's kind is among those that decay. Raises ValueError on one that the table lacks."""
    return unflatten({name: table[name].kind in kinds for name in known(parameters, table)})


def known(parameters: Tree, table: Mapping[str, Parameter]) -> dict[str, Any]:
    """The tree flat. Raises ValueError on a parameter that the table lacks: nobody knows its kind, and so whether it decays."""
    flat = flatten(parameters)
    if unknown := sorted(flat.keys() - table.keys()):
        raise ValueError(
            f"{unknown[0]} is not in the network's table of parameters (config.parameters): add it there, with its kind and its start"
        )
    return flat


def clip(gradients: Tree, largest: float) -> Tree:
    """Gradients times min(1, c / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it."""
    scale = jnp.minimum(1.0, largest / (optax.tree.norm(gradients) + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradients)
