"""The factors of LoRA in a compiled step: kernels W + alpha/rank A B (Hu et al. 2021, arXiv 2106.09685, section 4.1).

Networks know nothing of it. A training step takes gradients of a tree of the kernels as they were given and the
factors; `merge` makes the network's parameters of it.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ...config.groups import adapted_kernels, factor_names, factors
from ...config.run import RunConfig
from ...config.trees import Tree, combine, flatten, partition, unflatten
from ...models.state import initial_values
from .shards import Shards


class Lora:
    """The kernels that a run with LoRA adapts, and their factors."""

    def __init__(self, run: RunConfig):
        self.scale = run.lora.alpha / run.lora.rank
        self.kernels, self.factors = adapted_kernels(run), factors(run)

    def initial_factors(self, parameters: Tree, key: Array) -> Tree:
        """The factors before the first step, in the dtype of the kernels."""
        dtype = flatten(parameters)[self.kernels[0]].dtype
        return unflatten(initial_values(self.factors, key, dtype))

    def merged_kernels(self, parameters: Tree, shards: Shards | None = None) -> Tree:
        """The kernels W + s A B, of parameters that have W, A and B."""
        flat, merged = flatten(parameters), {}
        for name in self.kernels:
            a, b = (flat[factor] for factor in factor_names(name))
            if shards is not None:
                a, b = (shards.whole(factor, flat[factor]) for factor in factor_names(name))
                a, b = shards.own_part(name, 0, a), shards.own_part(name, 1, b)
            # On a GPU or TPU the default precision would round the product, and with it the weights.
            merged[name] = flat[name] + self.scale * jnp.matmul(a, b, precision="highest")
        return unflatten(merged)

    def merge(self, parameters: Tree, shards: Shards | None = None) -> Tree:
        """The network's parameters, of those with factors; the arguments are those of `merged_kernels`."""
        return combine(partition(parameters, self.factors)[1], self.merged_kernels(parameters, shards))
