"""What a fault costs: networks that differ in one thing, trained with the same seeds, batches and steps.

The notebooks state a `Variant` for each fault. What was measured for them lies in prices/NAME.json. A variant that is
another (a number, a line of code or an image was changed: digest.py) is measured on this machine and kept in
prices/own/NAME.json, which git leaves out. PRICES=again measures all of them here again, PRICES=ship for everyone.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import prices
from digest import digest
from flax import nnx
from jax import Array
from prices import Race

from vit_jax.data.images.config import ImageData
from vit_jax.data.images.open import open_images
from vit_jax.extras.sets.archives import OFFICIAL

Batch = Mapping[str, Any]  # {name: array [B, ...]}
Forward = Callable[[Any, Batch], Array]


def train_and_test(name: str) -> tuple[Batch, Batch]:
    """(train, test) of a set that `vit_jax.train` has fetched: "image" uint8 [n, h, w, C], "label" int64 [n]."""
    size, _, channels = OFFICIAL[name].shape
    splits = open_images(ImageData(source=name, validation=0.0), size, channels).splits
    train, test = (split.examples(np.arange(len(split))) for split in (splits["train"], splits["test"]))
    return {**train, "label": train["label"].astype(np.int64)}, {**test, "label": test["label"].astype(np.int64)}


def as_they_are(name: str, x: Array) -> Array:
    return x


def one_cycle(steps: int, rate: float) -> optax.GradientTransformation:
    """Adam whose rate rises to `rate` and falls to nothing at the end of the steps."""
    return optax.adam(optax.cosine_onecycle_schedule(steps, rate), b2=0.99)


@dataclass(frozen=True)
class Variant:
    """A network and how it is trained.

    `network(seed)` has initial weights; `forward(network, batch)` gives its outputs, which `loss(outputs, batch)` makes
    a scalar of; `weights(dotted name, array)` is applied to each parameter whenever it is used. `looks` says how often
    it is scored, at equal distances; the last time is the end, and the others are metrics of their own, "METRIC after
    K of LOOKS".
    """

    network: Callable[[int], nnx.Module]
    forward: Forward
    loss: Callable[[Array, Batch], Array]
    weights: Callable[[str, Array], Array] = as_they_are
    rate: float = 1.0  # times that of the budget
    optimizer: Callable[[int, float], optax.GradientTransformation] = one_cycle  # of (steps, rate)
    looks: int = 1


@dataclass(frozen=True)
class Budget:
    """What all variants get: so many steps of so many examples, and this rate."""

    steps: int
    batch: int
    rate: float
    seeds: int = 5

    def __post_init__(self) -> None:
        for name, least, why in (("steps", 1, ""), ("batch", 1, ""), ("seeds", 2, ": one has no spread")):
            if getattr(self, name) < least:
                raise ValueError(f"Budget.{name} is {getattr(self, name)}: give {least} or more{why}")


Score = Callable[[Callable[[Batch], Array], Batch], dict[str, Array]]  # (forward of a batch, test) -> {metric: scalar}


def race(
    name: str,
    variants: Mapping[str, Variant],
    train: Batch,
    test: Batch,
    score: Score,
    budget: Budget,
    against: Mapping[str, str] | None = None,
) -> Race:
    """The scores of trained variants on test: as they were shipped, or as they were measured on this machine.

    It prints a line for each variant.

    Args:
        name: of the file of prices.
        variants: by title; the first is the right one.
        train: {name: array [n, ...]}.
        test: likewise.
        score: gives the metrics.
        budget: the same for all.
        against: {variant: the one that it is to be compared with, where that is not the first}.
    """
    if unknown := {*(against or {}).values()} - {*variants}:
        raise ValueError(f"against names {sorted(unknown)[0]!r}, which is none of the variants")
    again, ship = (os.environ.get("PRICES", "") == mode for mode in ("again", "ship"))
    file, own_file = prices.PRICES / f"{name}.json", prices.PRICES / "own" / f"{name}.json"
    theirs, ours = prices.read(file), prices.read(own_file)
    (of_all, numbers), found, own = digest(train, test, score, budget), {}, []
    for title, variant in variants.items():
        of_one, sketch = digest(variant)
        entry = {"digest": f"{of_one}-{of_all}", "sketch": sketch + numbers}
        known = {} if again or ship else prices.known_as(entry, theirs)
        if known:
            print(f"{title}: as shipped", flush=True)
        else:
            own.append(title)
            known = {} if again or ship else prices.known_as(entry, ours)
            if known:
                print(f"{title}: as you measured it before", flush=True)
        if not known:
            known = entry | _told(title, theirs, variant, train, test, score, budget)
            if not ship:
                ours = prices.with_entry(ours, title, known)
                prices.write(own_file, {"variants": ours})
        found[title] = known
    if ship:
        prices.write(file, {"jax": jax.__version__, "against": dict(against or {}), "variants": found})
    scores, seconds = ({t: each[part] for t, each in found.items()} for part in ("scores", "core_seconds"))
    return Race(scores, dict(against or {}), seconds, () if ship else tuple(own))


def _told(title: str, theirs: dict[str, Any], *what: Any) -> dict[str, Any]:
    """What `measured` finds, with the time that it takes; a line says so before and after."""
    budget = what[-1]
    usual = statistics.median([each["core_seconds"] for each in theirs.values()]) if theirs else 0
    about = f" (the shipped ones took {usual:.0f} s of a core)" if usual else ""
    print(f"{title}: training {budget.seeds} seeds, {budget.steps:,} steps each{about} ...", end=" ", flush=True)
    began, clock = time.process_time(), time.monotonic()
    scores = measured(*what)
    print(f"done after {time.monotonic() - clock:.0f} s", flush=True)
    return {"core_seconds": round(time.process_time() - began, 1), "scores": scores}


def measured(v: Variant, train: Batch, test: Batch, score: Score, budget: Budget) -> dict[str, list[float]]:
    """{metric: its value for each seed} on test after training; the seeds are trained side by side."""
    graph, states = stacked([v.network(seed) for seed in range(budget.seeds)])

    def network(state: Any) -> Any:
        return nnx.merge(graph, jax.tree_util.tree_map_with_path(lambda path, x: v.weights(dotted(path), x), state))

    def loss(state: Any, batch: Batch) -> Array:
        return v.loss(v.forward(network(state), batch), batch)

    optimizer = v.optimizer(budget.steps, budget.rate * v.rate)
    states = trained(loss, states, {k: jnp.asarray(x) for k, x in train.items()}, budget, optimizer, v.looks)
    scored = jax.jit(lambda state: score(partial(v.forward, network(state)), test))
    found: dict[str, list[float]] = {}
    for look, seed in product(reversed(range(v.looks)), range(budget.seeds)):
        for metric, value in scored(jax.tree.map(lambda x, at=(seed, look): x[at], states)).items():
            title = metric if look == v.looks - 1 else f"{metric} after {look + 1} of {v.looks}"
            found.setdefault(title, []).append(round(float(value), 6))
    return found


def stacked(networks: list[nnx.Module]) -> tuple[Any, Any]:
    """(the graph of equal networks, their states as one, each array with a leading axis of networks)."""
    parts = [nnx.split(network, nnx.Param) for network in networks]
    return parts[0][0], jax.tree.map(lambda *xs: jnp.stack(xs), *(state for _, state in parts))


def dotted(path: Any) -> str:
    """The name of a parameter, such as blocks.0.attention.query.kernel."""
    return ".".join(re.findall(r"\['?(\w+)'?\]", jax.tree_util.keystr(path)))


def trained(
    loss: Callable[[Any, Batch], Array],
    states: Any,
    train: Batch,
    budget: Budget,
    optimizer: optax.GradientTransformation,
    looks: int,
) -> Any:
    """The states [seeds, looks, ...] in training, the last ones at its end.

    The order of examples is that of the seed, whatever the variant. A batch has a number "epoch" too, from 0; test has
    none.
    """
    n = len(next(iter(train.values())))
    epochs = -(-budget.steps * budget.batch // n)
    orders = [np.random.default_rng(seed) for seed in range(budget.seeds)]
    places = np.stack([np.concatenate([order.permutation(n) for _ in range(epochs)]) for order in orders])
    places = places[:, : budget.steps * budget.batch].reshape(budget.seeds, budget.steps, budget.batch)
    if budget.steps % looks:
        raise ValueError(f"Budget.steps is {budget.steps}: give a multiple of the {looks} looks")
    times = jnp.arange(budget.steps).reshape(looks, -1)

    def step(carry: Any, its: tuple[Array, Array]) -> tuple[Any, None]:
        (state, moments), (t, places) = carry, its
        batch = {name: x[places] for name, x in train.items()} | {"epoch": t * budget.batch // n}
        gradients = jax.grad(loss)(state, batch)
        updates, moments = optimizer.update(gradients, moments, state)
        return (optax.apply_updates(state, updates), moments), None

    def to_look(carry: Any, its: tuple[Array, Array]) -> tuple[Any, Any]:
        carry, _ = jax.lax.scan(step, carry, its)
        return carry, carry[0]

    def every(state: Any, its: Array) -> Any:
        its = its.reshape(*times.shape, budget.batch)
        return jax.lax.scan(to_look, (state, optimizer.init(state)), (times, its))[1]

    return jax.jit(jax.vmap(every))(states, jnp.asarray(places))
