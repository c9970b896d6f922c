"""Networks that stand for ours: one whose answer is known, and one to search, once in jax and once in PyTorch.

The latter is recurrent, so that what it says depends on all that was said. Its logits are far apart, and differ from
input to input, so that beams part and answers end at different lengths.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

WIDTH, V = 12, 9
PAD, BEGIN, END = 8, 7, 0  # as Marian's: the end is 0, and the last ids are never to be said


@functools.cache
def weights(vocabulary: int = V, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"recurrent": (WIDTH, WIDTH), "embedding": (vocabulary, WIDTH), "out": (WIDTH, vocabulary)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def inputs(count: int, seed: int = 1) -> np.ndarray:
    """The memories of so many inputs, float32 [B, WIDTH]."""
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def step(tokens: Any, cache: Any, w: dict[str, np.ndarray] | None = None) -> Any:
    """One step in jax, over a cache (state [R, WIDTH], memory [B, WIDTH])."""
    w, (state, memory) = w or weights(), cache
    shared = jnp.repeat(memory, len(state) // len(memory), axis=0)
    state = jnp.tanh(state @ w["recurrent"] * 0.7 + jnp.asarray(w["embedding"])[tokens] + shared)
    return state @ w["out"] * 0.8, (state, memory)


def take(cache: Any, rows: Any) -> Any:
    return cache[0][rows], cache[1]


def start(memory: Any) -> Any:
    return jnp.zeros_like(memory), jnp.asarray(memory)


@dataclass
class TorchCache:
    """The cache of the same network in PyTorch."""

    state: Any
    memory: Any

    def take(self, rows: Any) -> "TorchCache":
        return TorchCache(self.state[rows], self.memory[rows])


def torch_step(tokens: Any, cache: TorchCache) -> Any:
    import torch

    w = {name: torch.from_numpy(x) for name, x in weights().items()}
    state = torch.tanh(cache.state @ w["recurrent"] * 0.7 + w["embedding"][tokens] + cache.memory)
    return state @ w["out"] * 0.8, TorchCache(state, cache.memory)


class Fixed:
    """A network whose answer is known."""

    dtype = "float64"

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, images, *, keys=None):
        return jnp.asarray(self.logits)
