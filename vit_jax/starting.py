"""Runs that start from given weights (`init`): the fields that these decide, what does not fit them, and their values.

The weights are a file or a folder of any layout, hf://owner/name, or another run. Headers are enough for all but
`start`, which reads each value once.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from . import presets
from .config import (
    ModelConfig,
    RunConfig,
    differences,
    flat,
    function_fields,
    network_of,
    normal,
    pair,
    task_row,
    untrained,
)
from .errors import UserError, printable
from .interop import Change, Unstated, Weights, changed, convert_first, network_in, opened, stated_by
from .runs import Run, array_digest, find, is_foreign, text_digest

FEW = 8  # fields that a message lists; a file that lacks more states none
DIGITS = 12  # of a digest, as printed
UNBROKEN = "\u00a0"  # in place of a space at which no line is broken


# ------------------------------------------------------------------------- the fields of a run


def preset(name: str, init: str = "", fields: Mapping[str, Any] | None = None) -> presets.Preset:
    """The preset with this name; with `init`, filled in for training that starts from these weights.

    `init` is a file, a folder, a run or hf://owner/name, as for `python -m vit_jax.train --init`: see `filled`. What
    its tensors do not determine can be stated in `fields`, {"heads": 6}. Raises UserError.
    """
    found = presets.preset(name)
    if not init:
        return found
    run = replace(base(init) if name == presets.FINETUNE else found.run, init=init)
    stated = {f"model.{field}": value for field, value in (fields or {}).items()}
    return replace(found, run=filled(run, stated, own=name != presets.FINETUNE))


def base(init: str, folder: str = "runs") -> RunConfig:
    """The run that the preset `finetune` gives for the network that the weights `init` are of; `filled` goes on.

    `folder` is that of all runs. Raises UserError.
    """
    run = presets.preset(presets.FINETUNE).run
    with _worded(init, folder):
        network = network_in(_place(init, folder))
    if isinstance(run.model, network):
        return run
    other = untrained(network())
    data = replace(type(other.data)(), source=run.data.source)
    return replace(run, task=other.task, model=other.model, data=data, augment=other.augment)


def filled(run: RunConfig, stated: Mapping[str, Any] | None = None, *, own: bool = True) -> RunConfig:
    """The run with the fields that the weights `run.init` decide, and over them those that the user states.

    They decide what their network computes (all fields of `model` but those of training and the number of classes or
    words) and how inputs are prepared (data.fit, size, interpolation and background, and mean and std), but neither the
    optimizer, dropout, augmentation nor the data. `stated` is {"model.image": 96}. With `own`, the run's network is
    taken where neither weights nor user tell a field. Raises UserError where a field remains unknown, and where the
    weights cannot follow what is stated.
    """
    said = stated or {}
    asked = _replaced(run, said)
    if not asked.init:
        return asked
    otherwise = {name.removeprefix("model."): value for name, value in said.items() if name.startswith("model.")}
    with _opened(asked, {**(_told(run.model) if own else {}), **otherwise}) as weights:
        sizes = {
            name: said.get(f"model.{name}", getattr(weights.config, name)) for name in RULES if name in _told(run.model)
        }
        change = _change(replace(asked, model=replace(asked.model, **sizes)), weights)
        out = _replaced(run, {**_decided(run.task, change, said), **said})
        _check(out, weights.config, change)
    return out


# --------------------------------------------------------------------------- the start of a run


@dataclass(frozen=True)
class Started:
    """The weights of `init` as a run takes them."""

    parameters: dict[str, np.ndarray]  # {dotted name: array, in the file's dtype}, without those of a new head
    record: dict[str, Any]  # the entry `init` of config.json
    says: str  # lines for the user


def check(run: RunConfig) -> None:
    """Raise UserError where a run cannot start from `run.init`, as far as headers tell and without its data."""
    with _opened(run, _told(run.model)) as weights:
        _check(run, weights.config, _change(run, weights))


def start(run: RunConfig, metadata: Mapping[str, Any]) -> Started:
    """The parameters that a run begins with, from `run.init`.

    The run has the sizes of its data, and `metadata` is that of the data. Raises UserError naming the first field or
    metadata that does not fit the weights.
    """
    with _opened(run, _told(run.model)) as weights:
        change = _change(run, weights)
        _check(run, weights.config, change)
        given = stated_by(weights.facts, run.task, weights.config)
        _check_metadata(run, given, metadata)
        with _worded(run.init, run.dir):
            arrays = dict(weights.arrays())
    record = {
        "layout": weights.layout,
        **({"chosen": weights.chosen} if weights.chosen else {}),
        "tensors": len(arrays),
        "digest": _digest(arrays.items()),
        "filled": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in _decided(run.task, change, {}).items()
            if name.removeprefix("model.") not in weights.untold
        },
        "changed": list(change.says),
    }
    heads = network_of(run.model).heads
    kept = {n: x for n, x in change.apply(arrays).items() if not (run.new_head and n.startswith(heads))}
    return Started(kept, record, _says(run, record, weights.facts.notes))


def check_unchanged(run: RunConfig, name: str) -> None:
    """Raise UserError where the weights are no longer those that the run of the same command began with.

    That run is in the folder `name`, or `name` with a number, of run.dir, and differs from this one at most in what
    weights fill in.
    """
    now = ""
    for folder in _numbered(Path(run.dir) / name):
        then = folder.config()
        began = _init_of(folder)
        other = differences(replace(then, seed=run.seed), run).keys() - began.get("filled", {}).keys()
        if then.init != run.init or other or "digest" not in began:
            continue
        if not now:
            with _opened(then, _told(then.model)) as weights, _worded(run.init, run.dir):
                now = _digest(weights.arrays())
        if now != began["digest"]:
            raise UserError(
                f"init {run.init}: has changed since {folder} began from it; "
                f"go on with that run by --resume {folder}, or start another with --name"
            )


def check_same(folder: Run, started: Started) -> None:
    """Raise UserError where a run that has saved nothing yet began from other weights than it is now given."""
    then = _init_of(folder).get("digest", started.record["digest"])
    if then != started.record["digest"]:
        raise UserError(
            f"{folder}: its init {folder.config().init} has changed since it began; "
            "restore that, or start anew under another --name"
        )


def _init_of(folder: Run) -> dict[str, Any]:
    """The entry `init` of a run's config.json; empty where there is none."""
    found = folder.record().get("init")
    return found if isinstance(found, dict) and isinstance(found.get("filled", {}), dict) else {}


