"""Schedules and optimizers, as optax transformations; each step equals that of PyTorch's of the same name.

The moments are a dict by role ({"mu", "nu"} for Adam, {"trace"} for momentum), as in checkpoints and in weight
conversion. The directions of an update are those of optax, and for Muon those of muon.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ...config.dotted import with_options
from ...config.groups import (
    check_groups,
    decaying,
    frozen_at_first,
    moments,
    muon_kernels,
    optimizer_of_others,
    rate_scales,
    trainable,
)
from ...config.network import ZEROS, NetworkConfig, Parameter
from ...config.run import BY_LENGTH, DECOUPLED, OptimConfig
from ...config.trees import Tree, flatten, partition, unflatten
from ...errors import ArgumentError, Field, UserError
from .muon import scale_by_muon
from .parameters import Kernels

Schedule = Callable[[Array | int], Array]
Arrays = dict[str, Array]  # by dotted names
PLAIN = Kernels()
FINAL_DIV_FACTOR = 1e4  # of one_cycle, as PyTorch has it
LEAST_MOMENTUM, MOST_MOMENTUM = 0.85, 0.95  # of cycle_momentum, likewise


def learning_rate(c: OptimConfig, steps: int, steps_per_epoch: int) -> Schedule:
    """The learning rate as a function of the step t = 0 .. steps-1: of an int32 [] or int to a float [].

    For t < W = warmup_steps, or warmup * steps_per_epoch, the rate rises linearly, lr (t+1)/W. Then constant stays at
    lr; cosine falls along half a cosine from lr to final * lr at t = steps (Loshchilov & Hutter 2017, arXiv
    1608.03983); inverse_sqrt falls as lr sqrt(W / (t+1)) (Vaswani et al. 2017, section 5.3, scaled to a peak of lr).
    one_cycle is OneCycleLR of PyTorch.
    """
    if c.schedule == "one_cycle":
        start = c.lr / c.div_factor
        return one_cycle(steps, c.pct_start, start, c.lr, start / FINAL_DIV_FACTOR)
    warmup = c.warmup_steps or round(c.warmup * steps_per_epoch)

    def schedule(step: Array | int) -> Array:
        t = jnp.asarray(step, float)
        if c.schedule == "cosine":
            progress = jnp.clip((t - warmup) / max(steps - warmup, 1), 0, 1)
            share = c.final + (1 - c.final) * (1 + jnp.cos(math.pi * progress)) / 2
        elif c.schedule == "inverse_sqrt":
            share = jnp.sqrt(max(warmup, 1) / (t + 1))
        elif c.schedule == "constant":
            share = jnp.ones_like(t)
        else:
            raise ValueError(f"schedule {c.schedule}")
        return c.lr * jnp.where(t < warmup, (t + 1) / max(warmup, 1), share)

    return schedule


def one_cycle(steps: int, pct_start: float, first: float, middle: float, last: float) -> Schedule:
    """Half a cosine from one rate to another, then another half to a third (Smith & Topin 2018, arXiv 1708.07120).

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


def rule_of(name: str, c: OptimConfig) -> optax.GradientTransformation:
    """The rule of an optimizer; that of muon is for hidden kernels alone."""
    if name == "sgd":
        return optax.identity()
    if name == "momentum":  # of SGD, by Nesterov or not, as torch.optim.SGD has it
        return optax.trace(c.momentum, c.nesterov)
    if name in ("adam", "adamw"):  # Kingma & Ba 2015, arXiv 1412.6980; Loshchilov & Hutter 2019, arXiv 1711.05101
        return optax.scale_by_adam(c.beta1, c.beta2, c.eps)
    if name == "lion":  # Chen et al. 2023, arXiv 2302.06675
        return optax.scale_by_lion(c.beta1, c.lion_beta2)
    if name == "muon":
        return scale_by_muon(c.muon_momentum)
    raise ValueError(f"optimizer {name}")


