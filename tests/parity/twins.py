"""Ours against torch_ref: every preset and every value of every option, forward pass block by block, and gradients."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import torch

from convert.verify.checks import Check, bits, gradients, values
from convert.verify.sides import Ours
from convert.write.program.network import on_cpu
from vit_jax.models.captioner_config import CaptionerConfig

from .cases import Case, Config
from .sides import ours, torch_twin
from .weights import Inputs, inputs, starts, weights

TWIN = "torch_ref"


def forward(name: str, c: Config, numbers: dict[str, np.ndarray], given: Inputs, dtype: str, what: str) -> Check:
    """Every captured value in order, logits last."""
    return values(
        name, TWIN, what, ours(c, numbers, dtype).capture(given), torch_twin(c, numbers, dtype).capture(given), dtype
    )


def backward(name: str, c: Config, numbers: dict[str, np.ndarray], given: Inputs) -> list[Check]:
    """Float64 gradients of every parameter and input, of a random sum of the logits."""
    twin = torch_twin(c, numbers)
    cotangent = np.random.default_rng(1).standard_normal(twin.forward(given).shape)
    return gradients(name, TWIN, ours(c, numbers).gradients(given, cotangent), twin.gradients(given, cotangent))


def carried(name: str, c: Config, numbers: dict[str, np.ndarray]) -> Check:
    """Weights that went to the twin and came back: the same bits."""
    return bits(name, TWIN, torch_twin(c, numbers).values(), numbers)


def case(case: Case, thorough: bool = False) -> Iterator[Check]:
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
    return (c.text if isinstance(c, CaptionerConfig) else c).norm_first


def jitted(name: str, c: Config) -> list[Check]:
    """The compiled forward and backward pass against the twin's."""
    numbers, given = weights(c), inputs(c)
    mine, twin = Ours.network(c, numbers, compiled=True), torch_twin(c, numbers)
    y, expected = mine.forward(given), twin.forward(given)
    cotangent = np.random.default_rng(1).standard_normal(expected.shape)
    found, slopes = mine.gradients(given, cotangent), twin.gradients(given, cotangent)
    return [
        values(name, TWIN, "float64, jitted", {"logits": y}, {"logits": expected}, "float64"),
        *gradients(name, f"{TWIN} (jitted)", found, slopes),
    ]


def decoding(name: str, c: Config) -> Iterator[Check]:
    """One token at a time with a cache, against all tokens at once and the twin's cache; one source is all padding."""
    numbers, given = weights(c), inputs(c)
    source, target = given["source"], given["target"]
    padding = {k: given[k] for k in ("source_padding", "memory_padding") if k in given}  # one of them, or none
    mine, twin = ours(c, numbers), torch_twin(c, numbers)
    whole = mine.forward({"source": source, "target": target, **padding})
    keep = next(iter(padding.values()), None)
    with on_cpu("float64"):
        kept = None if keep is None else jnp.asarray(keep)
        encoded = {name: kept for name in padding if name == "source_padding"}  # only that counts in an encoder
        memory = mine.model.encode(jnp.asarray(source), **encoded)
        cache = mine.model.init_cache(memory, kept, target.shape[1])
        steps = []
        for t in range(target.shape[1]):
            logits, cache = mine.model.decode_step(jnp.asarray(target[:, t]), cache)
            steps.append(np.asarray(logits))
    with torch.no_grad():
        read = torch.from_numpy(source.transpose(0, 3, 1, 2) if source.ndim == 4 else source)
        hold = None if keep is None else torch.from_numpy(keep)
        memory = twin.module.encode(read, **dict.fromkeys(encoded, hold))
        cache, theirs = twin.module.init_cache(memory, hold, target.shape[1]), []
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
