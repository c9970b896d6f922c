"""Experiments on sequences: positions beyond the lengths that were trained, and what a second core gives."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array

import vit_jax

from .session import Measured, Session
from .training import Batch, Learner

BEGIN, END, DIGITS = 1, 2, range(3, 13)  # 0 is padding
LEARNED, LONGER = range(4, 17), range(17, 25)  # lengths of strings
TOKENS, WIDTH, LENGTHS = 8192, 128, (16, 64, 256, 1024)


# ------------------------------------------------------------------------------------------ longer strings


def length(s: Session) -> Iterator[Measured]:
    """Strings of 4 to 16 digits are learned, to be copied or written backwards; then strings of 17 to 24 are asked."""
    steps = round(s.scale * 800)
    for task in ("copied", "backwards"):
        train = strings(20_000, task, LEARNED, 0)
        tests = {"": strings(500, task, LEARNED, 1), ", longer": strings(500, task, LONGER, 2)}
        for position in ("interleaved", "learned", "none"):
            name = {"interleaved": "sinusoids", "learned": "learned positions", "none": "no positions"}[position]
            learner = transformer(position=position)
            networks = [learner.trained(seed, train, steps) for seed in s.seeds]
            for suffix, test in tests.items():
                exact = [float(np.mean(right_strings(network, test))) for network in networks]
                yield f"{name}, {task}{suffix}", exact
                if not suffix:
                    yield f"{name}, {task}: half of it", [value / 2 for value in exact]


def strings(n: int, task: str, lengths: range, seed: int) -> dict[str, np.ndarray]:
    """{"source": int [n, S], "target": int [n, S + 2]}, filled up by 0."""
    draw, longest = np.random.default_rng(seed), lengths[-1]
    source, target = np.zeros((n, longest), np.int32), np.zeros((n, longest + 2), np.int32)
    for row, size in enumerate(draw.integers(lengths[0], longest + 1, n)):
        digits = draw.integers(DIGITS[0], DIGITS[-1] + 1, size)
        source[row, :size] = digits
        target[row, : size + 2] = [BEGIN, *(digits if task == "copied" else digits[::-1]), END]
    return {"source": source, "target": target}


def transformer(**fields: Any) -> Learner:
    """An encoder-decoder of two layers each, 32 wide."""
    config = vit_jax.TransformerConfig(
        width=32, heads=4, hidden=64, encoder_depth=2, decoder_depth=2, max_length=32,
        source_vocabulary=13, target_vocabulary=13, outputs=13, **fields,
    )  # fmt: skip
    return Learner(lambda seed: vit_jax.Transformer(config, rngs=nnx.Rngs(seed)), next_tokens, 4e-3)


def forward(network: Any, source: Array, target: Array) -> Array:
    return network(source, target[:, :-1], source_padding=source != 0)


def next_tokens(network: Any, batch: Batch) -> Array:
    """Cross entropy, the mean over the tokens that are no padding."""
    labels = batch["target"][:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(forward(network, batch["source"], batch["target"]), labels)
    return (losses * (labels != 0)).sum() / (labels != 0).sum()


def right_strings(network: Any, test: Batch) -> np.ndarray:
    """For each string whether what the network writes, from its own tokens, is right to the end: bool [n]."""
    graph, state = nnx.split(network)
    return np.asarray(_right_strings(graph, state, test["source"], test["target"]))


@functools.partial(jax.jit, static_argnums=0)
def _right_strings(graph: Any, state: Any, source: Array, labels: Array) -> Array:
    network = nnx.merge(graph, state)

    def write(t: Array, target: Array) -> Array:
        return target.at[:, t + 1].set(forward(network, source, target)[:, t].argmax(-1))

    initial = jnp.zeros_like(labels).at[:, 0].set(BEGIN)
    written = jax.lax.fori_loop(0, labels.shape[1] - 1, write, initial)
    return ((written == labels) | (labels == 0)).all(1)


# ------------------------------------------------------------------------------------------ steps side by side


class Attention(nnx.Module):
    """A layer of attention and mlp, 8 D^2 weights, as many as an LSTM of this width has."""

    def __init__(self, rngs: nnx.Rngs, heads: int = 4):
        self.heads = heads
        self.inputs, self.out = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        query, key, value = jnp.split(self.inputs(x).reshape(*x.shape[:2], 3 * self.heads, -1), 3, axis=2)
        x = x + self.out(jax.nn.dot_product_attention(query, key, value).reshape(x.shape))
        return x + self.down(nnx.relu(self.up(x)))


class LSTM(nnx.Module):
    """Flax's LSTM over a sequence, from a state of zeros."""

    def __init__(self, rngs: nnx.Rngs):
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(WIDTH, WIDTH, rngs=rngs), rngs=rngs)

    def __call__(self, x: Array) -> Array:
        zeros = jnp.zeros((len(x), WIDTH))
        return self.rnn(x, initial_carry=(zeros, zeros))


LAYERS = {"LSTM": LSTM, "attention": Attention}


def milliseconds(name: str, tokens: int, seconds: float) -> float:
    """The median time of the gradient of a layer, for TOKENS tokens in sequences of `tokens`."""
    graph, weights, rest = nnx.split(LAYERS[name](nnx.Rngs(0)), nnx.Param, ...)
    x = jax.random.normal(jax.random.key(0), (TOKENS // tokens, tokens, WIDTH))
    gradient = jax.jit(jax.grad(lambda weights, x: (nnx.merge(graph, weights, rest)(x) ** 2).mean()))
    jax.block_until_ready(gradient(weights, x))
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        began = time.perf_counter()
        jax.block_until_ready(gradient(weights, x))
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))


def steps(s: Session) -> Iterator[Measured]:
    """The time of a layer's gradient for equally many tokens in sequences of 16 to 1,024, on one core and on two.

    A round takes the place of a seed; each is two processes, one of which may use one core only.
    """
    rounds = [{cores: _process(cores, s.scale) for cores in (1, 2)} for _ in s.seeds]
    for name in LAYERS:
        of = {(n, cores): [r[cores][f"{name} {n}"] for r in rounds] for n in LENGTHS for cores in (1, 2)}
        for (n, cores), values in of.items():
            yield f"{name}, {n} tokens, {cores} {'core' if cores == 1 else 'cores'}: milliseconds", values
        for n in LENGTHS:
            yield f"{name}, {n} tokens: two cores over one", ratios(of[n, 1], of[n, 2])
        yield f"{name}: longest over shortest", ratios(of[LENGTHS[-1], 2], of[LENGTHS[0], 2])


def ratios(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _process(cores: int, scale: float) -> dict[str, float]:
    """{"LAYER TOKENS": milliseconds} of a process that may use so many cores."""
    command = [sys.executable, "-m", __name__, str(cores), str(scale)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _child(cores: int, scale: float) -> None:
    os.sched_setaffinity(0, [*os.sched_getaffinity(0)][:cores])  # before jax makes its threads
    kinds = [(name, tokens) for tokens in LENGTHS for name in LAYERS]
    print(json.dumps({f"{name} {tokens}": milliseconds(name, tokens, scale * 2.0) for name, tokens in kinds}))


EXPERIMENTS = {f.__name__: f for f in (length, steps)}

if __name__ == "__main__":
    _child(int(sys.argv[1]), float(sys.argv[2]))
