"""Which networks two layouts share: configs that the tables of both can state, found by trying values of each field."""

from __future__ import annotations

import functools
import itertools
import random
import typing
from collections.abc import Iterator
from typing import Any

from vit_jax.config.dotted import leaves, replace_fields
from vit_jax.errors import UserError

from ..layout import Layout

TRIES = 400


@functools.cache
def values(network: Any, name: str) -> tuple[Any, ...]:
    """Values of a config's field to try: the network's examples, both booleans, all of a literal, or the default."""
    if name in (examples := network.examples):
        return examples[name]
    hint, default = leaves(network)[name]
    literal = typing.get_origin(hint) is typing.Literal
    found = typing.get_args(hint) if literal else (True, False) if hint is bool else (default,)
    return tuple(sorted(found, key=lambda value: value != default))


def _allowed_values(layouts: tuple[Layout, ...], name: str) -> list[Any]:
    """Values of a field that all of these layouts can state."""
    network: Any = layouts[0].network
    only = dict.fromkeys(v for layout in layouts if name in layout.fields for v in layout.fields[name].among)
    extra = tuple(v for v in only if v not in values(network, name) or isinstance(v, bool))
    tried = [
        v
        for v in (*values(network, name), *extra)
        if all(name not in layout.fields or layout.fields[name].allows(v) for layout in layouts)
    ]
    return [v for i, v in enumerate(tried) if not any(v == w and type(v) is type(w) for w in tried[:i])]


def members(*layouts: Layout, seed: int = 0, tries: int = TRIES) -> Iterator[Any]:
    """Configs that all of some layouts of one network can state."""
    network, rng, seen = layouts[0].network, random.Random(seed), set()
    choices = {name: _allowed_values(layouts, name) for name in network.function_fields()}
    if not all(choices.values()):
        return
    first = {name: some[0] for name, some in choices.items()}
    starts = [first | {k: v for k, v in start.items() if v in choices[k]} for start in network.combinations]
    one_off = ({**start, name: v} for start in starts for name, some in choices.items() for v in some[1:])
    chance = (
        {k: rng.choice(some) if rng.random() < 0.4 else start[k] for k, some in choices.items()}
        for _ in range(tries)
        for start in [rng.choice(starts)]
    )
    for picked in itertools.chain(starts, one_off, chance):
        try:
            config = replace_fields(network(), picked)
            config.check()
        except UserError:
            continue
        config = config.normal()
        if config not in seen and not any(layout.cannot(config) for layout in layouts):
            seen.add(config)
            yield config


def find_shared(a: Layout, b: Layout) -> tuple[Any | None, str]:
    """(a config that both layouts can state, "") or (None, why there is none)."""
    if a.network is not b.network:
        return None, "other networks"
    for config in members(a, b):
        return config, ""
    apart = [name for name in a.network.function_fields() if not _allowed_values((a, b), name)]
    if not apart:
        return None, "what each refuses leaves no network"
    return None, "; ".join(f"{name}: {_values_of(a, name)} against {_values_of(b, name)}" for name in apart)


def _values_of(layout: Layout, name: str) -> str:
    return " or ".join(map(str, layout.fields[name].among)) or "any"
