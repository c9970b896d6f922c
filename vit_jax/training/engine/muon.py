"""Muon: the momentum of a matrix, made nearly orthogonal (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

The coefficients, the number of iterations and the scale are those that its authors published and torch.optim.Muon has.
optax.contrib.muon corrects the bias of the moment, which changes the direction of the first updates, so it is not used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ...machine.numerics import mesh_agnostic

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7


class MuonState(NamedTuple):
    """The moment of each kernel, by name."""

    mu: dict[str, Array]


def scale_by_muon(beta: Array | float) -> optax.GradientTransformation:
    """The directions of kernels {name: [in, out]}, in their dtype, with Nesterov momentum.

    They are scaled by sqrt(max(1, out / in)), so that kernels of all shapes can have one rate.
    """

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, MuonState]:
        mu = {name: beta * state.mu[name] + (1 - beta) * g for name, g in gradients.items()}
        ahead = {name: beta * mu[name] + (1 - beta) * g for name, g in gradients.items()}
        return {n: max(1, x.shape[1] / x.shape[0]) ** 0.5 * x for n, x in orthogonal(ahead).items()}, MuonState(mu)

    return optax.GradientTransformation(lambda kernels: MuonState(optax.tree.zeros_like(kernels)), update)


@mesh_agnostic
def orthogonal(matrices: dict[str, Array]) -> dict[str, Array]:
    """Each matrix with its singular values replaced by numbers of about 0.7 to 1.2; 0 stays 0. Shapes: matrices [in,
    out] -> {name: [in, out]}, each in its own dtype.

    Matrices of one shape are computed as one stack, so that a GPU multiplies them in one call.
    """
    stacks: dict[tuple[int, ...], dict[str, Array]] = {}
    for name, x in matrices.items():
        wide = x if x.shape[0] <= x.shape[1] else x.T  # the products are then of the smaller size
        stacks.setdefault(wide.shape, {})[name] = wide
    out: dict[str, Array] = {}
    for stack in stacks.values():
        found = jax.lax.platform_dependent(
            jnp.stack([*stack.values()]),
            cpu=lambda matrices: jax.lax.map(newton_schulz, matrices),  # there a product of stacks is slower
            default=newton_schulz,
        )
        out |= dict(zip(stack, found, strict=True))
    return {name: out[name] if x.shape[0] <= x.shape[1] else out[name].T for name, x in matrices.items()}


def newton_schulz(x: Array) -> Array:
    """The iteration X <- a X + b (XX')X + c (XX')^2 X on matrices [..., m, n], m <= n, of Frobenius norm 1 at first."""
    a, b, c = COEFFICIENTS
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + EPS)

    def iterate(_: int, x: Array) -> Array:
        square = x @ x.mT
        return a * x + (b * square + c * square @ square) @ x

    return jax.lax.fori_loop(0, ITERATIONS, iterate, x)
