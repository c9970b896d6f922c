"""Experiments on CIFAR: convolutions, depth, positions, pooling, heads, distillation, and a wrong GELU.

An experiment gets a `Session` and gives, one after the other, what it has measured: (name, a value for each seed).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

import vit_jax

from .session import Measured, Session
from .training import BATCH, Batch, Learner, outputs

# Initial weights by the width: with ViT's usual 0.02 networks as narrow as these begin to learn much later.
SMALL = vit_jax.ViTConfig(
    image=32, patch=4, classes=10, width=32, depth=3, heads=4, hidden=64, init="fan_in", position_std=0.2
)
HELD_OUT = 5000  # images of train by which rates are chosen
RATES = (1e-3, 3e-3, 1e-2)


def logits(network: Any, batch: Batch) -> Array:
    return network(batch["image"].astype(jnp.float32) / 127.5 - 1)


def cross_entropy(network: Any, batch: Batch) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(network, batch), batch["label"]).mean()


def vit(rate: float = 1e-2, **fields: Any) -> Learner:
    """A ViT that differs from `SMALL` in these fields."""
    config = replace(SMALL, **fields)
    return Learner(lambda seed: vit_jax.ViT(config, rngs=nnx.Rngs(seed)), cross_entropy, rate)


class CNN(nnx.Module):
    """Four convolutions of 3x3, each with GroupNorm and ReLU, the last three of stride 2; then the mean over places."""

    def __init__(self, seed: int, widths: tuple[int, ...] = (16, 32, 64, 128)):
        rngs, before = nnx.Rngs(seed), (3, *widths)
        self.convolutions = nnx.List(
            [nnx.Conv(before[i], n, (3, 3), strides=1 + (i > 0), rngs=rngs) for i, n in enumerate(widths)]
        )
        self.norms = nnx.List([nnx.GroupNorm(n, num_groups=8, rngs=rngs) for n in widths])
        self.head = nnx.Linear(widths[-1], 10, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = nnx.relu(norm(convolution(x)))
        return self.head(x.mean((1, 2)))


def cnn() -> Learner:
    return Learner(CNN, cross_entropy, 3e-3)


def accuracy(network: Any, test: Batch) -> float:
    return float((outputs(network, logits, test).argmax(-1) == test["label"]).mean())


def first(data: Batch, n: int) -> Batch:
    return {name: x[:n] for name, x in data.items()}


def choose_rate(learner: Learner, train: Batch, steps: int, rates: tuple[float, ...], seed: int) -> float:
    """The rate with which a network of another seed is best on the last images of train, which it does not see."""
    seen, held = first(train, -HELD_OUT), {name: x[-HELD_OUT:] for name, x in train.items()}
    found = {rate: accuracy(learner.trained(seed, seen, steps, rate), held) for rate in rates}
    learner.rate = max(found, key=lambda rate: found[rate])
    return learner.rate


def cost(learner: Learner, train: Batch) -> str:
    return f"{learner.operations(train) / BATCH / 1e6:.1f} million operations an image"


def scores(s: Session, learner: Learner, train: Batch, test: Batch, steps: int) -> list[float]:
    """The accuracy on test of each seed."""
    return [accuracy(learner.trained(seed, train, steps), test) for seed in s.seeds]


# ------------------------------------------------------------------------------------------ what learns more


def networks(s: Session) -> Iterator[Measured]:
    """A ViT, a CNN, and a ViT on two convolutions at equal floating-point operations, on few images and on all."""
    train, test = s.images("cifar10")
    stem = vit(patch=8, stem=(16, 32), width=64, depth=4, hidden=128)
    operations = s.scale * 1.0e12
    for name, learner in {"ViT": vit(), "CNN": cnn(), "ViT on convolutions": stem}.items():
        steps = round(operations / learner.operations(train))
        rate = choose_rate(learner, train, steps // 2, RATES, max(s.seeds) + 1)
        s.note(f"{name}: {cost(learner, train)}, rate {rate}")
        for n in (2000, len(train["label"])):
            values = scores(s, learner, first(train, n), test, steps)
            yield f"{name}, {n:,} images", values


def depth(s: Session) -> Iterator[Measured]:
    """6 and 24 layers on CIFAR-100: at one epoch each, and at equal floating-point operations."""
    train, test = s.images("cifar100")
    steps = round(s.scale * len(train["label"]) / BATCH)
    of = {layers: vit(patch=8, classes=100, width=48, hidden=96, depth=layers) for layers in (6, 24)}
    for layers, learner in of.items():
        rate = choose_rate(learner, train, steps // 2, (1e-3, 3e-3), max(s.seeds) + 1)
        s.note(
            f"{layers} layers: {learner.operations(train) / BATCH / 1e6:.1f} million operations an image, rate {rate}"
        )
        yield f"{layers} layers", scores(s, learner, train, test, steps)
    longer = round(steps * of[24].operations(train) / of[6].operations(train))
    yield "6 layers, trained longer", scores(s, of[6], train, test, longer)


def parts(s: Session) -> Iterator[Measured]:
    """Positions, what the head reads, and the number of heads, at an epoch of CIFAR-10 each."""
    train, test = s.images("cifar10")
    steps = round(s.scale * len(train["label"]) / BATCH)
    variants: dict[str, dict[str, Any]] = {
        "learned positions": {},
        "no positions": {"position": "none"},
        "sinusoids of one dimension": {"position": "sincos1d", "position_trained": False},
        "sinusoids of two dimensions": {"position": "sincos2d", "position_trained": False},
        "rotary positions": {"position": "none", "rotary": "axial"},
        "mean of the patches": {"pool": "mean", "cls_token": False},
        "1 head": {"heads": 1},
        "2 heads": {"heads": 2},
        "8 heads": {"heads": 8},
    }
    for name, fields in variants.items():
        learner = vit(**fields)
        yield name, scores(s, learner, train, test, steps)


# ------------------------------------------------------------------------------------------ a teacher


def taught(network: Any, batch: Batch, temperature: float = 3.0) -> Array:
    """Half cross entropy, half T^2 KL(teacher || student) of the outputs over T (Hinton et al. 2015, 1503.02531)."""
    given, own = batch["teacher"] / temperature, logits(network, batch) / temperature
    divergence = (jax.nn.softmax(given) * (jax.nn.log_softmax(given) - jax.nn.log_softmax(own))).sum(-1).mean()
    return 0.5 * cross_entropy(network, batch) + 0.5 * temperature**2 * divergence


def distillation(s: Session) -> Iterator[Measured]:
    """A ViT on CIFAR-10 with and without a CNN as its teacher, on few images and on all.

    On all there is a longer training too, by as many operations as the teacher's training and its answers took.
    """
    train, test = s.images("cifar10")
    student, teacher, pupil = vit(), cnn(), replace(vit(), loss=taught)
    steps = round(s.scale * len(train["label"]) / BATCH)
    for n in (2000, len(train["label"])):
        data, places = first(train, n), f", {n:,} images"
        teachers = [teacher.trained(seed, data, steps) for seed in s.seeds]
        yield f"teacher{places}", [accuracy(t, test) for t in teachers]
        yield f"untaught{places}", scores(s, student, data, test, steps)
        if n > 2000:
            spent = (steps + n / BATCH / 3) * teacher.operations(data)  # an answer is a third of a step
            longer = steps + round(spent / student.operations(data))
            yield f"untaught, longer{places}", scores(s, student, data, test, longer)
        answered = [{**data, "teacher": outputs(t, logits, data)} for t in teachers]
        values = [accuracy(pupil.trained(k, d, steps), test) for k, d in zip(s.seeds, answered, strict=True)]
        yield f"taught{places}", values


# ------------------------------------------------------------------------------------------ a wrong activation


def gelu(s: Session) -> Iterator[Measured]:
    """A trained ViT, with the exact GELU, of 3 and of 12 layers, given other activations: accuracy and logits."""
    train, test = s.images("cifar10")
    steps = round(s.scale * len(train["label"]) / BATCH)
    for layers in (3, 12):
        learner = vit(3e-3, patch=8, width=48, hidden=96, depth=layers)
        trained = [learner.trained(seed, train, steps) for seed in s.seeds]
        right = [outputs(network, logits, test) for network in trained]
        yield f"{layers} layers", [float((x.argmax(-1) == test["label"]).mean()) for x in right]
        for name, activation in {"tanh": "gelu_tanh", "sigmoid": "quick_gelu", "ReLU": "relu"}.items():
            config = replace(trained[0].config, activation=activation)
            wrong = [outputs(with_config(network, config), logits, test) for network in trained]
            values = [float((x.argmax(-1) == test["label"]).mean()) for x in wrong]
            yield f"{layers} layers, {name}", values
            largest = [float(np.abs(a - b).max()) for a, b in zip(right, wrong, strict=True)]
            yield f"{layers} layers, {name}: largest difference of logits", largest
        yield "a tolerance of 0.05", [0.05] * len(s.seeds)


def with_config(network: Any, config: vit_jax.ViTConfig) -> Any:
    """A network of another config with the same weights."""
    other = vit_jax.ViT(config)
    nnx.update(other, nnx.state(network))
    return other


EXPERIMENTS = {f.__name__: f for f in (networks, depth, parts, distillation, gelu)}
