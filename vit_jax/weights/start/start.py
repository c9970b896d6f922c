"""The fields of a run that starts from given weights (`init`), and the parameters that it starts with."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from ...config.dotted import replace_fields
from ...config.run import RunConfig
from ...data.images.config import OPTIONAL
from ...errors import UserError
from ...files.terminal import fill, printable
from ...presets import table as presets
from ...presets.images import ImageName, ImagePreset, finetuned
from ...presets.text import CaptionName, CaptionPreset, TextName, TextPreset
from ...presets.variants import Preset
from ...runs.check import check_encoder
from ...runs.values import flat, with_fields
from ...tasks.table import task_spec
from ...text.spoken import kept_tasks, prefix_of
from ..interop import network_in, task_metadata
from . import encoder
from .fitting import about_head, change_for, check_fit, check_metadata, decide_fields, going_back, known_fields
from .opening import RULES, digest, errors_about, opened_for, place_of, text
from .tuning import apply_tuning

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
    """The run with the fields that the weights `run.init_encoder` decide."""
    check_encoder(run)
    return encoder.fill_encoder(run, stated)


def base(init: str, folder: str = "runs") -> RunConfig:
    """The run that the preset `finetune` gives for the network that the weights are of; `fill_run` goes on."""
    with errors_about(init):
        network = network_in(place_of(init, folder))
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
        return encoder.check(run)
    with opened_for(run, known_fields(run.model)) as weights:
        check_fit(run, weights.config, change_for(run, weights))


def start(run: RunConfig, metadata: Mapping[str, Any]) -> Started:
    """The parameters that a run begins with, from `run.init` or `run.init_encoder`."""
    if run.init_encoder:
        return Started(*encoder.start(run))
    with opened_for(run, known_fields(run.model)) as weights:
        change = change_for(run, weights)
        check_fit(run, weights.config, change)
        theirs = task_metadata(weights.facts, run.task, weights.config)
        check_metadata(run, theirs, metadata, weights.folder)
        with errors_about(run.init):
            arrays = dict(weights.arrays())
    given, own = decide_fields(run.task, change, {}, weights.folder), flat(run)
    record = {
        "layout": weights.layout,
        **({"chosen": weights.chosen} if weights.chosen else {}),
        "tensors": len(arrays),
        "digest": digest(arrays.items()),
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
    chosen = f" {record['chosen']}," if "chosen" in record else ""
    which = f"{run.init}:{chosen} {record['layout']}, {record['tensors']} tensors, digest {record['digest'][:DIGITS]}"
    lines = [which, *record["changed"]]
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
