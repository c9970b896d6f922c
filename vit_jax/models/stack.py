"""A stack of equal blocks, and the two ways in which training can compute it with other means than block after block.

Scan: the weights of all blocks are stacked, and one compiled loop (jax.lax.scan) runs over them, so that the program of
a step does not grow with the depth. Remat: the backward pass computes again what is within a block instead of keeping
it (Chen et al. 2016, arXiv 1604.06174). Both change results by rounding alone, and a network's parameters not at all:
stacking is a part of the step. (A loop over blocks of which only some train differentiates all of them.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from .layers import Intermediates, sow
from .lowering import PLAIN, Lowering, product_p
from .state import merge, split_model

# What the backward pass has without computing it again, besides the inputs of blocks: nothing, or products of tokens
# and weights, which are most of the work.
POLICIES: dict[str, Callable[..., Any] | None] = {
    "full": None,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, lambda primitive, *_, **__: primitive is product_p
    ),
}


class Stack(nnx.List[Any]):
    """Blocks that differ in their weights alone; what else depends on the block follows from its number."""

    def __init__(self, blocks: Iterable[Any], prefix: str = "", lowering: Lowering = PLAIN):
        super().__init__(blocks)
        self.prefix, self.lowering = prefix, lowering  # the network's parameters call it PREFIXblocks

    def apply_blocks(
        self,
        x: Array,
        call: Callable[..., Array],
        intermediates: Intermediates | None = None,
        maps: tuple[str, ...] = ("attention",),
    ) -> Array:
        """What x is after all blocks: x [B, N, D] -> [B, N, D].

        With intermediates, which training never has, blocks are computed one after the other.
        """
        how, prefix = self.lowering, self.prefix
        if how.by_rows:  # on a GPU XLA 0.10 lets the batch lie innermost, for the gradient of the positions
            x = jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1])).reshape(x.shape)
        if intermediates is None and (how.scan or how.remat != "none" or how.gather):
            return self._chosen(x, call)
        taken: list[Intermediates] = []
        given = intermediates or {}
        asked = [name for name in maps if prefix + name in given]
        for i, block in enumerate(self):
            inner: Intermediates = dict.fromkeys(asked)
            x = call(block, x, i, inner)
            sow(intermediates, f"{prefix}blocks.{i}", x)
            taken.append(inner)
        for name in asked:
            sow(intermediates, prefix + name, jnp.stack([inner[name] for inner in taken], axis=1))
        return x

    def _chosen(self, x: Array, call: Callable[..., Array]) -> Array:
        """`apply_blocks` with what training chooses: scan, remat, split weights."""
        how = self.lowering
        (definition, *others), trees = zip(*map(split_model, self), strict=True)
        if any(other != definition for other in others):
            raise ValueError("blocks differ in more than their weights: let it depend on the block's number in `call`")

        def after(x: Array, tree: Any, i: Array) -> Array:
            tree = how.gather(f"{self.prefix}blocks", tree) if how.gather else tree
            return call(merge(definition, tree), x, i)

        if how.remat != "none":
            # Within a loop XLA does not take the second computation for the first, and needs no barrier against it.
            after = jax.checkpoint(after, policy=POLICIES[how.remat], prevent_cse=not how.scan)
        numbers = jnp.arange(len(self), dtype=jnp.int32)
        if how.scan:
            stacked = jax.tree.map(lambda *weights: jnp.stack(weights), *trees)
            return jax.lax.scan(lambda x, block: (after(x, *block), None), x, (stacked, numbers))[0]
        for tree, i in zip(trees, numbers, strict=True):
            x = after(x, tree, i)
        return x
