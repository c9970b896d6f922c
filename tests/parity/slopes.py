"""Our gradients against central differences of our own forward pass, in float64: needs no second framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convert.verify.checks import Check
from convert.verify.sides import Ours
from convert.write.program.network import on_cpu
from vit_jax.config.trees import unflatten
from vit_jax.models.state import merge, split_model

from . import cases
from .cases import Case, Config
from .sides import ours
from .weights import inputs, weights, zero_gradients

H, ENTRIES, CHUNK = 3e-5, 4, 128  # step; entries of each tensor; nets that one vectorised pass evaluates
SHARE = 0.05  # of a tensor's largest gradient
AGAINST = "central differences"
DIFFERENCES = 1e-6  # the limit of |x - y| / (|x| + |y|)


def slope(name: str, c: Config, seed: int = 0) -> Check:
    """The largest |x - y| / max(1e-8, |x| + |y|) over some entries of every tensor.

    Parameters whose true gradient is 0 stay apart; so do entries that both sides call less than a
    twentieth of their tensor's largest, where the h^2 of the difference is all there is to see, and
    those at which ReLU has a kink within the step: there the differences at h and at h/2 disagree.
    """
    p, given = weights(c, seed=seed), inputs(c)
    mine, rng = ours(c, p), np.random.default_rng(seed)
    cotangent = rng.standard_normal(mine.forward(given).shape)
    gradients = mine.gradients(given, cotangent)
    chosen = [
        (k, i)
        for k in p
        if k not in zero_gradients(c)
        for i in rng.choice(p[k].size, min(ENTRIES, p[k].size), replace=False)
    ]
    exact = np.array([gradients[k].flat[i] for k, i in chosen])
    found, smooth = differences(mine, p, given, cotangent, chosen, H), np.ones(len(chosen), bool)
    if "relu" in _activations(c):
        smooth = np.abs(found - differences(mine, p, given, cotangent, chosen, H / 2)) <= 1e-7 * np.maximum(
            1, np.abs(found)
        )
    there = np.maximum(np.abs(exact), np.abs(found)) >= [SHARE * np.abs(gradients[k]).max() for k, _ in chosen]
    apart = np.abs(found - exact) / np.maximum(1e-8, np.abs(found) + np.abs(exact)) * (smooth & there)
    if smooth.mean() < 0.8:
        return Check(name, AGAINST, "gradients", np.inf, DIFFERENCES, "too many kinks")
    worst = int(apart.argmax())
    return Check(name, AGAINST, "gradients", float(apart[worst]), DIFFERENCES, chosen[worst][0])


def _activations(c: Config) -> tuple[str, ...]:
    parts = (c, getattr(c, "vit", None), getattr(c, "text", None))
    names = ("activation", "stem_activation", "head_activation")
    return tuple(str(getattr(part, name, "")) for part in parts for name in names)


def differences(
    mine: Ours,
    p: dict[str, np.ndarray],
    given: dict[str, Any],
    cotangent: np.ndarray,
    chosen: list[tuple[str, int]],
    h: float,
) -> np.ndarray:
    """(f(p + h) - f(p - h)) / 2h for each chosen entry, many nets at a time."""
    moves = [(k, i, sign * h) for k, i in chosen for sign in (1, -1)]
    moves += [moves[-1]] * (-len(moves) % CHUNK)
    with on_cpu("float64"):
        definition, arrays = split_model(mine.model)[0], mine.arrays(given)

        def f(tree: Any) -> Any:
            return (mine.call(merge(definition, tree), **arrays) * cotangent).sum()

        out: list[np.ndarray] = []
        for first in range(0, len(moves), CHUNK):
            stack = {k: np.repeat(v[None], CHUNK, 0) for k, v in p.items()}
            for n, (k, i, step) in enumerate(moves[first : first + CHUNK]):
                stack[k][n].flat[i] += step
            out.append(np.asarray(jax.vmap(f)(unflatten({k: jnp.asarray(v) for k, v in stack.items()}))))
    values = np.concatenate(out)[: 2 * len(chosen)].reshape(-1, 2)
    return (values[:, 0] - values[:, 1]) / (2 * h)


def networks() -> list[Case]:
    """Every value of the options that change the function's form, and the combinations; sizes and starts do not."""
    sizes = {*cases.STARTS, "image", "patch", "width", "depth", "encoder_depth", "decoder_depth", "channels", "hidden"}
    listed = [
        c
        for base in (cases.VIT, cases.TRANSFORMER)
        for c in cases.options(base)
        if c.name.partition("=")[0] not in sizes and "dropout" not in c.name
    ]
    return [*cases.combinations(), *listed]


def slopes() -> Iterator[Check]:
    """All of them."""
    for case in networks():
        yield slope(case.name, case.config)
