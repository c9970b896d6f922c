"""Which config a file has: each field from its layout, its shapes, a file that states it, or the user's flags."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

from vit_jax.config.dotted import leaves, replace_fields, value_at
from vit_jax.config.flags import describe_type
from vit_jax.config.hints import nearest
from vit_jax.config.trees import unflatten
from vit_jax.errors import UserError, about
from vit_jax.runs.values import from_dict

from .. import rules
from ..containers.source import STATE_DICT
from ..layout import UNKNOWN, Json, Layout, Names

# Sources of a field's value, as messages name them, beside files.
STATED, NAMED = "`fields`", "`model"  # NAMED is followed by a name
THE_LAYOUT, ITS_SHAPES, OWN_METADATA = "its layout", "its shapes", "its own metadata"
FALLBACK = "this run's config"  # taken where no other source has a value
LARGEST = 1 << 40  # numbers in one parameter

Stated = Sequence[tuple[str, Json]]  # (source, {field: value}), the most reliable first


class MissingFields(UserError):
    """Fields of the config that nothing states, of a file whose layout is known; `network` is its config's class.

    `known` are the fields that are stated, `names` is {name: shape} of the tensors.
    """

    asks_images = False  # whether it asks for the mean and std of images as well

    def __init__(self, path: str, layout: Layout, fields: Sequence[str], known: Json, names: Names):
        what, named = ", ".join(fields), "`model NAME`"
        ways = f"give {', or '.join(_ways(path, layout, fields))}"
        if len(fields) == len(layout.fields):  # our own layout, whose names tell nothing, without its run
            what = "any field of the network's config"
            ways = f"give the folder of the run that it comes from, {named}, or all fields with `fields`"
        super().__init__(path, f"its tensors cannot tell {what}", ways)
        self.network, self.fields, self.known, self.names = layout.network, tuple(fields), known, names
        self._layout, self._ways = layout, len(fields) < len(layout.fields)

    def ask_images(self) -> None:
        """Ask for the mean and std of images too, so that all that is open is asked for at once."""
        if self._ways and not self.asks_images:
            self.asks_images = True
            self.add(", and of its images `fields mean=... std=...`")


def _ways(path: str, layout: Layout, fields: Sequence[str]) -> list[str]:
    """What states fields of a layout's networks: a published name, its library's config.json, --set; where it helps."""
    from ..dialects.architectures import published  # reads a large table

    ways = ["`model NAME`"] if published(layout.network) else []
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if path == STATE_DICT:
        ways += ["beside={'config.json': ...}"] if layout.reads_side_files else []
    elif layout.reads_side_files and not os.path.exists(os.path.join(folder, "config.json")):
        ways.append("its library's config.json beside the file")
    among = {field: layout.fields[field].among for field in fields if field in layout.fields}
    usual = [f"{field}={values[0]}" for field, values in among.items() if values]
    said = f" (usual: {', '.join(usual)})" if usual else ""
    return [*ways, f"`fields {' '.join(f'{field}=...' for field in fields)}`{said}"]


class Contradiction(NamedTuple):
    """Two sources that state a field differently: the value of the second was not taken."""

    field: str
    taken_from: str
    other: str
    value: Any


def resolve(layout: Layout, names: Names, stated: Stated, path: str, typed: Mapping[str, str] = {}) -> Any:
    """The config of a file's network."""
    if reasons := layout.refuses("file", names):
        raise UserError(path, "; ".join(reasons))
    for who, fields in stated:
        _check_types(layout, fields, who, path, typed)
    values, missing, contradictions = _collect(layout, names, stated)
    if len(missing) == len(layout.fields):
        raise MissingFields(path, layout, missing, values, names)
    missing = [name for name in missing if not _has_no_effect(layout, name, values)]
    if missing:
        raise MissingFields(path, layout, missing, values, names)
    only_training = layout.network.marked("training_only")
    training = {k: v for _, fields in reversed(stated) for k, v in fields.items() if k in only_training}
    config = from_dict(layout.network, unflatten({**training, **values}))
    _check_depth(config, names, values, path)
    otherwise = _stated_otherwise(layout, config, dict(stated).get(STATED, {}))
    for name, who, other, value in contradictions:  # raises only where the network would be another
        if name in otherwise and other == THE_LAYOUT:
            continue
        if from_dict(layout.network, unflatten({**training, **values, name: value})).normal() != config.normal():
            wrong = other if who in (THE_LAYOUT, ITS_SHAPES) else who
            raise UserError(path, f"{name} is {values[name]!r} by {who} but {value!r} by {other}", f"correct {wrong}")
    _check_config(layout, config, path, otherwise)
    return config


def _stated_otherwise(layout: Layout, config: Any, sets: Json) -> set[str]:
    """The fields in which --set states a value that the layout does not know, where all tensors stay the same."""

    def unseen(name: str) -> bool:
        usual = replace_fields(config, {name: layout.fields[name].among[0]})
        tensors = (rules.file_shapes(layout.rows(c)) for c in (usual, config))
        return usual.shapes() == config.shapes() and next(tensors) == next(tensors)

    unknown = [n for n in sets if n in layout.fields and not layout.fields[n].allows(value_at(config, n))]
    return {name for name in unknown if unseen(name)}


