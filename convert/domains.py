"""Which networks two layouts share: a layout's domain is the configs that its table can state.

`shared` finds members of an intersection by trying values of each field, or the reason why there are none.
"""

from __future__ import annotations

import functools
import itertools
import random
import typing
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from vit_jax.config import TransformerConfig, ViTConfig, check_transformer, check_vit
from vit_jax.errors import UserError

from .layout import Layout, function_fields, normal

# Values to try where a layout says any: small sizes that differ from each other, plain ones first.
SIZES: dict[type, dict[str, tuple[Any, ...]]] = {
    ViTConfig: {
        "image": (8, (8, 12)), "patch": (4, (4, 2), 2), "channels": (3, 1), "classes": (5, 0), "width": (12, 8), "depth": (2, 1), "heads": (2, 1),
        "head_width": (0, 5), "hidden": (20, 16, 24), "registers": (0, 2), "eps": (1e-6, 1e-5, 1e-12, 1e-3), "layer_scale": (0.0, 1.0),
        "head_hidden": (0, 7, 12),
    },
    TransformerConfig: {
        "width": (12, 8), "heads": (2, 1), "head_width": (0, 5), "hidden": (20,), "encoder_depth": (2, 1), "decoder_depth": (2, 1, 0), "eps": (1e-5, 1e-6),
        "source_vocabulary": (0, 11, 9), "target_vocabulary": (0, 11, 9), "outputs": (0, 11, 9, 12), "position_offset": (0, 2), "max_length": (6, 512, 0),
    },
}  # fmt: skip
# Where to start from, each a step in several fields at once: single steps alone would not find these.
STARTS: dict[type, tuple[dict[str, Any], ...]] = {
    ViTConfig: ({}, {"cls_token": False, "pool": "mean"}, {"cls_token": False, "pool": "mean_all"}),
    TransformerConfig: (
        {}, {"source_vocabulary": 11, "target_vocabulary": 11, "outputs": 11, "max_length": 6},
        {"source_vocabulary": 9, "target_vocabulary": 11, "outputs": 11, "max_length": 6},
    ),
}  # fmt: skip
TRIES = 400


@functools.cache
def values(network: Any, name: str) -> tuple[Any, ...]:
    """Values of a field to try: those of SIZES, both booleans, or all of a literal."""
    if name in SIZES[network]:
        return SIZES[network][name]
    hint = typing.get_type_hints(network)[name]
    default = next(f.default for f in fields(network) if f.name == name)
    found = typing.get_args(hint) or (True, False)
    return tuple(sorted(found, key=lambda value: value != default))


def allowed(layouts: tuple[Layout, ...], name: str) -> list[Any]:
    """Values of a field that all of these layouts can say."""
    network: Any = layouts[0].network
    said = dict.fromkeys(v for layout in layouts if name in layout.fields for v in layout.fields[name].among)
    extra = tuple(v for v in said if v not in values(network, name) or isinstance(v, bool))
    tried = [v for v in (*values(network, name), *extra) if all(name not in layout.fields or layout.fields[name].says(v) for layout in layouts)]
    return [v for i, v in enumerate(tried) if not any(v == w and type(v) is type(w) for w in tried[:i])]


def members(*layouts: Layout, seed: int = 0, tries: int = TRIES) -> Iterator[Any]:
    """Configs that every one of these layouts has, the plainest first, then by chance. Layouts of one kind of network."""
    network, rng, seen = layouts[0].network, random.Random(seed), set()
    choices = {name: allowed(layouts, name) for name in function_fields(network)}
    if not all(choices.values()):
        return
    first = {name: some[0] for name, some in choices.items()}
    starts = [first | {k: v for k, v in start.items() if v in choices[k]} for start in STARTS[network]]
    one_off = ({**start, name: v} for start in starts for name, some in choices.items() for v in some[1:])
    chance = ({k: rng.choice(some) if rng.random() < 0.4 else start[k] for k, some in choices.items()} for _ in range(tries) for start in [rng.choice(starts)])
    for picked in itertools.chain(starts, one_off, chance):
        try:
            config = normal(check(network(**picked)))
        except UserError:
            continue
        if config not in seen and not any(layout.cannot(config) for layout in layouts):
            seen.add(config)
            yield config


def check(config: Any) -> Any:
    """The config, or UserError where it cannot be."""
    return check_vit(config) if isinstance(config, ViTConfig) else check_transformer(config)


def shared(a: Layout, b: Layout) -> tuple[Any | None, str]:
    """(a config that both layouts have, "") or (None, why there is none)."""
    if a.network is not b.network:
        return None, "other networks"
    for config in members(a, b):
        return config, ""
    apart = [name for name in function_fields(a.network) if not allowed((a, b), name)]
    if not apart:
        return None, "their limits leave nothing"
    return None, "; ".join(f"{name}: {_said(a, name)} against {_said(b, name)}" for name in apart)


def _said(layout: Layout, name: str) -> str:
    return " or ".join(map(str, layout.fields[name].among)) or "any"
