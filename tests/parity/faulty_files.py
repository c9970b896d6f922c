"""Faults in a file of timm's, in its config and in timm's table: what is done, and the layer where it shows first.

They are those that converters have made. tests/test_verify.py plants each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from convert.operations import TRANSPOSE, Order, rearrange
from convert.rules import Row

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Fault:
    """What is done to a file of timm's, and where it shows first; "" where only tensors can tell."""

    where: str
    tensors: Callable[[Tensors], Tensors] | None = None
    config: dict[str, Any] | None = None
    rows: Callable[[Row], Row] | None = None


def every(
    part: str, change: Callable[[np.ndarray], np.ndarray], block: int | None = None
) -> Callable[[Tensors], Tensors]:
    """A change of the tensors whose names end so, in all blocks or in one."""
    start = "" if block is None else f"blocks.{block}."
    return lambda t: {n: change(a) if n.endswith(part) and n.startswith(start) else a for n, a in t.items()}


def both(*changes: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Tensors]:
    return lambda t: functools.reduce(lambda t, change: change(t), changes, t)


def qkv(order: str, block: int | None = None) -> Callable[[Tensors], Tensors]:
    """q, k and v in another order."""
    places = ["qkv".index(letter) for letter in order]
    return both(
        *(
            every(f"attn.qkv.{leaf}", lambda a: np.concatenate([np.split(a, 3)[i] for i in places]), block)
            for leaf in ("weight", "bias")
        )
    )


def regrouped(before: str, after: str) -> Callable[[Tensors], Tensors]:
    """The rows of qkv in another arrangement of (part, head, place in the head)."""
    change = lambda a, d="": rearrange(a, before + d, after + d, dict(s=3, h=2, e=4))  # noqa: E731
    return both(every("attn.qkv.weight", lambda a: change(a, " d")), every("attn.qkv.bias", change))


def scaled(by: float) -> Callable[[Tensors], Tensors]:
    """Queries that much larger."""
    return both(
        *(
            every(f"attn.qkv.{leaf}", lambda a: np.concatenate([a[:8] * np.float32(by), a[8:]]))
            for leaf in ("weight", "bias")
        )
    )


def bias(part: slice, block: int | None = None) -> Callable[[Tensors], Tensors]:
    """A part of the qkv bias dropped."""

    def drop(a):
        a = a.copy()
        a[part] = 0
        return a

    return every("attn.qkv.bias", drop, block)


def rotated(block: int | None = None) -> Callable[[Tensors], Tensors]:
    """The value's heads in each other's place."""
    return both(
        *(
            every(f"attn.qkv.{leaf}", lambda a: np.concatenate([a[:16], np.roll(a[16:], 4, 0)]), block)
            for leaf in ("weight", "bias")
        )
    )


def exchanged(a: str, b: str) -> Callable[[Tensors], Tensors]:
    """Two modules in each other's place."""
    other = lambda n: n.replace(a, "\0").replace(b, a).replace("\0", b)  # noqa: E731
    return lambda t: {n: t[other(n)] for n in t}


def rows_of_positions(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], Tensors]:
    return every("pos_embed", lambda a: change(a[0])[None])


def entry(name: str, by: float) -> Callable[[Tensors], Tensors]:
    def nudge(a):
        a = a.copy()
        a.flat[0] += by
        return a

    return every(name, nudge)


def twice(t: Tensors) -> Tensors:
    return {**t, "cls_token": t["cls_token"] + t["pos_embed"][:, :1]}


def skipped(block: int) -> Callable[[Tensors], Tensors]:
    return both(*(every(part, np.zeros_like, block) for part in ("proj.weight", "proj.bias", "fc2.weight", "fc2.bias")))


def permuted_heads(t: Tensors) -> Tensors:
    """Whole heads in each other's place, everywhere: the same function."""
    swap = lambda a: np.concatenate([np.roll(part, 4, 0) for part in np.split(a, 3)])  # noqa: E731
    return both(
        every("attn.qkv.weight", swap),
        every("attn.qkv.bias", swap),
        every("attn.proj.weight", lambda a: np.roll(a, 4, 1)),
    )(t)


def permuted_units(t: Tensors) -> Tensors:
    """The mlp's units in another order: the same function."""
    roll = lambda axis: lambda a: np.roll(a, 1, axis)  # noqa: E731
    return both(every("fc1.weight", roll(0)), every("fc1.bias", roll(0)), every("fc2.weight", roll(1)))(t)


def through(dtype: Any) -> Callable[[Tensors], Tensors]:
    return lambda t: {n: a.astype(dtype).astype(np.float32) for n, a in t.items()}


def moved(theirs: str, *operations: Any) -> Callable[[Row], Row]:
    """Other operations in the rows of these names."""
    return lambda r: replace(r, operations=operations) if any(n.endswith(theirs) for n in r.theirs) else r


def packed(*order: int, turned: bool = True) -> Callable[[Row], Row]:
    """The rows of qkv with our parts in another order, or not transposed."""

    def change(r: Row) -> Row:
        if "attn.qkv" not in r.theirs[0]:
            return r
        operations = r.operations if turned else tuple(o for o in r.operations if o is not TRANSPOSE)
        return replace(r, ours=tuple(r.ours[i] for i in order), operations=operations)

    return change


def renamed(a: str, b: str) -> Callable[[Row], Row]:
    """Two modules' names exchanged in the table."""
    other = lambda n: n.replace(a, "\0").replace(b, a).replace("\0", b)  # noqa: E731
    return lambda r: replace(r, theirs=tuple(map(other, r.theirs)))