def _collect(layout: Layout, names: Names, stated: Stated) -> tuple[Json, list[str], list[Contradiction]]:
    """({field: value of the most reliable source}, fields without a source, what other sources state differently)."""
    values: Json = {}
    missing: list[str] = []
    contradictions: list[Contradiction] = []
    for name in sorted(layout.fields, key=lambda name: layout.fields[name].follow is not None):
        if layout.fields[name].follow and any(layout.fields[other].follow is None for other in missing):
            continue  # it follows from fields that are missing
        found = _sources(layout, name, names, values, stated)
        if not found:
            missing.append(name)
            continue
        who, values[name] = found[0]
        over_model = who in (STATED, THE_LAYOUT)
        contradictions += [
            Contradiction(name, who, other, value)
            for other, value in found[1:]
            if other != FALLBACK and not (over_model and other.startswith(NAMED))
        ]
    return values, missing, contradictions


def _sources(layout: Layout, name: str, names: Names, values: Json, stated: Stated) -> list[tuple[str, Any]]:
    """(source, value) of all that state a field, the most reliable first; `values` are those of fields before it.

    A layout does not overrule OWN_METADATA in a field that shows in no tensor: such a file was written as bare tensors
    of a network that the layout cannot state.
    """
    field = layout.fields[name]
    solved = field.solve(names) if field.solve else field.follow(names, values) if field.follow else None
    found = [(who, fields[name]) for who, fields in stated if fields.get(name) is not None]
    written_bare = name in layout.network.marked("not_in_weights") and any(who == OWN_METADATA for who, _ in found)
    if len(field.among) == 1 and not written_bare:
        found.append((THE_LAYOUT, field.among[0]))
    elif solved is not None:
        found.append((ITS_SHAPES, solved))
    elif not found and field.usual is not UNKNOWN:
        found.append((THE_LAYOUT, field.usual))
    return sorted(found, key=lambda one: one[0].startswith(NAMED) + 2 * (one[0] == FALLBACK))


def _has_no_effect(layout: Layout, name: str, values: Json) -> bool:
    """Whether a field that nobody states changes nothing, given the others; `values` then gets a valid value for it."""
    hint = leaves(layout.network)[name].hint
    choices = layout.fields[name].among or (get_args(hint) if get_origin(hint) is Literal else ())
    configs = [replace_fields(layout.network(), {**values, name: choice}) for choice in choices]
    if not configs or any(config.normal() != configs[0].normal() for config in configs):
        return False
    values[name] = value_at(configs[0].normal(), name)
    return True


# ------------------------------------------------------------------------------------------ checks


def _check_depth(config: Any, names: Names, values: Json, path: str) -> None:
    """Raise UserError on more blocks than tensors, before anything is made as long as a stranger's file states."""
    for name in config.marked("counts_blocks"):  # a file holds tensors of every block
        if name in values and value_at(config, name) > len(names):
            raise UserError(
                path,
                f"{name} is {values[name]} but it holds {len(names)} tensors",
                f"correct the config that it carries, or give `fields {name}=...`",
            )


def _check_config(layout: Layout, config: Any, path: str, otherwise: Collection[str] = ()) -> None:
    """Raise UserError where the config is no network, makes a parameter of absurd size, or is not one of the layout."""
    with about(path):
        config.check()
    for name, shape in config.shapes().items():
        if math.prod(shape) > LARGEST:
            raise UserError(
                path,
                f"its config makes {name} {list(shape)}, more than any file holds",
                "correct its sizes in the config that it carries, or by `fields`",
            )
    if reasons := layout.cannot(
        config, weights_only=True, stated=otherwise
    ):  # fields that show in no tensor are no reason: the file exists
        raise UserError(
            path,
            f"is not a file of {layout.name}: {'; '.join(reasons)}",
            "name the right layout with `layout`, or correct the fields with `fields`",
        )


def _check_types(layout: Layout, fields: Json, who: str, path: str, typed: Mapping[str, str]) -> None:
    """Raise UserError on a value of a wrong type; `who` states the fields, --set as `typed`."""
    fields = {name: value for name, value in fields.items() if value is not None}
    try:
        from_dict(layout.network, unflatten(fields))
    except UserError as error:
        if who != STATED:
            raise UserError(path, f"{who}: {error.fault}", "correct it there") from error
        if len(fields) > 1:
            for name, value in fields.items():
                _check_types(layout, {name: value}, who, path, typed)
            raise
        ((name, value),) = fields.items()
        given, hint = typed.get(name, repr(value)), leaves(layout.network)[name].hint
        commas = " with commas, such as 32,64 or 32, or () for none" if get_args(hint)[-1:] == (...,) else ""
        raise UserError(f"fields {name}={given}", f"give {describe_type(hint)}{commas}") from error


def check_fields(names: Iterable[str], layout: Layout) -> None:
    """Raise UserError on a --set that names no field of the layout's network."""
    known = list(leaves(layout.network))
    for name in names:
        if name not in known:
            raise UserError(f"fields {name}", f"there is no such field{nearest(name, known)}")
