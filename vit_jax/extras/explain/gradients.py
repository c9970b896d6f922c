"""Gradients that explanations are made of: with respect to inputs, and along a path."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def integrated_gradients(gradient: Callable[[Array], Array], x: Array, baseline: Array, steps: int) -> Array:
    """Integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365): (x - b) times the mean gradient from b to x.
    Shapes: x float [...] -> [..., *x.shape].

    The integral over the straight line is a Gauss-Legendre sum, as captum computes it.
    """
    nodes, weights = np.polynomial.legendre.leggauss(steps)  # on -1..1, with weights that sum to 2
    places = jnp.asarray((nodes + 1) / 2, x.dtype), jnp.asarray(weights / 2, x.dtype)

    def add(total: Array, place: tuple[Array, Array]) -> tuple[Array, None]:
        along, weight = place
        return total + weight * gradient(baseline + along * (x - baseline)), None

    whole = jax.eval_shape(gradient, x)
    return (x - baseline) * jax.lax.scan(add, jnp.zeros(whole.shape, whole.dtype), places)[0]


def each_gradient(values: Callable[[Array], Array], x: Array) -> Array:
    """The gradient of each of K values with respect to x: [K, *x.shape], one after the other."""
    told, pull = jax.vjp(values, x)
    return jax.lax.map(lambda one: pull(one)[0], jnp.eye(len(told), dtype=told.dtype))