def optimizer(
    config: OptimConfig | str = "adamw",
    *,
    steps: int = 0,
    steps_per_epoch: int = 0,
    network: Any = None,
    **options: Any,
) -> optax.GradientTransformation:
    """An optimizer of `train` for a training loop of one's own, with its schedule, decay, clipping and freezing.

    Args:
        config: the name of an optimizer, as `--optim.name` takes it, or the config of one, such as
            `vit_jax.preset("digits").run.optim`.
        steps: the length of the run, in updates: the schedules cosine and one_cycle change the rate over it.
        steps_per_epoch: the length of an epoch, in updates, for `warmup` and `freeze_epochs`, which count epochs.
        network: the network that is trained, or its config. It says which parameters are kernels, in which layer each
            is, and which of them Muon updates. Without one, arrays of two or more axes count as kernels, which decay
            unless `decay` says otherwise, all others as biases; muon and `layer_decay` need one.
        options: fields of OptimConfig, which replace those of `config`: lr, schedule, warmup_steps, weight_decay, clip,
            freeze, ...; `python -m vit_jax.train digits --help` explains them as --optim.lr and so on.

    Returns:
        An optax transformation of any tree of arrays, such as nnx.State. Its updates are added to the parameters, which
        `update` needs as its third argument. Its state is (step, moments).

    Raises:
        UserError: a field is unknown, out of its range, or needs steps, epochs or a network that are not given.
    """
    if isinstance(config, str):
        config, options = OptimConfig(), {"name": config, **options}
    c = with_options(config, options, "optim")
    given = {"steps": steps > 0, "steps_per_epoch": steps_per_epoch > 0, "network": network is not None}
    for name, needed, argument in (
        ("schedule", c.schedule in BY_LENGTH, "steps"),
        ("warmup", c.warmup and not c.warmup_steps, "steps_per_epoch"),
        ("freeze_epochs", c.freeze_epochs, "steps_per_epoch"),
        ("name", c.name == "muon", "network"),
        ("layer_decay", c.layer_decay != 1, "network"),
    ):
        if needed and not given[argument]:
            field = Field(f"optim.{name}")
            raise UserError(field, f"is {getattr(c, name)}, which needs {argument}", f"give {argument}")
    table = None
    if network is not None:
        its = getattr(network, "config", network)
        if not isinstance(its, NetworkConfig):
            raise UserError(Field("network"), f"is a {type(network).__name__}", "give one of vit_jax, or its config")
        table = its.parameters()
        check_groups(c, table)
    transformation = Optimizer(c, steps, steps_per_epoch, table)
    return optax.GradientTransformation(transformation.init, transformation.update)


class OptimizerState(NamedTuple):
    """The updates done so far, int32 [], and the moments, {role: nested dict of arrays by the parameters' names}."""

    step: Array
    moments: Tree


