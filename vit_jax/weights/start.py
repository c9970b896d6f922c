"""The fields of a run that starts from given weights (`init`), and the parameters that it starts with."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from ..config.dotted import replace_fields, value_at
from ..config.network import NetworkConfig
from ..config.run import RunConfig
from ..data.images.config import OPTIONAL
from ..errors import UserError
from ..files.terminal import fill, printable
from ..presets import table as presets
from ..presets.images import ImageName, ImagePreset, finetuned
from ..presets.text import CaptionName, CaptionPreset, TextName, TextPreset
from ..presets.variants import Preset
from ..runs.check import check_encoder
from ..runs.values import flat, with_fields
from ..tasks.table import task_spec
from ..text.spoken import kept_tasks, prefix_of
from .fitting import (
    about_head,
    apply_tuning,
    change_for,
    check_fit,
    check_metadata,
    decide_fields,
    going_back,
)
from .interop import Start, Weights, config_in, open_weights, task_metadata
from .opening import (
    RULES,
    Unfit,
    differences,
    digest,
    errors_about,
    known_fields,
    opened_for,
    place_of,
    stated_by,
    text,
)

ENCODER = "init_encoder"
DIGITS = 12  # of a digest, as printed
UNBROKEN = "\u00a0"  # in place of a space at which no line is broken


@overload
def preset(
    name: ImageName, init: str = "", fields: Mapping[str, Any] | None = None, *, tune: str = "none"
) -> ImagePreset: ...
@overload
def preset(
    name: TextName, init: str = "", fields: Mapping[str, Any] | None = None, *, tune: str = "none"
) -> TextPreset: ...
@overload
def preset(
    name: CaptionName, init: str = "", fields: Mapping[str, Any] | None = None, *, tune: str = "none"
) -> CaptionPreset: ...
@overload
def preset(name: str, init: str = "", fields: Mapping[str, Any] | None = None, *, tune: str = "none") -> Preset: ...
def preset(name: str, init: str = "", fields: Mapping[str, Any] | None = None, *, tune: str = "none") -> Preset:
    """The preset with this name; with `init`, filled in for training that starts from these weights.

    Args:
        name: as `python -m vit_jax.train --help` lists them.
        init: a file, a folder, a run or hf://owner/name, as for --init: see `fill_run`.
        fields: other values of the run's fields by the names of their flags, {"model.heads": 6, "epochs": 5}, also
            those that the tensors of `init` do not determine; fields of the network need no "model." before them.
        tune: a mode of fine-tuning: none, full, head or attention (`apply_tuning`).

    Raises:
        UserError: for an unknown name or field, and where the weights cannot follow what is stated.
    """
    found = presets.preset(name)
    run = base(init) if init and name == presets.FINETUNE else found.run
    if fields is not None and not isinstance(fields, Mapping):
        raise UserError("fields", f"is a {type(fields).__name__}", "give a dict, {'model.heads': 6, 'epochs': 5}")
    known = flat(run)
    of_model = {name for name in fields or {} if name not in known and f"model.{name}" in known}
    stated = {f"model.{name}" if name in of_model else name: x for name, x in (fields or {}).items()}
    run = with_fields(run, stated)
    if run.init_encoder:
        run = filled_encoder(run, {field: flat(run)[field][0] for field in stated})
    if init:
        stated = {field: flat(run)[field][0] for field in stated}  # with a config's own types
        run = fill_run(replace(run, init=init), stated, own=name != presets.FINETUNE)
    if tune != "none":
        run = apply_tuning(run, tune, stated)
    return replace(found, run=run)


def filled_encoder(run: RunConfig, stated: Mapping[str, Any]) -> RunConfig:
    """The run with the fields of its encoder, and how images are prepared for it, by the weights `run.init_encoder`."""
    check_encoder(run)
    asked = replace_fields(run, stated)
    if asked.model.encoder is None:
        return asked  # which `check` refuses
    part = run.model.encoder_field
    inside = {name: value for name, value in stated.items() if name.startswith(f"model.{part}.")}
    with _opened_encoder(asked, inside) as (weights, encoder):
        given = {f"model.{part}.{name}": value_at(encoder, name) for name in encoder.function_fields()}
        prepared = task_spec(run.task).prepared_as(task_metadata(weights.facts, run.task, weights.config), stated)
        out = replace_fields(run, {**given, **prepared, **stated})
        _check_encoder_fit(out, encoder)
    return out


def base(init: str, folder: str = "runs") -> RunConfig:
    """The run that the preset `finetune` gives for the network that the weights are of; `fill_run` goes on."""
    with errors_about(init):
        network = type(config_in(place_of(init, folder)))
    return finetuned(network)


def fill_run(run: RunConfig, stated: Mapping[str, Any] | None = None, *, own: bool = True) -> RunConfig:
    """The run with the fields that the weights `run.init` decide, and over them those that the user states.

    They decide what their network computes (all fields of `model` but those of training and the number of classes or
    words) and how inputs are prepared (data.fit, size, interpolation and background, and mean and std), but neither the
    optimizer, dropout, augmentation nor the data.
    """
    said = stated or {}
    asked = replace_fields(run, said)
    if not asked.init:
        return asked
    otherwise = {name.removeprefix("model."): value for name, value in said.items() if name.startswith("model.")}
    with opened_for(asked, {**(known_fields(run.model) if own else {}), **otherwise}) as weights:
        theirs = known_fields(weights.config) | weights.prepared
        sizes = {name: said.get(f"model.{name}", theirs[name]) for name in RULES if name in known_fields(run.model)}
        change = change_for(replace(asked, model=replace(asked.model, **sizes)), weights)
        out = replace_fields(run, {**decide_fields(run.task, change, said, weights.folder), **said})
        check_fit(out, weights.config, change)
    return out


# --------------------------------------------------------------------------- the start of a run


@dataclass(frozen=True)
class Started:
    """The weights of `init` as a run takes them."""

    parameters: dict[str, np.ndarray]  # {dotted name: array, in the file's dtype}, without those of a new head
    record: dict[str, Any]  # of config.json
    description: str


def check(run: RunConfig) -> None:
    """Check that a run can start from its init or init_encoder, as far as headers tell and without its data."""
    if run.init_encoder:
        with _opened_encoder(run, _encoder_fields(run)) as (_, encoder):
            return _check_encoder_fit(run, encoder)
    with opened_for(run, known_fields(run.model)) as weights:
        check_fit(run, weights.config, change_for(run, weights))


def start(run: RunConfig, metadata: Mapping[str, Any]) -> Started:
    """The parameters that a run begins with, from `run.init` or `run.init_encoder`."""
    if run.init_encoder:
        return _start_encoder(run)
    with opened_for(run, known_fields(run.model)) as weights:
        change = change_for(run, weights)
        check_fit(run, weights.config, change)
        theirs = task_metadata(weights.facts, run.task, weights.config)
        check_metadata(run, theirs, metadata, weights.folder)
        with errors_about(run.init):
            arrays = dict(weights.arrays())
    given, own = decide_fields(run.task, change, {}, weights.folder), flat(run)
    record = {
        **_recorded(weights, arrays),
        "filled": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in given.items()
            if name.removeprefix("model.") not in weights.assumed and own[name][0] == value
        },
        "changed": list(change.says),
    }
    known = run.model.parameters()
    new = {name for name, each in known.items() if run.new_head and each.head}
    kept = {name: x for name, x in change.apply(arrays).items() if name in known.keys() - new}
    with errors_about(run.init):
        kept = task_spec(run.task).refitted(kept, theirs, metadata)
    notes = (
        *about_head(run, change.config),
        *_other_prefix(given, own),
        *weights.facts.notes,
        *going_back(run, weights.layout, change.config),
    )
    return Started(kept, record, _describe_start(run, record, given, notes))


def _recorded(weights: Weights, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What config.json keeps of weights and of the arrays that were read of them."""
    chosen = {"chosen": weights.chosen} if weights.chosen else {}
    return {"layout": weights.layout, **chosen, "tensors": len(arrays), "digest": digest(arrays.items())}


