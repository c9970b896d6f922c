"""What the encoder makes of texts: vectors of their tokens, as image generators and searches use them.

Dimensions: n texts, L tokens of the longest, D width.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ...config.network import NetworkConfig
from ...errors import Field, UserError
from ...files.lines import quote
from ...files.terminal import print_note
from ...models.transformer import Transformer
from ...text.tokenizer import Tokenizer
from ..predictor import check_positive

MUCH = 10**9  # bytes of scores that a user is told of
LEAST = 16  # tokens that there is room for; then 32, 64, ..., so that few programs are compiled
KINDS = "give a text, a list of texts, or ids [n, L]"


class Encoded(NamedTuple):
    """Vectors of the tokens of n texts; of one text without the axis n."""

    memory: np.ndarray  # float [n, L, D]
    mask: np.ndarray  # bool [n, L], False at padding


def encodes(config: NetworkConfig) -> bool:
    """Whether a network has an encoder of ids."""
    return bool(getattr(config, "encoder_depth", 0) and getattr(config, "source_vocabulary", 0))


def encode(
    model: Transformer,
    inputs: Any,
    tokenizer: Tokenizer | None,
    pad: int | None,
    *,
    mask: Any = None,
    length: int = 0,
    cut: bool = False,
    batch: int,
) -> Encoded:
    """What the encoder makes of texts or ids: inputs int [L], mask bool [n, L]."""
    check_positive(batch=batch)
    several, one = _listed(inputs)
    if isinstance(several[0], str):
        if mask is not None:
            raise UserError(Field("mask"), "is for ids, and texts are given", "leave it out")
        rows, filler = _tokens(several, tokenizer, length, cut)
    else:
        rows, filler = [_ids(row) for row in several], 0 if pad is None else pad
    ids, real = _padded(rows, filler, length, model.config.max_length)
    if mask is not None:
        real = _checked(mask, ids, one)
    elif pad is not None and not isinstance(several[0], str):
        real &= ids != pad
    _check_ids(ids, model.config.source_vocabulary)
    memory = _computed(model, ids, real, batch, exact=bool(length))
    return Encoded(memory[0], real[0]) if one else Encoded(memory, real)


def _listed(inputs: Any) -> tuple[Sequence[Any], bool]:
    """(a text or a row of ids each, whether only one was given)."""
    if isinstance(inputs, str):
        return [inputs], True
    if not isinstance(inputs, Iterable) or not (several := list(inputs)):
        raise UserError("texts", "none given", KINDS)
    kinds = {isinstance(each, str) for each in several}
    if len(kinds) == 2:
        raise UserError("texts", "some are texts and some are not", KINDS)
    if kinds == {False} and np.ndim(several[0]) == 0:
        return [several], True
    return several, False


def _tokens(texts: Sequence[str], tokenizer: Tokenizer | None, length: int, cut: bool) -> tuple[list[np.ndarray], int]:
    """(the ids of each text, the id of padding)."""
    if tokenizer is None:
        raise UserError("texts", "there is no tokenizer beside the weights", "put its files there, or give ids")
    rows = tokenizer.encode_all(texts)
    for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
        if length and len(row) > length:
            if not cut:
                what = f"{quote(text)} has {len(row)} {tokenizer.unit}, more than length {length}"
                raise UserError("texts", what, "give a greater length, or cut=True")
            rows[i] = tokenizer.cut(row, length)
    return rows, tokenizer.ids.pad


def _ids(row: Any) -> np.ndarray:
    """A row of ids."""
    ids = np.asarray(row)
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
        raise UserError("ids", f"a row of them is {ids.dtype} {list(ids.shape)}", KINDS)
    return ids.astype(np.int64)


def _padded(rows: Sequence[np.ndarray], pad: int, length: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [n, L], which are no padding [n, L])."""
    longest = max(map(len, rows))
    if length and longest > length:
        raise UserError("ids", f"a row has {longest}, more than length {length}", "give a greater length")
    total = length or longest
    if 0 < most < total:
        raise UserError(Field("length"), f"{total} tokens are more than the {most} of the network", "give fewer")
    ids, real = np.full((len(rows), total), pad), np.zeros((len(rows), total), bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)], real[i, : len(row)] = row, True
    return ids, real


def _checked(mask: Any, ids: np.ndarray, one: bool) -> np.ndarray:
    """A mask of ids, bool [n, L]."""
    given = np.asarray(mask)
    given = given[None] if one and given.ndim == 1 else given
    if given.shape != ids.shape or not np.isin(given, (0, 1)).all():
        what = f"is {given.dtype} {list(given.shape)}, and ids are {list(ids.shape)}"
        raise UserError(Field("mask"), what, "give True or False for each id")
    return given.astype(bool)


def _check_ids(ids: np.ndarray, vocabulary: int) -> None:
    """Raise UserError on ids that the network has not."""
    for wrong in (int(ids.min()), int(ids.max())):
        if not 0 <= wrong < vocabulary:
            raise UserError("ids", f"there is {wrong}, and the network has 0 to {vocabulary - 1}", KINDS)


def _computed(model: Transformer, ids: np.ndarray, real: np.ndarray, batch: int, exact: bool) -> np.ndarray:
    """The memory [n, L, D], by few shapes of a compiled program: rows and tokens fill up powers of two."""
    (n, total), most = ids.shape, model.config.max_length
    room = total if exact else max(LEAST, 1 << (total - 1).bit_length())
    room = min(room, most) if most else room
    rows, out = min(batch, 1 << (n - 1).bit_length()), []
    note_scores(model.config.heads, rows, room)
    for first in range(0, n, rows):
        shape, part, mask = (rows, room), ids[first : first + rows], real[first : first + rows]
        given, kept = np.zeros(shape, np.int32), np.zeros(shape, bool)
        given[: len(part), :total], kept[: len(part), :total] = part, mask
        out.append(np.asarray(_memory(model, jnp.asarray(given), jnp.asarray(kept)))[: len(part), :total])
    return np.concatenate(out)


@functools.cache  # a shape is told of once
def note_scores(heads: int, rows: int, length: int) -> None:
    """Print how much memory the attention of `rows` texts, padded to a length, takes, where it is much."""
    size = 4 * heads * rows * length**2
    if size >= MUCH:
        text = f"{rows} x {length:,} tokens: in each layer the scores of their attention take {size / 1e9:,.1f} GB, "
        print_note(f"{text}with twice the tokens four times that; a smaller batch takes less", sys.stderr)


@nnx.jit
def _memory(model: Transformer, ids: Array, real: Array) -> Array:
    return model.encode(ids, real)
