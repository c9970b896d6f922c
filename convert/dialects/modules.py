"""Rows of a ViT that is built of torch's modules: what the tables of timm, torchvision and their relatives share.

A Linear's weight is (out, in), a LayerNorm's parameters are weight and bias, patches are a convolution's
(D, C, p, q), and several projections of one input may be packed into one Linear, behind each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vit_jax.config import ViTConfig, pair, shapes

from ..rules import TRANSPOSE, Concat, Operation, Order, Row, row

TOKEN, TOKENS = Order("1 1 d", "d"), Order("1 n d", "n d")  # tokens and positions with a batch axis of one
Tensors = dict[str, tuple[str, Operation | None]]  # {our name: (theirs, what is between)}
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def convolution(c: ViTConfig) -> Order:
    """A convolution's kernel as the matrix of our patches."""
    rows, columns = pair(c.patch)
    return Order("d c p q", "(p q c) d", dict(c=c.channels, p=rows, q=columns))


def module_rows(
    c: ViTConfig, modules: Mapping[str, str], packed: Sequence[tuple[str, ...]], tensors: Tensors, prefix: str = ""
) -> list[Row]:
    """One row for each tensor of the file, in our parameters' order.

    `modules` are {our module: theirs, with what stands before weight and bias}; of modules that are `packed` the first
    one names theirs. `tensors` are those that no module holds, and exceptions. `prefix` stands before all of theirs.
    """
    known = shapes(c)
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
    return made


def oblong(c: ViTConfig) -> list[str]:
    """Clauses for a network that knows only squares."""
    return [
        f"{name} is {size[0]}x{size[1]}, it knows only squares"
        for name, size in (("image", pair(c.image)), ("patch", pair(c.patch)))
        if size[0] != size[1]
    ]


def _axes(leaf: str) -> tuple[Operation, ...]:
    return (TRANSPOSE,) if leaf == "kernel" else ()