def _in_words(init: str, record: Mapping[str, Any]) -> str:
    """What config.json keeps of weights, in words."""
    chosen = f" {record['chosen']}," if "chosen" in record else ""
    return f"{init}:{chosen} {record['layout']}, {record['tensors']} tensors, digest {record['digest'][:DIGITS]}"


def _other_prefix(given: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """A clause where the sources of a run begin otherwise than those that its weights were trained with."""
    names = ("data.prefix", "data.task", "data.tokenizer")
    if not own.keys() >= {*names}:
        return []
    theirs, its = (_prefix(*map(values.get, names)) for values in (given, {name: own[name][0] for name in names}))
    trained = f"data.prefix {theirs!r}" if theirs else "no data.prefix"
    return [f"it was trained with {trained}, and this run has {its!r}"] if theirs != its else []


def _prefix(prefix: str | None, task: str | None, tokenizer: str | None) -> str:
    """What stands before the sources of a run with these fields of its data."""
    return prefix_of(prefix or "", task or "", kept_tasks(Path(tokenizer or ""), task or ""))


def _describe_start(run: RunConfig, record: Mapping[str, Any], given: Mapping[str, Any], notes: Iterable[str]) -> str:
    """What a run takes from its weights, of what they decide (`given`), in lines as wide as the terminal."""
    lines = [_in_words(run.init, record), *record["changed"]]
    names = task_spec(run.task).prepared
    idle = {f"data.{name}" for name in OPTIONAL}  # where they have their default
    values = {name: x for name, (x, _) in flat(run).items() if name in names and x != () and (x or name not in idle)}
    fields = {name: f"{name} {text(value)}".replace(" ", UNBROKEN) for name, value in values.items()}
    taken = ", ".join(field for name, field in fields.items() if name in record["filled"])
    own = ", ".join(field for name, field in fields.items() if name not in record["filled"])
    if taken:
        lines.append(f"it gives the network and how inputs are prepared: {taken}")
        if own:
            lines.append(f"other than it, this run has {own}")
    elif given.keys() & {*names}:
        lines.append(f"it gives the network; how inputs are prepared is this run's own: {own}")
    elif own:
        lines.append(f"how its inputs were prepared is not known, so this run's fields apply: {own}")
    else:
        beside = (f", {name} {text(given[name])}" for name in record["filled"] if not name.startswith("model."))
        lines.append("it gives the network" + "".join(beside))
    lines += notes
    width = max(50, shutil.get_terminal_size().columns)
    shown = [fill(printable(line), width, 9, 9) for line in lines]
    return ("init     " + "\n".join(shown).lstrip()).replace(UNBROKEN, " ")


# -------------------------------------------------------------------------------------------- an encoder's own weights

# `init_encoder` names a file or a folder of any layout, hf://owner/name, or a run that holds the encoder's network
# alone; what of them is no part of the encoder (a pool, a head) is left out. All else of the run's network is drawn.


@contextlib.contextmanager
def _opened_encoder(run: RunConfig, otherwise: Mapping[str, Any]) -> Iterator[tuple[Weights, NetworkConfig]]:
    """(the weights of `run.init_encoder`, the config of the encoder that they are).

    `otherwise` are fields of the run that are taken where neither the weights nor their side files tell them. Raises
    UserError.
    """
    part = run.model.encoder_field
    own = value_at(run.model, part)
    known = {name.removeprefix(f"model.{part}."): value for name, value in otherwise.items()}
    with contextlib.ExitStack() as stack:
        with errors_about(run.init_encoder, ENCODER, f"{part}."):
            place = place_of(run.init_encoder, run.dir)
            if (held := type(config_in(place))) is not type(own):
                names = held.name, own.name
                raise Unfit(
                    f"holds a {names[0]}, but the encoder is a {names[1]}", remedy="give weights of such a network"
                )
            start = Start(type(own), known, headless=True, resize=True)
            weights = stack.enter_context(open_weights(place, start))
        encoder = replace_fields(run.model, {part: weights.config}).encoder
        assert encoder is not None
        yield weights, encoder


def _start_encoder(run: RunConfig) -> Started:
    """The parameters that the encoder begins with."""
    part = run.model.encoder_field
    with _opened_encoder(run, _encoder_fields(run)) as (weights, encoder):
        _check_encoder_fit(run, encoder)
        with errors_about(run.init_encoder, ENCODER):
            arrays = {f"{part}.{name}": x for name, x in weights.arrays() if name in encoder.parameters()}
    record = _recorded(weights, arrays)
    says = f"init     the encoder from {_in_words(run.init_encoder, record)}; all else is drawn anew"
    return Started(arrays, record, f"{says}\n         {weights.resized}" if weights.resized else says)


def _check_encoder_fit(run: RunConfig, given: NetworkConfig) -> None:
    """Raise UserError where the encoder of a run is not that of its weights."""
    assert run.model.encoder is not None
    part, there, wanted = run.model.encoder_field, given.normal(), run.model.encoder.normal()
    different = [name for name in there.function_fields() if value_at(there, name) != value_at(wanted, name)]
    if different:
        asked = " and ".join(stated_by(f"{part}.{name}", value_at(there, name)) for name in different)
        what = differences(different, there, wanted)
        raise Unfit(f"{ENCODER} {run.init_encoder}", what, f"leave these fields out, or give {asked}")


def _encoder_fields(run: RunConfig) -> dict[str, Any]:
    """{field of the run: value} of the fields that decide the function of its encoder."""
    part = run.model.encoder_field
    own = value_at(run.model, part)
    return {f"model.{part}.{name}": value_at(own, name) for name in own.function_fields()}