PATCH = dict(c=3, p=2, q=2)
Q, K, V = slice(0, 8), slice(8, 16), slice(16, 24)
FAULTS = {
    # in the file: faults that converters have made
    "qkv rows as (h 3 d)": Fault("blocks.0", regrouped("(s h e)", "(h s e)")),
    "heads as (d h)": Fault("blocks.0", regrouped("(s h e)", "(s e h)")),
    "value heads rotated": Fault("blocks.0", rotated()),
    "value heads of the last block rotated": Fault("blocks.2", rotated(2)),
    "query and key swapped": Fault("blocks.0", qkv("kqv")),
    "key and value swapped, one block": Fault("blocks.1", qkv("qvk", 1)),
    "out projections transposed": Fault("blocks.0", every("attn.proj.weight", lambda a: a.T.copy())),
    "out projection of one block transposed": Fault("blocks.1", every("attn.proj.weight", lambda a: a.T.copy(), 1)),
    "norm1 and norm2 swapped": Fault("blocks.0", exchanged("norm1", "norm2")),
    "scale D^-1/2 for Dh^-1/2": Fault("blocks.0", scaled(0.5**0.5)),
    "query bias dropped": Fault("blocks.0", bias(Q)),
    "key bias dropped": Fault("", bias(K)),
    "value bias dropped, last block": Fault("blocks.2", bias(V, 2)),
    "all qkv biases dropped": Fault("blocks.0", bias(slice(None))),
    "grid transposed": Fault(
        "tokens",
        rows_of_positions(lambda a: np.concatenate([a[:1], a[1:].reshape(3, 2, 8).swapaxes(0, 1).reshape(6, 8)])),
    ),
    "class position zeroed": Fault("tokens", rows_of_positions(lambda a: np.concatenate([a[:1] * 0, a[1:]]))),
    "class position added twice": Fault("tokens", twice),
    "positions one row late": Fault("tokens", rows_of_positions(lambda a: np.roll(a, 1, 0))),
    "patch height and width swapped": Fault(
        "tokens", every("patch_embed.proj.weight", lambda a: a.swapaxes(2, 3).copy())
    ),
    "colours reversed": Fault("tokens", every("patch_embed.proj.weight", lambda a: a[:, ::-1].copy())),
    "(c p q) read as (p q c)": Fault(
        "tokens", every("patch_embed.proj.weight", lambda a: a.reshape(8, 2, 2, 3).transpose(0, 3, 1, 2).copy())
    ),
    "patch bias dropped": Fault("tokens", every("patch_embed.proj.bias", np.zeros_like)),
    "one block skipped": Fault("blocks.1", skipped(1)),
    "an fc1 bias 1e-3 off": Fault("blocks.1", entry("blocks.1.mlp.fc1.bias", 1e-3)),
    "an fc2 weight one bit off": Fault("blocks.2", entry("blocks.2.mlp.fc2.weight", 3e-7)),
    "through bfloat16": Fault("tokens", through(ml_dtypes.bfloat16)),
    "through float16": Fault("tokens", through(np.float16)),
    "whole heads permuted": Fault("", permuted_heads),
    "units of the mlp permuted": Fault("", permuted_units),
    "not a number": Fault("blocks.0", entry("blocks.0.mlp.fc1.bias", np.nan)),
    "head classes rotated": Fault(
        "logits", both(every("head.weight", lambda a: np.roll(a, 1, 0)), every("head.bias", lambda a: np.roll(a, 1, 0)))
    ),
    # in the config
    "tanh GELU": Fault("blocks.0", config=dict(activation="gelu_tanh")),
    "quick GELU": Fault("blocks.0", config=dict(activation="quick_gelu")),
    "ReLU": Fault("blocks.0", config=dict(activation="relu")),
    "eps 1e-12": Fault("blocks.0", config=dict(eps=1e-12)),
    "eps 1e-5": Fault("blocks.0", config=dict(eps=1e-5)),
    "eps 1e-3": Fault("blocks.0", config=dict(eps=1e-3)),
    "twice the heads": Fault("blocks.0", config=dict(heads=4)),
    "half the heads": Fault("blocks.0", config=dict(heads=1)),
    "last norm skipped": Fault("logits", config=dict(final_norm=False)),
    "mean of all for the class token": Fault("logits", config=dict(pool="mean_all")),
    "mean of patches for the class token": Fault("logits", config=dict(pool="mean")),
    "norm after pooling instead of before": Fault("logits", config=dict(pool="mean", final_norm=False, head_norm=True)),
    # in the table
    "a row with query and key swapped": Fault("blocks.0", rows=packed(1, 0, 2)),
    "a row with key and value swapped": Fault("blocks.0", rows=packed(0, 2, 1)),
    "a row without its transpose": Fault("blocks.0", rows=moved("attn.proj.weight")),
    "a packed row without its transpose": Fault("blocks.0", rows=packed(0, 1, 2, turned=False)),
    "a row of heads as (e h)": Fault(
        "blocks.0", rows=moved("attn.proj.weight", Order("o (e h)", "(h e) o", dict(h=2, e=4)))
    ),
    "a row of patches (q p)": Fault(
        "tokens", rows=moved("patch_embed.proj.weight", Order("d c q p", "(p q c) d", PATCH))
    ),
    "a row of patches (c p q)": Fault(
        "tokens", rows=moved("patch_embed.proj.weight", Order("d c p q", "(c p q) d", PATCH))
    ),
    "rows with norm1 and norm2 exchanged": Fault("blocks.0", rows=renamed("norm1", "norm2")),
    "rows with two blocks exchanged": Fault("blocks.1", rows=renamed("blocks.1.", "blocks.2.")),
}
