"""Which config a file is of: each field from its layout, its shapes, a file that states it, or the user."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vit_jax.config import from_dict, nearest, network_of, normal, shapes
from vit_jax.errors import UserError

from ..layout import Json, Layout, Names

THE_LAYOUT, ITS_SHAPES, OUR_WORDS = "its layout", "its shapes", "its own metadata"  # speakers on a config


FALLBACK = "this run's config"  # the one that says what nobody else does


LARGEST = 1 << 40  # numbers in one parameter


DEPTH = "depth"  # how the names of fields end that count blocks: a file holds tensors of every block


def resolve(layout: Layout, names: Names, said: Sequence[tuple[str, Json]], what: str) -> Any:
    """The config of a file: from the layout, its shapes, and what was said, the first speaker first.

    `said` are (who says so, {field: value}) pairs; --set and what the layout's own code does go before --model, and
    FALLBACK is asked last. Raises
    UserError where two others contradict each other and where a field is known from none, listing the flags that would
    say it. Speakers may name fields that are not in the layout's table (training's), too. Of fields that show in no tensor a layout says
    nothing where OUR_WORDS do: such a file was written as bare tensors, of a network that its layout cannot state.
    """
    if reasons := layout.refuses(names):
        raise UserError(f"{what}: {'; '.join(reasons)}")
    for _, spoken in said:
        from_dict(
            layout.network, {name: value for name, value in spoken.items() if value is not None}
        )  # refuses values of a wrong type
    values: Json = {}
    absent: list[str] = []
    others: list[tuple[str, str, str, Any]] = []
    unseen = network_of(layout.network).unseen
    for name, f in sorted(layout.fields.items(), key=lambda item: item[1].follow is not None):
        if f.follow and absent:
            continue
        solved = f.solve(names) if f.solve else f.follow(names, values) if f.follow else None
        speakers = [(who, spoken[name]) for who, spoken in said if spoken.get(name) is not None]
        if len(f.among) == 1 and not (name in unseen and any(who == OUR_WORDS for who, _ in speakers)):
            speakers.append((THE_LAYOUT, f.among[0]))
        elif solved is not None:
            speakers.append((ITS_SHAPES, solved))
        if not speakers:
            absent.append(name)
            continue
        speakers.sort(
            key=lambda one: one[0].startswith("--model") + 2 * (one[0] == FALLBACK)
        )  # these know least of the very file
        who, values[name] = speakers[0]
        over_model = who in ("--set", THE_LAYOUT)
        others += [
            (name, who, other, value)
            for other, value in speakers[1:]
            if other != FALLBACK and not (over_model and other.startswith("--model"))
        ]
    absent = [name for name in absent if not idle(layout, name, values)]
    if absent:
        flags = " ".join(f"--set {name}=..." for name in absent)
        raise UserError(
            f"{what}: its tensors cannot tell {', '.join(absent)}; give --model NAME, or a config.json beside the file, or {flags}"
        )
    only_training = network_of(layout.network).training
    training = {k: v for who, spoken in reversed(said) for k, v in spoken.items() if k in only_training}
    config = from_dict(layout.network, {**training, **values})
    for name in (name for name in values if name.endswith(DEPTH)):
        if getattr(config, name) > len(names):  # before a table is made as long as a stranger says
            raise UserError(
                f"{what}: {name} is {values[name]} but it holds {len(names)} tensors; correct the config that it carries, or give --set {name}=..."
            )
    for name, who, other, value in others:  # two spellings of one config are no contradiction
        if normal(from_dict(layout.network, {**training, **values, name: value})) != normal(config):
            wrong = other if who in (THE_LAYOUT, ITS_SHAPES) else who
            raise UserError(f"{what}: {name} is {values[name]!r} by {who} but {value!r} by {other}; correct {wrong}")
    network_of(layout.network).check(config)
    for name, shape in shapes(config).items():
        if math.prod(shape) > LARGEST:
            raise UserError(
                f"{what}: its config makes {name} {list(shape)}, more than any file holds; correct its sizes in the config that it carries, or by --set"
            )
    if reasons := layout.cannot(config, weights_only=True):  # what shows in no tensor is no reason: the file is there
        raise UserError(
            f"{what}: is not a file of {layout.name}: {'; '.join(reasons)}; name the right layout with --from, or correct the fields with --set"
        )
    return config


def idle(layout: Layout, name: str, values: Json) -> bool:
    """Whether a field that nobody said has no effect beside the values of the others; it then gets one that it can have."""
    hint = get_type_hints(layout.network)[name]
    choices = layout.fields[name].among or (get_args(hint) if get_origin(hint) is Literal else ())
    configs = [layout.network(**{**values, name: choice}) for choice in choices]
    if not configs or any(normal(config) != normal(configs[0]) for config in configs):
        return False
    values[name] = getattr(normal(configs[0]), name)
    return True


def unknown_field(name: str, network: type) -> UserError:
    """What to say of a --set that names no field."""
    return UserError(
        f"--set {name}: there is no such field{nearest(name, [f.name for f in dataclasses.fields(network)])}"
    )
