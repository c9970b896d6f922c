"""Rows of a ViT built of PyTorch's modules, shared by the layouts of timm, torchvision and similar libraries.

A Linear's weight is (out, in), a LayerNorm has weight and bias, patches are a convolution's (D, C, p, q), and several
projections of one input may be packed into one Linear, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from ..operations import TRANSPOSE, Concat, Operation, Order
from ..rules import Row, row

TOKEN, TOKENS = Order("1 1 d", "d"), Order("1 n d", "n d")  # tokens and positions with a batch axis of length one
Tensors = dict[str, tuple[str, Operation | None]]  # {our name: (the file's name, the operation between them)}
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def convolution(c: ViTConfig) -> Order:
    """The kernel [D, C, p, q] of the convolution that projects patches as our matrix [p*q*C, D]."""
    return flatten_kernel(*c.patch_input)


def flatten_kernel(rows: int, columns: int, channels: int) -> Order:
    """A convolution's kernel [out, channels, rows, columns] as our matrix [rows*columns*channels, out]."""
    return Order("d c p q", "(p q c) d", dict(c=channels, p=rows, q=columns))


def module_rows(
    c: ViTConfig,
    modules: Mapping[str, str],
    packed: Sequence[tuple[str, ...]],
    tensors: Tensors,
    prefix: str = "",
    others: Sequence[Row] = (),
) -> list[Row]:
    """One row for each tensor of the file, in the order of our parameters."""
    taken = {name for other in others for name in other.ours}
    known = {name: shape for name, shape in c.shapes().items() if name not in taken}
    tensors = {"patch.kernel": (f"{modules['patch']}weight", convolution(c)), **tensors}
    packs = {parts[0]: parts for parts in packed}
    inside = {part for parts in packed for part in parts[1:]}
    made = []
    for name, shape in known.items():
        path, _, leaf = name.rpartition(".")
        if name in tensors:
            theirs, operation = tensors[name]
            made.append(row(prefix + theirs, name, shape, *([operation] if operation else [])))
        elif path in packs:
            ours = tuple(f"{part}.{leaf}" for part in packs[path])
            sizes = tuple(known[name][-1] for name in ours)
            made.append(
                Row(
                    (f"{prefix}{modules[path]}{LEAVES[leaf]}",),
                    ours,
                    tuple(known[n] for n in ours),
                    (Concat(0, sizes), *_axes(leaf)),
                )
            )
        elif path not in inside:
            made.append(row(f"{prefix}{modules[path]}{LEAVES[leaf]}", name, shape, *_axes(leaf)))
    return [*made, *others]


def oblong(c: ViTConfig) -> list[str]:
    """Clauses for image and patch sizes that are not square, for layouts that have only squares."""
    return [
        f"{name} is {size[0]}x{size[1]}, but the layout has only squares"
        for name, size in (("image", pair(c.image)), ("patch", pair(c.patch)))
        if size[0] != size[1]
    ]


def headless(c: ViTConfig) -> list[str]:
    """A clause for a network without a head, for layouts that always have one."""
    return [] if c.classes else ["classes is 0, but the layout always has a head"]


def _axes(leaf: str) -> tuple[Operation, ...]:
    return (TRANSPOSE,) if leaf == "kernel" else ()
