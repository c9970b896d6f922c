"""Training of small networks that differ in one thing: the same batches in the same order for each seed.

Adam (b2 0.99) with a one-cycle schedule to its peak, the rate, and down to 0; no augmentation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

Batch = Mapping[str, Any]  # {name: array [n, ...]}
BATCH = 100


@dataclass
class Learner:
    """A network and how it learns: `network(seed)` has initial weights, `loss(network, batch)` is a scalar."""

    network: Callable[[int], nnx.Module]
    loss: Callable[[Any, Batch], Array]
    rate: float
    compiled: Any = field(default=None, repr=False)

    def trained(self, seed: int, data: Batch, steps: int, rate: float = 0.0) -> Any:
        """The network of a seed after so many steps on batches of `data` ([n, ...] each); rate 0: its own."""
        graph, state = nnx.split(self.network(seed))
        step, moments = self.step(data), _adam().init(state)
        schedule = optax.cosine_onecycle_schedule(steps, rate or self.rate)
        for t, places in enumerate(batches(seed, len(next(iter(data.values()))), steps)):
            batch = {name: x[places] for name, x in data.items()}
            state, moments = step(state, moments, batch, jnp.float32(schedule(t)))
        return nnx.merge(graph, state)

    def operations(self, data: Batch) -> float:
        """Floating-point operations of a training step, as XLA counts them."""
        return float(self.step(data).cost_analysis()["flops"])

    def step(self, data: Batch) -> Any:
        """The compiled step: (state, moments, batch, rate) -> (state, moments)."""
        if self.compiled is None:
            graph, state = nnx.split(self.network(0))

            def step(state: Any, moments: Any, batch: Batch, rate: Array) -> tuple[Any, Any]:
                gradients = jax.grad(lambda state: self.loss(nnx.merge(graph, state), batch))(state)
                updates, moments = _adam().update(gradients, moments)
                return jax.tree.map(lambda x, u: x - rate * u, state, updates), moments

            batch = {name: x[:BATCH] for name, x in data.items()}
            rate = jnp.float32(0)
            self.compiled = (
                jax.jit(step, donate_argnums=(0, 1)).lower(state, _adam().init(state), batch, rate).compile()
            )
        return self.compiled


def _adam() -> optax.GradientTransformation:
    return optax.scale_by_adam(b2=0.99)


def batches(seed: int, n: int, steps: int) -> np.ndarray:
    """The places of the examples of each step, int [steps, BATCH]: of a seed the same for every network."""
    order = np.random.default_rng(seed)
    epochs = -(-steps * BATCH // n)
    places = np.concatenate([order.permutation(n) for _ in range(epochs)])
    return places[: steps * BATCH].reshape(steps, BATCH)


def outputs(network: Any, forward: Callable[[Any, Batch], Array], data: Batch) -> np.ndarray:
    """What `forward(network, batch)` gives for all examples, 500 at a time: [n, ...]."""
    graph, state = nnx.split(network)
    n = len(next(iter(data.values())))
    parts = [_outputs(forward, graph, state, {k: x[i : i + 500] for k, x in data.items()}) for i in range(0, n, 500)]
    return np.concatenate([np.asarray(part) for part in parts])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(forward: Callable[[Any, Batch], Array], graph: Any, state: Any, batch: Batch) -> Array:
    return forward(nnx.merge(graph, state), batch)
