"""Ours against torch_ref: every preset and every value of every slot, forward pass block by block, and gradients."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import torch

from vit_jax.layers import merge, split
from vit_jax.runs import flatten

from .cases import Case, Config
from .compare import Result, gradients, tensors, values
from .sides import Twin, doubles, ours
from .weights import Inputs, inputs, starts, weights, zero_gradients

TWIN = "torch_ref"


def forward(name: str, c: Config, numbers: dict[str, np.ndarray], given: Inputs, dtype: str, what: str) -> Result:
    """Every captured value in order, logits last."""
    return values(
        name, TWIN, what, ours(c, numbers, dtype).capture(given), Twin(c, numbers, dtype).capture(given), dtype
    )


def backward(name: str, c: Config, numbers: dict[str, np.ndarray], given: Inputs) -> list[Result]:
    """Float64 gradients of every parameter and input, of a random sum of the logits."""
    twin = Twin(c, numbers)
    cotangent = np.random.default_rng(1).standard_normal(twin.forward(given).shape)
    return gradients(
        name, TWIN, ours(c, numbers).gradients(given, cotangent), twin.gradients(given, cotangent), zero_gradients(c)
    )


def carried(name: str, c: Config, numbers: dict[str, np.ndarray]) -> Result:
    """Weights that went to the twin and came back: the same bits."""
    return tensors(name, TWIN, Twin(c, numbers).parameters(), numbers)


def case(case: Case, thorough: bool = False) -> Iterator[Result]:
    """All comparisons of one network. `thorough` adds a batch of one and inputs far from zero."""
    c, name = case.config, case.name
    sets = {"start": starts(case)} if case.start else {w: weights(c, w) for w in "AB"}
    yield carried(name, c, next(iter(sets.values())))
    for which, numbers in sets.items():
        yield forward(name, c, numbers, inputs(c, which=which), "float64", f"float64, weights {which}")
    which, numbers = next(iter(sets.items()))
    yield forward(
        name,
        c,
        numbers,
        inputs(c, which=which, mean=10 if _first_norm(c) else 0),
        "float32",
        f"float32, weights {which}",
    )
    yield from backward(name, c, numbers, inputs(c, which=which))
    if thorough:
        yield forward(name, c, numbers, inputs(c, batch=1, which=which), "float64", "float64, batch of one")
        yield forward(name, c, numbers, inputs(c, which=which, mean=1000), "float64", "float64, inputs of mean 1000")


def _first_norm(c: Config) -> bool:
    """Whether a norm sees the inputs' mean before attention does: a post-norm net's attention saturates on it."""
    return c.norm_first


def jitted(name: str, c: Config) -> list[Result]:
    """The compiled forward and backward pass against the twin's."""
    numbers, given = weights(c), inputs(c)
    mine, twin = ours(c, numbers), Twin(c, numbers)
    cotangent = np.random.default_rng(1).standard_normal(twin.forward(given).shape)
    with doubles("float64"):
        definition, arrays = split(mine.model)[0], mine.arrays(given)

        def run(tree: object, arrays: Inputs, cotangent: jax.Array) -> object:
            y, back = jax.vjp(lambda tree: mine.call(merge(definition, tree), **arrays), tree)
            return y, back(cotangent)[0]

        y, tree = jax.jit(run)(mine.tree, arrays, jnp.asarray(cotangent))
    theirs = {k: v for k, v in twin.gradients(given, cotangent).items() if not k.startswith("input.")}
    found = {k: np.asarray(v) for k, v in flatten(tree).items()}
    return [
        values(name, TWIN, "float64, jitted", {"logits": np.asarray(y)}, {"logits": twin.forward(given)}, "float64"),
        *gradients(name, f"{TWIN} (jitted)", found, theirs, zero_gradients(c)),
    ]


def decoding(name: str, c: Config) -> Iterator[Result]:
    """One token at a time with a cache, against the whole target at once and against the twin's own cache; a row's source is all padding."""
    numbers, given = weights(c), inputs(c)
    source, target, padding = (given[k] for k in ("source", "target", "source_padding"))
    mine, twin = ours(c, numbers), Twin(c, numbers)
    whole = mine.forward({"source": source, "target": target, "source_padding": padding})
    with doubles("float64"):
        cache = mine.model.init_cache(
            mine.model.encode(jnp.asarray(source), jnp.asarray(padding)), jnp.asarray(padding), target.shape[1]
        )
        steps = []
        for t in range(target.shape[1]):
            logits, cache = mine.model.decode_step(jnp.asarray(target[:, t]), cache)
            steps.append(np.asarray(logits))
    with torch.no_grad():
        ids, keep = torch.from_numpy(source), torch.from_numpy(padding)
        cache, theirs = twin.module.init_cache(twin.module.encode(ids, keep), keep, target.shape[1]), []
        for t in range(target.shape[1]):
            logits, cache = twin.module.decode_step(torch.from_numpy(target[:, t]), cache)
            theirs.append(logits.numpy())
    mine_by_token = {f"token {t}": y for t, y in enumerate(steps)}
    yield values(
        name,
        "itself, all tokens at once",
        "float64, cached",
        mine_by_token,
        {f"token {t}": whole[:, t] for t in range(len(steps))},
        "float64",
    )
    yield values(
        name, TWIN, "float64, cached", mine_by_token, {f"token {t}": y for t, y in enumerate(theirs)}, "float64"
    )