class Optimizer:
    """An optax transformation of a network's parameters, as a pair of methods, `init` and `update`.

    Parameters that `config.freeze` names have no moments, and their updates are 0; with `config.freeze_epochs` they
    have moments, and do not change until then.
    """

    def __init__(
        self,
        config: OptimConfig,
        steps: int,
        steps_per_epoch: int,
        table: Mapping[str, Parameter] | None = None,
    ):
        self.config, self.steps_per_epoch, self.table = config, steps_per_epoch, table
        self.learning_rate = learning_rate(config, steps, steps_per_epoch)
        self.momentum = None
        if config.schedule == "one_cycle" and config.cycle_momentum:  # of beta1 or the momentum, opposite to the rate
            self.momentum = one_cycle(steps, config.pct_start, MOST_MOMENTUM, LEAST_MOMENTUM, MOST_MOMENTUM)
        self.release = round(config.freeze_epochs * steps_per_epoch)  # the first step at which all parameters train

    def init(self, params: Any) -> OptimizerState:
        """The state before the first step: moments of 0, in the parameters' dtypes."""
        arrays, _ = name_leaves(params)
        table = self.table_of(arrays)
        if self.table is None:
            check_groups(self.config, table)
        zeros = {
            role: unflatten({name: jnp.zeros_like(arrays[name]) for name in names if name in arrays})
            for role, names in moments(self.config, table).items()
        }
        return OptimizerState(jnp.zeros((), jnp.int32), zeros)

    def update(
        self, updates: Any, state: OptimizerState, params: Any = None, kernels: Kernels = PLAIN
    ) -> tuple[Any, OptimizerState]:
        """The updates to add to the parameters, and the state after them."""
        if params is None:
            raise ArgumentError("params is None, but weights may decay: give the parameters to `update`")
        gradients, structure = name_leaves(updates)
        table = self.table_of(gradients)
        own = {name: gradients[name] for name in trainable(self.config, table) if name in gradients}
        changes, new = self.changes(own, state.moments, name_leaves(params)[0], state.step, table, kernels)
        found = [changes[name] if name in changes else jnp.zeros_like(x) for name, x in gradients.items()]
        return jax.tree.unflatten(structure, found), OptimizerState(state.step + 1, new)

    def partition(self, params: Tree) -> tuple[Tree, Tree]:
        """The parameters that train, and those that are frozen for the whole run -> (those, these), nested dicts."""
        return partition(params, {*trainable(self.config, self.table_of(flatten(params)))})

    def changes(
        self,
        gradients: Arrays,
        moments: Tree,
        parameters: Arrays,
        step: Array,
        table: Mapping[str, Parameter],
        kernels: Kernels,
    ) -> tuple[Arrays, Tree]:
        """What a step adds to each parameter that trains: step int32 [] -> ({name: array}, the new moments)."""
        c, late = self.config, frozen_at_first(self.config, table)
        names = decaying(c, table)
        decayed = {name: parameters[name] for name in gradients if name in names}

        def released(arrays: Arrays) -> Arrays:
            waiting = {name: jnp.where(step < self.release, 0, x) for name, x in arrays.items() if name in late}
            return arrays | waiting

        gradients = released(gradients)
        if c.clip:
            gradients = clip(gradients, c.clip, kernels)
        if c.name not in DECOUPLED:
            gradients = released(decay(gradients, decayed, c.weight_decay))
        directions, moments = self.directions(gradients, moments, step, table)
        if c.name in DECOUPLED:
            directions = decay(directions, decayed, c.weight_decay)
        rate, scales = kernels.factor(-self.learning_rate(step)), rate_scales(c, table)
        scaled = {name: rate(x) * scales[name] * x for name, x in directions.items()}
        return released(scaled), moments

    def directions(
        self, gradients: Arrays, moments: Tree, step: Array, table: Mapping[str, Parameter]
    ) -> tuple[Arrays, Tree]:
        """Directions by rule: step int32 [] -> ({name: array}, new moments); of what was frozen from its release."""
        c, kernels, late = self.config, muon_kernels(self.config, table), frozen_at_first(self.config, table)
        if self.momentum:
            beta: Any = self.momentum(step).astype(next(iter(gradients.values())).dtype)
            c = replace(c, beta1=beta, momentum=beta, muon_momentum=beta)
        rule, rule_of_others = rule_of(c.name, c), rule_of(optimizer_of_others(c), c)
        groups = (
            (rule, kernels, step),
            (rule_of_others, gradients.keys() - kernels - late, step),
            (rule_of_others, late - kernels, jnp.maximum(step - self.release, 0)),
        )
        flat = {role: flatten(tree) for role, tree in moments.items()}
        directions: Arrays = {}
        new: dict[str, Arrays] = {role: {} for role in flat}
        for its_rule, names, count in groups:
            if own := {name: gradient for name, gradient in gradients.items() if name in names}:
                found, its_moments = apply_rule(its_rule, own, flat, count)
                directions |= found
                new |= {role: new[role] | arrays for role, arrays in its_moments.items()}
        return directions, {role: unflatten(arrays) for role, arrays in new.items()}

    def table_of(self, arrays: Arrays) -> Mapping[str, Parameter]:
        """The table, or that of a tree without one."""
        if self.table is None:
            shapes = {name: jnp.shape(x) for name, x in arrays.items()}
            return {n: Parameter(shape, "kernel" if len(shape) > 1 else "bias", ZEROS) for n, shape in shapes.items()}
        if unknown := sorted(arrays.keys() - self.table.keys()):
            # Without an entry its kind would be unknown, and so whether it decays.
            raise ArgumentError(
                f"{unknown[0]} is not in the network's table of parameters (config.parameters): "
                "add it there, with its kind and its start"
            )
        return self.table


def name_leaves(tree: Any) -> tuple[Arrays, Any]:
    """({dotted name: leaf}, the tree's structure) of any tree; nnx.State has the names of the network's modules."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    return {name.removesuffix(".value"): leaf for name, (_, leaf) in zip(names, leaves, strict=True)}, structure


def apply_rule(
    rule: optax.GradientTransformation, gradients: Arrays, moments: Mapping[str, Arrays], count: Array
) -> tuple[Arrays, dict[str, Arrays]]:
    """One update by an optax rule: count int32 [] -> (directions, {role: new moments})."""
    state: Any = jax.eval_shape(rule.init, gradients)
    roles = [field for field in state._fields if field != "count"]
    filled = {role: {name: moments[role][name] for name in gradients} for role in roles}
    counted = {"count": count} if "count" in state._fields else {}
    directions, new = rule.update(gradients, state._replace(**filled, **counted))
    return directions, {role: getattr(new, role) for role in roles}


def decay(updates: Arrays, parameters: Arrays, weight_decay: float) -> Arrays:
    """The updates, plus weight_decay * parameter for those parameters that are given."""
    if not weight_decay:
        return updates
    return updates | {name: updates[name] + weight_decay * x for name, x in parameters.items()}


def clip(gradients: Arrays, largest: float, kernels: Kernels = PLAIN) -> Arrays:
    """Gradients times min(1, largest / (global norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ computes it."""
    scale = jnp.minimum(1.0, largest / (kernels.norm(gradients) + 1e-6))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradients)
