"""Greedy search, beam search or sampling, with any network that gives the logits of the next token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..config.decoding import Decoding, check_decoding
from ..errors import ArgumentError
from ..text.ids import Ids
from .base import Found, Step, Take
from .beam import beam_search
from .rules import Rules
from .single import draw_tokens, likeliest, one_by_one


def generate(
    model: Any,
    memory: Array,
    memory_padding: Array | None,
    ids: Ids,
    settings: Decoding,
    room: int,
    rows: Array | None = None,
    keys: Array | None = None,
) -> Found:
    """What a network generates from memories, by `search`: memory [B, S, D], memory_padding bool [B, S]."""
    cache = model.init_cache(memory, memory_padding, min(room, settings.max_length or room))
    rows = jnp.ones(memory.shape[:1], bool) if rows is None else rows
    return search(model.decode_step, lambda cache, rows: cache.take(rows), cache, rows, ids, settings, room, keys)


def search(
    step: Step, take: Take, cache: Any, rows: Array, ids: Ids, settings: Decoding, room: int, keys: Array | None = None
) -> Found:
    """The answers to B inputs by greedy search, beam search or sampling, as `settings` says: `nbest` to each. Shapes:
    rows bool [B], keys PRNG keys [B].

    It can be traced, with `settings`, `ids` and `room` static. Log-probabilities and scores are float32; a forced token
    adds 0.
    """
    d, longest = check_decoding(settings), settings.max_length or room
    rules, room = Rules(ids, d, longest), min(room, longest)
    if d.beam > 1:
        found = beam_search(step, take, cache, rows, rules, room)
        return found._replace(
            tokens=found.tokens[:, : d.nbest], scores=found.scores[:, : d.nbest], lengths=found.lengths[:, : d.nbest]
        )
    if not d.sample:
        return one_by_one(step, cache, rows, rules, room, likeliest)
    if keys is None:
        raise ArgumentError("keys are missing: sampling needs a PRNG key for each row")
    batch, n = rows.shape[0], d.nbest
    several = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n)))(keys).reshape(-1)
    every = jnp.repeat(jnp.arange(batch, dtype=jnp.int32), n)
    found = one_by_one(step, take(cache, every), rows[every], rules, room, draw_tokens(d, several))
    return Found(
        found.tokens.reshape(batch, n, room),
        found.scores.reshape(batch, n),
        found.lengths.reshape(batch, n),
        found.complete.reshape(batch, n).all(1),
    )