def _numbered(path: Path) -> Iterator[Run]:
    """The runs in a folder of this name, or with a number appended, also those of a group of seeds."""
    number, folder = 1, path
    while folder.exists():
        yield from (
            Run(file.parent) for file in (folder / "config.json", *folder.glob("seed-*/config.json")) if file.is_file()
        )
        number += 1
        folder = path.with_name(f"{path.name}-{number}")


# ------------------------------------------------------------------------- what weights decide

RULES = {"image": "init_resize", "channels": "init_channels"}  # {field that weights can follow: how}


def _told(model: ModelConfig) -> dict[str, Any]:
    """The fields of a network that decide its function, without sizes that its data has yet to determine."""
    known = {name: getattr(model, name) for name in function_fields(model)}
    return {name: value for name, value in known.items() if value or name not in network_of(model).from_data}


def _decided(task: str, change: Change, stated: Mapping[str, Any]) -> dict[str, Any]:
    """{field of a run: value} that weights decide, after a change."""
    given = stated_by(change.facts, task, change.config)
    from_data = network_of(change.config).from_data
    model = {f"model.{name}": value for name, value in _told(change.config).items() if name not in from_data}
    return model | task_row(task).prepared_as(given, stated)


def _change(run: RunConfig, weights: Weights) -> Change:
    """What makes the weights those of the run's image and channels, by its rules. Raises UserError."""
    texts = []
    wanted, given = normal(run.model), normal(weights.config)
    if run.init_resize != "none" and wanted.image != given.image:
        h, w = pair(wanted.image)
        texts.append(f"resize={h}x{w}:{run.init_resize}")
    if run.init_channels != "none" and wanted.channels != given.channels:
        texts.append(f"channels={wanted.channels}")
    try:
        return changed(weights.config, weights.facts, texts)
    except UserError as error:
        reason = str(error)
        for text in texts:
            reason = reason.removeprefix(f"--adapt {text}: ")
        raise UserError(f"init {run.init}: {reason}") from error


