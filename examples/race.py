"""What a fault costs: networks that differ in one thing, trained with the same seeds, batches and steps.

The notebooks state a `Variant` for each fault. What `race` has measured lies in prices/NAME.json and is read from
there; the environment variable PRICES=again has it measured anew.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from scipy import stats

Batch = Mapping[str, Any]  # {name: array [B, ...]}
Forward = Callable[[Any, Batch], Array]
PRICES = Path(__file__).parent / "prices"


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


Score = Callable[[Callable[[Batch], Array], Batch], dict[str, Array]]  # (forward of a batch, test) -> {metric: scalar}


def race(
    name: str,
    variants: Mapping[str, Variant],
    train: Batch,
    test: Batch,
    score: Score,
    budget: Budget,
    against: Mapping[str, str] | None = None,
) -> dict[str, dict[str, list[float]]]:
    """{variant: {metric: its value for each seed}} of trained variants on test: as stored, or else measured and stored.

    `train` and `test` are {name: array [n, ...]}. The first variant is the right one; `against` names another for those
    that are to be compared with it.
    """
    file = PRICES / f"{name}.json"
    settings = {**asdict(budget), "train": len(next(iter(train.values()))), "test": len(next(iter(test.values())))}
    known = stored(name) if file.exists() and os.environ.get("PRICES") != "again" else {}
    known = known if known.get("settings") == settings else {}
    found: dict[str, Any] = dict(known.get("variants", {}))
    for title, variant in variants.items():
        if title not in found:
            began = time.process_time()
            scores = measured(variant, train, test, score, budget)
            found[title] = {"core_seconds": round(time.process_time() - began, 1), "scores": scores}
            content = {"settings": settings, "jax": jax.__version__, "against": dict(against or {}), "variants": found}
            text = json.dumps(content, indent=1)
            file.write_text(text + "\n", encoding="utf-8")
    return {title: found[title]["scores"] for title in variants}


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


@dataclass(frozen=True)
class Price:
    """What a fault costs in a metric: the mean over seeds of (right - with the fault), and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the measurement allows to say."""
        if self.low > 0:
            return "costs"
        return "gains" if self.high < 0 else "costs nothing that these seeds can show"


def price(right: list[float], fault: list[float]) -> Price:
    """The price of a fault from the values of the same seeds without and with it (Student's t of the differences)."""
    differences = [a - b for a, b in zip(right, fault, strict=True)]
    mean, n = statistics.fmean(differences), len(differences)
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(differences) / n**0.5
    return Price(mean, mean - half, mean + half)


def stored(name: str) -> dict[str, Any]:
    """What `race` has stored."""
    content: dict[str, Any] = json.loads((PRICES / f"{name}.json").read_text(encoding="utf-8"))
    return content


def rows(name: str, metric: str = "") -> list[tuple[str, ...]]:
    """Of what is stored a row for each variant, in percent of a metric (empty: the first).

    It has the variant, mean +- standard deviation over seeds, the price with its interval, and the verdict.
    """
    content, table = stored(name), []
    against, variants = content["against"], content["variants"]
    scores = {title: each["scores"][metric or next(iter(each["scores"]))] for title, each in variants.items()}
    for title, values in scores.items():
        row = (title, f"{100 * statistics.fmean(values):.2f} +- {100 * statistics.stdev(values):.2f}")
        right = against.get(title, next(iter(scores)))
        if title in (next(iter(scores)), *against.values()):
            table.append((*row, "", ""))
            continue
        p = price(scores[right], values)
        table.append((*row, f"{100 * p.mean:+.2f} ({100 * p.low:+.2f} .. {100 * p.high:+.2f})", p.verdict))
    return table


def markdown(name: str, metric: str = "") -> str:
    """`rows` as a table of Markdown."""
    scores = next(iter(stored(name)["variants"].values()))["scores"]
    metric = metric or next(iter(scores))
    title = f"| variant | {metric}, %, mean +- sd of {len(scores[metric])} seeds | price, points (95 %) | |"
    return "\n".join([title, "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows(name, metric))])


if __name__ == "__main__":
    for path in sorted(PRICES.glob("*.json")):
        print(f"### {path.stem}\n\n{markdown(path.stem)}\n")
