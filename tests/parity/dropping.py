"""Dropout: one mask fed to both sides, and the statistics of our own masks at every site."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch

from convert.verify.checks import Check, values
from convert.verify.sides import Ours
from convert.write.program.network import on_cpu
from vit_jax.models import attention, decoder, decoder_model, layers, transformer, vit

from .cases import TRANSFORMER, VIT, Config
from .sides import ours, torch_twin
from .weights import Inputs, inputs, weights

RATES = ("embedding_dropout", "attention_dropout", "dropout", "activation_dropout")
VITS = replace(VIT, layer_scale=0.1, head_hidden=6, head_dropout=0.3, drop_path=0.4, **dict.fromkeys(RATES, 0.3))
TRANSFORMERS = replace(TRANSFORMER, **dict.fromkeys((*RATES, "final_dropout"), 0.3))


class Masks:
    """The same masks in the same order, whoever asks: the n-th for a shape, True where kept."""

    def __init__(self) -> None:
        self.count = 0

    def next(self, shape: tuple[int, ...], rate: float) -> np.ndarray:
        self.count += 1
        return np.random.default_rng(self.count).random(math.prod(shape)).reshape(shape) >= rate


@contextlib.contextmanager
def fed() -> Iterator[tuple[Masks, Masks]]:
    """Our `_keep` and torch's dropout, both fed from one list; examples of a batch share a mask here."""
    mine, theirs = Masks(), Masks()

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return x * torch.from_numpy(theirs.next(tuple(x.shape[1:]), p)) / (1 - p) if training and p else x

    with (
        mock.patch.object(layers, "_keep", lambda key, shape, rate: jnp.asarray(mine.next(shape, rate))),
        mock.patch.object(torch.nn.functional, "dropout", dropout),
    ):
        yield mine, theirs


def trained(mine: Ours, given: Inputs, seed: int = 0) -> np.ndarray:
    """Our logits in training."""
    with on_cpu("float64"):
        keys = jax.random.split(jax.random.key(seed), len(next(iter(given.values()))))
        return np.asarray(mine.call(mine.model, **mine.arrays(given), keys=keys))


def one_mask(name: str, c: Config) -> Iterator[Check]:
    """The training pass of both sides: the sites lie in the same places, drop and scale alike."""
    mine, twin, given = ours(c, weights(c)), torch_twin(c, weights(c)), inputs(c)
    twin.module.train()
    with fed() as (asked, their):
        a, b = trained(mine, given), twin.forward(given)
    twin.module.eval()
    yield values(
        name, "torch_ref, one mask fed to both", "float64, in training", {"logits": a}, {"logits": b}, "float64"
    )
    yield Check(name, "torch_ref, one mask fed to both", "number of sites", abs(asked.count - their.count), 0)


def statistics(name: str, c: Config, batch: int = 32) -> Iterator[Check]:
    """At every site: the share dropped within 4 standard deviations, the rest scaled by 1/(1-p), no mask used twice."""
    seen: list[tuple[float, np.ndarray, np.ndarray]] = []
    real, core = layers.dropout, attention.attention_core

    def recorded(x: Any, rate: float, keys: Any) -> Any:
        y = real(x, rate, keys)
        if keys is not None and rate:
            seen.append((rate, np.asarray(x), np.asarray(y)))
        return y

    def recorded_core(q: Any, k: Any, v: Any, mask: Any, bias: Any, kept: Any, rate: float) -> Any:
        context, weights = core(q, k, v, mask, bias, kept, rate)
        if kept is not None:
            seen.append((rate, np.asarray(weights), np.asarray(layers.drop(weights, kept, rate))))
        return context, weights

    mine, given = ours(c, weights(c), "float64"), inputs(c, batch=batch)
    with (
        mock.patch.object(attention, "attention_core", recorded_core),
        mock.patch.object(layers, "dropout", recorded),
        mock.patch.object(vit, "dropout", recorded),
        mock.patch.object(decoder, "dropout", recorded),
        mock.patch.object(decoder_model, "dropout", recorded),
        mock.patch.object(transformer, "dropout", recorded),
    ):
        first, again, other = trained(mine, given), trained(mine, given), trained(mine, given, 1)
    seen = seen[: len(seen) // 3]
    against = "what dropout is"
    yield Check(name, against, "same key, same output", float(np.abs(first - again).max()), 0)
    yield Check(name, against, "another key, another output", float(np.abs(first - other).max() == 0), 0)
    for site, (rate, x, y) in enumerate(seen):
        dropped, there = (y == 0) & (x != 0), x != 0
        n = there.sum()
        z = abs(dropped.sum() - n * rate) / math.sqrt(n * rate * (1 - rate))
        scale = np.abs(y - np.where(dropped, 0, x / (1 - rate))).max() / np.abs(x).max()
        title = f"{name}, site {site} {list(x.shape[1:])}"
        yield Check(title, against, "share dropped, in standard deviations", float(z), 4)
        yield Check(title, against, "scale of the rest", float(scale), 1e-12)
        if x[0].size > 30:  # two masks of so many values are not the same by chance
            yield Check(
                title,
                against,
                "examples with the first one's mask",
                float(sum((d == dropped[0]).all() for d in dropped[1:])),
                0,
            )
    alike = sum(
        a[2].shape == b[2].shape and ((a[2] == 0) == (b[2] == 0)).all()
        for i, a in enumerate(seen)
        for b in seen[:i]
        if a[1][0].size > 30
    )
    yield Check(name, against, "sites that share a mask", float(alike), 0)


def dropping() -> Iterator[Check]:
    """Both models, pre- and post-norm."""
    for name, c in (("ViT", VITS), ("Transformer", TRANSFORMERS)):
        yield from one_mask(f"{name}, every rate", c)
        yield from one_mask(f"{name} post-norm, every rate", replace(c, norm_first=False))
        yield from statistics(f"{name}, every rate", c)