def _check(run: RunConfig, given: ModelConfig, change: Change) -> None:
    """Raise UserError where a run's network is not that of its weights; sizes that the data will determine are free."""
    row = network_of(given)
    sizes = {name: getattr(given, name) for name in row.from_data if not getattr(run.model, name)}
    wanted, there = normal(replace(run.model, **sizes)), normal(change.config)
    different = [
        name
        for name in function_fields(wanted)
        if getattr(there, name) != getattr(wanted, name) and not (run.new_head and name in row.head_fields)
    ]
    if not different:
        return
    values = ", ".join(
        f"its {n} is {_text(getattr(there, n))}, here it is {_text(getattr(wanted, n))}" for n in different
    )
    flags = [_flag(n, getattr(there, n)) for n in different if n not in RULES and n not in row.from_data]
    hints = [f"give {' '.join(flags)}"] * bool(flags)
    hints += [_following(name, run) for name in RULES if name in different]
    of_data = [name for name in different if name in row.from_data]
    if any(name in row.head_fields for name in of_data):
        hints.append("add --new-head to start with a new head")
    if any(name not in row.head_fields for name in of_data):
        hints.append("start from weights that were trained with the same words")
    raise UserError(f"init {run.init}: {values}; {' and '.join(hints)}")


def _following(name: str, run: RunConfig) -> str:
    """How weights can follow a field, by the values of its rule."""
    rule = RULES[name]
    first, *others = [value for value in get_args(get_type_hints(RunConfig)[rule]) if value != "none"]
    more = f" (or {', '.join(others)})" if others else ""
    return f"add --{rule.replace('_', '-')} {first}{more} to fit the weights to that"


