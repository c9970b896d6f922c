"""A stack of equal blocks, and the two ways in which training can compute it with other means than block after block.

Scan: the weights of all blocks are stacked, and one compiled loop (jax.lax.scan) runs over them, so that the program of
a step does not grow with the depth. Remat: the backward pass computes again what is within a block instead of keeping
it (Chen et al. 2016, arXiv 1604.06174). Both change results by rounding alone, and a network's parameters not at all:
stacking is a part of the step. (A loop over blocks of which only some train differentiates all of them.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from ..config.run import RunConfig
from ..machine.targets import HERE, Target
from .attention import Attention, AttentionPool
from .attention_kernels import FUSED, obstacle
from .layers import Intermediates, LayerNorm, Linear, Mlp, sow
from .rounded import product_p
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

    scan, remat = False, "none"  # as in RunConfig
    by_rows = False  # whether XLA is told to keep the values of a token together in memory
    gather: Callable[[Any], None] | None = None  # makes the weights of a block whole, in place, where they are split

    def apply_blocks(
        self,
        x: Array,
        call: Callable[..., Array],
        intermediates: Intermediates | None = None,
        prefix: str = "",
        maps: tuple[str, ...] = ("attention",),
    ) -> Array:
        """What x is after all blocks: x [B, N, D] -> [B, N, D].

        With intermediates, which training never has, blocks are computed one after the other.
        """
        if self.by_rows:  # on a GPU XLA 0.10 lets the batch lie innermost, for the gradient of the positions
            x = jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1])).reshape(x.shape)
        if intermediates is None and (self.scan or self.remat != "none" or self.gather):
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
        """`through` with what training chooses: scan, remat, split weights."""
        (definition, *others), trees = zip(*map(split_model, self), strict=True)
        if any(other != definition for other in others):
            raise ValueError("blocks differ in more than their weights: let it depend on the block's number in `call`")

        def after(x: Array, tree: Any, i: Array) -> Array:
            block = merge(definition, tree)
            if self.gather:
                self.gather(block)
            return call(block, x, i)

        if self.remat != "none":
            # Within a loop XLA does not take the second computation for the first, and needs no barrier against it.
            after = jax.checkpoint(after, policy=POLICIES[self.remat], prevent_cse=not self.scan)
        numbers = jnp.arange(len(self), dtype=jnp.int32)
        if self.scan:
            stacked = jax.tree.map(lambda *weights: jnp.stack(weights), *trees)
            return jax.lax.scan(lambda x, block: (after(x, *block), None), x, (stacked, numbers))[0]
        for tree, i in zip(trees, numbers, strict=True):
            x = after(x, tree, i)
        return x


def why_plain(attention: Attention, run: RunConfig, capability: tuple[int, int]) -> str:
    """Why the training step of a run computes an attention plainly; empty where it is fused."""
    if run.attention_kernel == "plain":
        return "attention-kernel is plain"
    if run.attention_kernel == "auto":
        dtype = "float32" if isinstance(attention, AttentionPool) else run.compute_dtype  # of what it is given
        return obstacle(dtype, attention.head_width, capability, attention.dropout)
    if run.attention_kernel != "fused":
        assert_never(run.attention_kernel)
    if run.compute_dtype not in FUSED:
        return f"it computes in {run.compute_dtype}"
    return f"its weights have dropout {attention.dropout:g}" if attention.dropout else ""


def attention_plan(network: Any, run: RunConfig, target: Target) -> tuple[bool, str]:
    """How the training step of a run computes attention. Returns (whether some of it is fused, a sentence on that which
    is not: empty if there is none, if it was not asked for, and of a CPU where nobody expects it).
    """
    found = [module for _, module in nnx.iter_modules(network) if isinstance(module, Attention)]
    reasons = [why for why in (why_plain(each, run, target.capability) for each in found) if why]
    fused = len(reasons) < len(found)
    if run.attention_kernel == "plain" or (run.attention_kernel == "auto" and target.platform == "cpu"):
        return fused, ""
    if reasons:
        some = f" in {len(reasons)} of {len(found)} layers" if fused else ""
        return fused, f"attention is plain{some}: {' or '.join(dict.fromkeys(reasons))}"
    padded = fused and any(argument.padding for argument in run.model.inputs())
    return fused, "attention is plain where padding is masked" if padded else ""


@jax.custom_jvp
def _times_one(x: Array, ones: Array) -> Array:
    return x * ones


@_times_one.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _times_one(*primals), tangents[0]


def cast_together(blocks: Stack, dtype: str) -> None:
    """Cast the weights of all linear layers of blocks, in place, by few kernels of a GPU.

    XLA makes one kernel of many that have the same shape and read the same array: here one of ones, which changes no
    number, and which the barrier keeps.
    """
    ones: dict[Any, Array] = {}
    for _, module in nnx.iter_modules(blocks):
        for weights in (module.kernel, module.bias) if isinstance(module, Linear) else ():
            if weights is not None:
                x = weights[...]
                if x.shape[-1:] not in ones:
                    ones[x.shape[-1:]] = jax.lax.optimization_barrier(jnp.ones(x.shape[-1:], x.dtype))
                weights.set_value(_times_one(x, ones[x.shape[-1:]]).astype(dtype))


def with_lowering(network: Any, run: RunConfig, target: Target = HERE) -> Any:
    """The network of a training step, after it is told what a run chooses, and which devices the step is for.

    GPUs and TPUs are limited by the bytes that they move. On a GPU activations lie row by row, and less of them is
    kept; on a TPU no array is copied to be given another shape.
    """
    capability = target.capability
    on_gpu = capability > (0, 0)
    for _, module in nnx.iter_modules(network):
        if isinstance(module, Stack):
            module.scan, module.remat = run.scan, run.remat
            module.by_rows = on_gpu
            if on_gpu and run.compute_dtype == "bfloat16":
                cast_together(module, run.compute_dtype)
        elif isinstance(module, LayerNorm):
            module.platform = target.platform
        elif isinstance(module, Mlp):
            module.recompute = on_gpu and run.remat == "none"
        elif isinstance(module, Linear):
            module.tiled = target.platform == "tpu"
        elif isinstance(module, Attention):
            module.fused, module.capability = not why_plain(module, run, capability), capability
    return network
