"""How the program of a network is written for the devices that run it, which a training step chooses.

None of it is a part of the function that a network computes: results differ by rounding alone. The last part is how
bfloat16 is computed on a CPU: in the products of linear layers alone, if it has instructions for them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..config.run import RunConfig
from ..machine.backend import few_rows
from ..machine.targets import HERE, Target

Gather = Callable[[str, Any], Any]  # of the name of a stack and the tree of one of its blocks


@dataclass(frozen=True)
class Lowering:
    """What a network is built with besides its dtypes; as it is by default, programs are for any device.

    GPUs and TPUs are limited by the bytes that they move. On a GPU activations lie row by row, and less of them is
    kept; on a TPU no array is copied to be given another shape.
    """

    platform: str = ""  # cpu, gpu or tpu; empty: any
    capability: tuple[int, int] = (0, 0)  # compute capability of the GPU that it is for; (0, 0): no such GPU
    attention: Literal["plain", "auto", "fused"] = "plain"  # as `attention_kernel` in RunConfig
    remat: Literal["none", "dots", "full"] = "none"  # this and `scan`: as in RunConfig
    scan: bool = False
    rounds: bool = False  # whether the factors of linear layers are rounded to bfloat16, where all else is in float32
    gather: Gather | None = None  # makes the weights of a block whole where they are split, of one engine

    @property
    def tiled(self) -> bool:
        """Whether matrices lie in memory as tiles, so that another shape of the same values is a copy."""
        return self.platform == "tpu"

    @property
    def by_rows(self) -> bool:
        """Whether XLA is told to keep the values of a token together in memory."""
        return self.capability > (0, 0)

    @property
    def recompute(self) -> bool:
        """Whether the backward pass computes an mlp's hidden layer again, from what enters its activation."""
        return self.by_rows and self.remat == "none"

    def within(self, part: str) -> Lowering:
        """That of a network which is a part of another one."""
        if (gather := self.gather) is None:
            return self
        return replace(self, gather=lambda name, tree: gather(f"{part}.{name}", tree))


PLAIN = Lowering()


def of_evaluation(dtype: Any, target: Target = HERE) -> Lowering:
    """How a network that computes in this dtype is lowered wherever it is not trained."""
    return Lowering(rounds=rounds_factors(jnp.dtype(dtype).name, target))


def of_training(run: RunConfig, target: Target = HERE) -> Lowering:
    """How the training step of a run is lowered; of one that splits parameters, without `gather`."""
    rounds, there = rounds_factors(run.compute_dtype, target), (target.platform, target.capability)
    return Lowering(*there, run.attention_kernel, run.remat, run.scan, rounds)


# bfloat16 on a CPU.

INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}  # of x86, as Linux names them


@functools.cache
def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the CPU that a file describes, this machine's, can do besides the usual; empty where there is no file."""
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, flags = line.partition(":")
            if name.strip() == "flags":
                return frozenset(flags.split())
    return frozenset()


def has_instructions() -> bool:
    """Whether this machine's CPU multiplies in bfloat16."""
    return bool(INSTRUCTIONS & cpu_flags())


def rounds_factors(compute_dtype: str, target: Target = HERE) -> bool:
    """Whether a run rounds the factors of the products of linear layers to bfloat16, and computes all else in float32.

    On a CPU with the instructions that is 1.5 times as fast as float32. Activations in bfloat16 are 0.8 times as fast,
    because each operation on them widens and rounds them.
    """
    return compute_dtype == "bfloat16" and target.platform == "cpu" and has_instructions()


def options(compute_dtype: str, target: Target = HERE) -> dict[str, Any]:
    """Options of jax.jit for a step: Eigen, where configure_jax has chosen it, multiplies in bfloat16 no faster."""
    return few_rows() if rounds_factors(compute_dtype, target) else {}


# Products of matrices whose factors are rounded to bfloat16 and whose sums are in float32. A CPU with instructions for
# bfloat16 is twice as fast at them as in float32, if XLA is asked for a float32 result and all factors lie row by row.
# Derivatives multiply by a transposed factor, which XLA would read column by column: here it is copied.


def rounded_product(a: Array, b: Array) -> Array:
    """a @ b of rounded factors, float32: a primitive, so that all its derivatives are such products too."""
    product: Array = product_p.bind(a, b)
    return product


def _multiply(a: Array, b: Array) -> Array:
    return jnp.matmul(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def _stored_transpose(x: Array) -> Array:
    """The transpose of each matrix, rounded, row by row in memory: XLA may lay out a matrix as it likes, no vector."""
    transpose = jnp.swapaxes(x.astype(jnp.bfloat16), -1, -2)
    return jax.lax.optimization_barrier(transpose.reshape(-1)).reshape(transpose.shape)


def _batched(factors: tuple[Array, Array], axes: tuple[int | None, int | None]) -> tuple[Array, int]:
    """The rule of vmap: another leading axis."""
    size = next(x.shape[axis] for x, axis in zip(factors, axes, strict=True) if axis is not None)
    a, b = (
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(factors, axes, strict=True)
    )
    return rounded_product(a, b), 0


product_p = Primitive("rounded_product")
product_p.def_impl(jax.jit(_multiply))
product_p.def_abstract_eval(lambda a, b: ShapedArray((*a.shape[:-1], b.shape[-1]), jnp.float32))
mlir.register_lowering(product_p, mlir.lower_fun(_multiply, multiple_results=False))
batching.primitive_batchers[product_p] = _batched
ad.defbilinear(
    product_p,
    lambda gradient, a, b: rounded_product(gradient, _stored_transpose(b)).astype(a.aval.dtype),
    lambda gradient, a, b: rounded_product(_stored_transpose(a), gradient).astype(b.aval.dtype),
)
