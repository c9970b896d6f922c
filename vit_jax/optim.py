"""Schedules, optimizers and decay masks; each step equals that of PyTorch's schedule or optimizer of the same name.

The moments are a dict by role ({"mu", "nu"} for Adam, {"trace"} for momentum), as in checkpoints and in weight
conversion. optax computes the updates, but those of Muon (muon.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from .config import OptimConfig, Parameter, held, moments, muon_kernels, rate_scales, trained
from .config.trees import flatten, unflatten
from .muon import muon

Schedule = Callable[[Array | int], Array]
Tree = dict[str, Any]
DECOUPLED = ("adamw", "muon", "lion")  # weight decay is no part of the gradient


def learning_rate(c: OptimConfig, steps: int, epoch: int) -> Schedule:
    """The learning rate as a function of the step t = 0 .. steps-1; an epoch has `epoch` steps.

    For t < W = warmup_steps, or warmup * epoch, the rate rises linearly, lr (t+1)/W. Then constant stays at lr; cosine
    falls along half a cosine from lr to final * lr at t = steps (Loshchilov & Hutter 2017, arXiv 1608.03983);
    inverse_sqrt falls as
    lr sqrt(W / (t+1)) (Vaswani et al. 2017, section 5.3, scaled to a peak of lr). one_cycle is OneCycleLR of PyTorch.
    """
    if c.schedule == "one_cycle":
        start = c.lr / c.div_factor
        return one_cycle(steps, c.pct_start, start, c.lr, start / c.final_div_factor)
    warmup = c.warmup_steps or round(c.warmup * epoch)

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
    """Half a cosine from `first` to `middle`, then another to `last` (Smith & Topin 2018, arXiv 1708.07120).

    As in PyTorch the two phases end at the steps pct_start * steps - 1 and steps - 1. Those of optax end one step
    later, which gives other values.
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
    """beta1 of Adam or the momentum of SGD: a number, or with `cycle_momentum` a schedule opposite to the rate's."""
    if c.schedule == "one_cycle" and c.cycle_momentum:
        return one_cycle(steps, c.pct_start, c.max_momentum, c.base_momentum, c.max_momentum)
    return c.momentum if c.name == "momentum" else c.beta1


