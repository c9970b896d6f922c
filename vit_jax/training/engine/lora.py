"""The factors of LoRA in a compiled step: kernels W + alpha/rank A B (Hu et al. 2021, arXiv 2106.09685, section 4.1).

Networks know nothing of it. A training step takes gradients of a tree of the kernels as they began, with the factors
beside them; `merged` makes the network's parameters of it.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ...config.lora import adapted, factor_names, factors
from ...config.run import RunConfig
from ...config.trees import Tree, flatten, partition, unflatten
from ...models.layers import initial_values


class Lora:
    """The kernels that a run with LoRA adapts, and their factors."""

    def __init__(self, run: RunConfig):
        self.scale = run.lora.alpha / run.lora.rank
        self.kernels, self.factors = adapted(run), factors(run)

    def start(self, parameters: Tree, key: Array) -> Tree:
        """{"kernels": those that are adapted, as they are, "factors": new ones, in the dtype of the kernels}."""
        flat = flatten(parameters)
        kernels = {name: flat[name] for name in self.kernels}
        drawn = initial_values(self.factors, key, flat[self.kernels[0]].dtype)
        return {"kernels": unflatten(kernels), "factors": unflatten(drawn)}

    def whole(self, parameters: Tree, beside: Tree) -> Tree:
        """The parameters with the kernels as they began, and the factors."""
        return unflatten(flatten(parameters) | flatten(beside["kernels"]) | flatten(beside["factors"]))

    def merged(self, whole: Tree) -> Tree:
        """The network's parameters of a tree with factors."""
        flat = flatten(whole)
        for name in self.kernels:
            a, b = (flat.pop(factor) for factor in factor_names(name))
            # On a GPU or TPU the default precision would round the product, and with it the weights.
            flat[name] = flat[name] + self.scale * jnp.matmul(a, b, precision="highest")
        return unflatten(flat)

    def partition(self, tree: Tree) -> tuple[Tree, Tree]:
        """(the factors in a tree, all else of it)."""
        return partition(tree, self.factors)