def _check_metadata(run: RunConfig, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise UserError where metadata of the weights conflicts with that of the run's data."""
    for name, entry in task_row(run.task).metadata.items():
        clause = entry.conflict(given[name], wanted[name]) if name in given and name in wanted else ""
        if clause and not (run.new_head and entry.of_head):
            remedy = (
                "add --new-head to start with a new head"
                if entry.of_head
                else "start from weights that were trained with the same ones"
            )
            raise UserError(f"init {run.init}: {clause}; {remedy}")


def _replaced(run: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """A run with these fields, {"model.image": 96, "batch": 8}."""
    parts: dict[str, Any] = {}
    for name, value in values.items():
        part, _, field = name.rpartition(".")
        if part:
            parts[part] = replace(parts.get(part, getattr(run, part)), **{field: value})
        else:
            parts[field] = value
    return replace(run, **parts)


def _digest(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """A digest of all given tensors, under our names and in the file's dtype."""
    return text_digest({name: array_digest(array) for name, array in arrays})


# ----------------------------------------------------------------------- opening, and its errors


def _place(init: str, folder: str) -> str:
    """The path or address of weights: of a run, inside the folder of all runs or not, its folder."""
    for place in () if init.startswith("hf://") else (Path(init), Path(folder) / init):
        if members := sorted(place.glob("seed-*/config.json")):
            raise UserError(f"holds a run for each seed; name one of them, such as {Run(members[0].parent)}")
    if is_foreign(init, folder):
        return init
    try:
        return str(find(init, folder))
    except UserError as error:
        raise UserError(str(error).replace("no run here", "no such file, folder or run")) from error


@contextlib.contextmanager
def _opened(run: RunConfig, otherwise: Mapping[str, Any]) -> Iterator[Weights]:
    """The weights of `run.init`; `otherwise` as in `interop.opened`, but not where the weights are to follow it."""
    rest = {name: value for name, value in otherwise.items() if getattr(run, RULES.get(name, ""), "none") == "none"}
    with contextlib.ExitStack() as stack:
        with _worded(run.init, run.dir):
            place = _place(run.init, run.dir)
            weights = stack.enter_context(opened(place, type(run.model), rest, square=run.init_resize != "none"))
        yield weights


@contextlib.contextmanager
def _worded(init: str, folder: str) -> Iterator[None]:
    """Say of an error that it is about `init`, in flags of training, and which runs began from that."""
    try:
        yield
    except UserError as error:
        what = _untold(init, error.fields) if isinstance(error, Unstated) else str(convert_first(error, init))
        path, _, rest = what.partition(": ")
        what = rest if rest and (path == init or os.path.exists(path)) else what
        raise UserError(f"init {init}: {what}{_begun(init, folder)}") from error


def _untold(init: str, fields: Sequence[str]) -> str:
    """A clause naming fields that weights do not tell, and how to state them."""
    if len(fields) > FEW:
        return "states no config; name the preset whose network it holds, before --init"
    flags = " ".join(f"{_flag(name)} ..." for name in fields)
    command = f"python -m convert {shlex.quote(init)} X.safetensors --model NAME"
    return (
        f"its tensors cannot tell {', '.join(fields)}; give {flags}, or a preset with its network (vit-s16, ...), "
        f"or its published name to `{command}` and X.safetensors here"
    )


def _begun(init: str, folder: str) -> str:
    """A clause naming a run that began from `init`; empty where there is none."""
    for file in sorted(Path(folder).glob("*/config.json")):
        with contextlib.suppress(UserError):
            run = Run(file.parent)
            if run.config().init == init:
                return f"; {run} began from it: go on with that by --resume {run}"
    return ""


# ------------------------------------------------------------------------------------ in words


def _says(run: RunConfig, record: Mapping[str, Any], notes: Iterable[str]) -> str:
    """What a run takes from its weights, in lines as wide as the terminal."""
    chosen = f" {record['chosen']}," if "chosen" in record else ""
    which = f"{run.init}:{chosen} {record['layout']}, {record['tensors']} tensors, digest {record['digest'][:DIGITS]}"
    lines = [which, *record["changed"]]
    names = task_row(run.task).prepared
    values = {name: value for name, (value, _) in flat(run).items() if name in names and value != ()}
    fields = ", ".join(f"{name} {_text(value)}".replace(" ", UNBROKEN) for name, value in values.items())
    if any(name in record["filled"] for name in names):
        lines.append(f"it gives the network and how inputs are prepared: {fields}")
    elif fields:
        lines.append(f"how its inputs were prepared is not known, so this run's fields apply: {fields}")
    else:
        lines.append("it gives the network")
    if run.new_head:
        lines.append("the head is new")
    lines += notes
    width = max(50, shutil.get_terminal_size().columns)
    shown = [
        textwrap.fill(printable(line), width, initial_indent=" " * 9, subsequent_indent=" " * 9, break_on_hyphens=False)
        for line in lines
    ]
    return ("init     " + "\n".join(shown).lstrip()).replace(UNBROKEN, " ")


def _text(value: Any) -> str:
    """The value of a field as a flag takes it."""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _flag(name: str, value: Any = None) -> str:
    """The flag of `vit_jax.train` for a field of the network, with its value."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--model.{'' if value else 'no-'}{name}"
    return f"--model.{name}" + (f" {_text(value)}" if value is not None else "")