class Optimizer:
    """`init(parameters) -> moments`, `update(gradients, moments, parameters, step) -> updates, moments`.

    Trees are nested dicts of arrays. `steps` is the length of the run and `epoch` that of an epoch, in steps. `table`
    has the network's parameters by dotted name: the kind of a parameter decides whether it decays, its layer how its
    rate is scaled, its `muon` whether Muon may update it. Parameters that `config.freeze` names are in none of the
    trees of `update`: `parted` separates them. With `config.freeze_epochs` they are, and do not change until then.
    """

    def __init__(self, config: OptimConfig, steps: int, epoch: int, table: Mapping[str, Parameter]):
        self.config, self.table, self.epoch = config, table, epoch
        self.rate = learning_rate(config, steps, epoch)
        self.momentum = momentum(config, steps)
        self.trained = frozenset(trained(config, table))
        self.scales = rate_scales(config, table)
        self.kernels = muon_kernels(config, table)
        self.held = held(config, table)
        self.release = round(config.freeze_epochs * epoch)  # the first step at which these train

    def parted(self, parameters: Tree) -> tuple[Tree, Tree]:
        """(the parameters that train, those that are frozen). Raises ValueError on one that is not in the table."""
        flat = known(parameters, self.table)
        inside, outside = ({n: x for n, x in flat.items() if (n in self.trained) is on} for on in (True, False))
        return unflatten(inside), unflatten(outside)

    def init(self, parameters: Tree) -> Tree:
        """Zero moments, {role: tree}. Raises ValueError on a parameter that is not in the table."""
        flat = known(parameters, self.table)
        return {
            role: unflatten({name: jnp.zeros_like(flat[name]) for name in names if name in flat})
            for role, names in moments(self.config, self.table).items()
        }

    def update(self, gradients: Tree, moments: Tree, parameters: Tree, step: Array) -> tuple[Tree, Tree]:
        """The updates to add to the parameters at `step` = 0, 1, ... (int32 []), and the new moments.

        adam and adamw: Kingma & Ba 2015 (arXiv 1412.6980), Loshchilov & Hutter 2019 (arXiv 1711.05101).
        """
        c = self.config
        beta: Any = self.momentum
        if callable(beta):
            beta = beta(step).astype(jax.tree.leaves(parameters)[0].dtype)
        gradients = self.released(gradients, step)
        if c.clip:
            gradients = clip(gradients, c.clip)
        if c.name not in DECOUPLED:
            gradients = self.released(self.decayed(gradients, parameters), step)
        if c.name in ("adam", "adamw"):
            updates, moments = self.adam(gradients, moments, step, beta)
        elif c.name == "muon":
            updates, moments = self.muon_and_adam(gradients, moments, step, beta)
        elif c.name == "lion":
            rule = optax.scale_by_lion(beta, c.lion_beta2)
            updates, new = rule.update(gradients, optax.ScaleByLionState(step, moments["mu"]))
            moments = {"mu": new.mu}  # type: ignore[union-attr]
        elif c.name == "momentum":
            rule = optax.trace(beta, c.nesterov)  # type: ignore[arg-type]  # a traced beta works
            updates, new = rule.update(gradients, optax.TraceState(moments["trace"]))
            moments = {"trace": new.trace}  # type: ignore[union-attr]
        else:
            updates = gradients
        if c.name in DECOUPLED:
            updates = self.decayed(updates, parameters)
        rate = self.rate(step)
        scaled = {name: -rate.astype(u.dtype) * self.scales[name] * u for name, u in flatten(updates).items()}
        return self.released(unflatten(scaled), step), moments

    def released(self, tree: Tree, step: Array) -> Tree:
        """The tree with zeros in place of what does not train at this step, but will."""
        flat = flatten(tree)
        off = {name: jnp.where(step < self.release, 0, flat[name]) for name in self.held & flat.keys()}
        return unflatten(flat | off) if off else tree

    def adam(self, gradients: Tree, moments: Tree, step: Array, beta: Any) -> tuple[Tree, Tree]:
        """Adam's directions and new moments; those of what was frozen count steps from its release."""
        if not self.held:
            return adam(self.config, gradients, moments, step, beta)
        flat, kept = flatten(gradients), {role: flatten(its) for role, its in moments.items()}
        updates: dict[str, Any] = {}
        new: dict[str, dict[str, Any]] = {role: {} for role in kept}
        for late, count in ((False, step), (True, jnp.maximum(step - self.release, 0))):
            names = [name for name in flat if (name in self.held) is late]
            own = {role: {name: its[name] for name in names} for role, its in kept.items()}
            found, its_new = adam(self.config, {name: flat[name] for name in names}, own, count, beta)
            updates |= found
            new = {role: new[role] | its_new[role] for role in kept}
        return unflatten(updates), {role: unflatten(its) for role, its in new.items()}

    def muon_and_adam(self, gradients: Tree, moments: Tree, step: Array, beta: Any) -> tuple[Tree, Tree]:
        """Muon's directions for its kernels and Adam's for all other parameters, and the new moments."""
        flat, mu = flatten(gradients), flatten(moments["mu"])
        kernels, others = ({n: g for n, g in flat.items() if (n in self.kernels) is on} for on in (True, False))
        momentum = beta if callable(self.momentum) else self.config.muon_momentum
        turned, kernels_mu = muon(kernels, {n: mu[n] for n in kernels}, momentum)
        own = {"mu": {n: mu[n] for n in others}, "nu": flatten(moments.get("nu", {}))}
        trees = {role: unflatten(its) for role, its in own.items()}
        updates, new = self.adam(unflatten(others), trees, step, beta)
        found = {"mu": kernels_mu | flatten(new["mu"]), "nu": flatten(new["nu"])}
        return unflatten(turned | flatten(updates)), {role: unflatten(its) for role, its in found.items() if its}

    def decayed(self, updates: Tree, parameters: Tree) -> Tree:
        """updates + weight_decay * parameters for the kinds of parameter in `decay`, else the updates unchanged."""
        if not self.config.weight_decay:
            return updates
        mask = decay_mask(parameters, self.table, self.config.decay)
        return jax.tree.map(lambda u, p, on: u + self.config.weight_decay * p if on else u, updates, parameters, mask)


def adam(c: OptimConfig, gradients: Tree, moments: Tree, step: Array, beta: Any) -> tuple[Tree, Tree]:
    """Adam's directions and new moments; `beta` is beta1 at this step."""
    rule = optax.scale_by_adam(beta, c.beta2, c.eps)
    updates, new = rule.update(gradients, optax.ScaleByAdamState(step, moments["mu"], moments["nu"]))
    return updates, {"mu": new.mu, "nu": new.nu}  # type: ignore[union-attr]


def decay_mask(parameters: Tree, table: Mapping[str, Parameter], kinds: tuple[str, ...]) -> Tree:
    """A tree of booleans: whether the kind of each parameter is among `kinds`.

    Raises ValueError on a parameter that is not in the table.
    """
    return unflatten({name: table[name].kind in kinds for name in known(parameters, table)})


def known(parameters: Tree, table: Mapping[str, Parameter]) -> dict[str, Any]:
    """The tree as {dotted name: array}. Raises ValueError on a parameter that is not in the table.

    Without an entry its kind would be unknown, and so whether it decays.
    """
    flat = flatten(parameters)
    if unknown := sorted(flat.keys() - table.keys()):
        raise ValueError(
            f"{unknown[0]} is not in the network's table of parameters (config.parameters): "
            "add it there, with its kind and its start"
        )
    return flat


def clip(gradients: Tree, largest: float) -> Tree:
    """Gradients times min(1, largest / (global norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ computes it."""
    scale = jnp.minimum(1.0, largest / (optax.tree.norm(gradients) + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradients)
