"""The arguments of `python -m vit_jax.train`: read over a preset, a file, a run or weights, and told by its help."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .. import runs
from ..config import flags
from ..config.dotted import replace_fields
from ..config.fields import option
from ..config.run import RunConfig
from ..config.trees import flatten
from ..errors import Field, UserError
from ..files.terminal import fill, print_note
from ..presets.table import DEFAULT, FINETUNE, PRESETS, is_preset, preset
from ..presets.variants import NOTEBOOKS, PURPOSES, VARIANTS, on_other_data
from ..runs.check import check_run, check_trained, is_name
from ..runs.values import LENGTH, flat, other_identity, overlaid, read_config
from ..tasks.table import TASKS
from ..weights import start as starting
from ..weights.fitting import OtherNetwork, apply_tuning
from ..weights.opening import Unfit, resumable


@dataclass(frozen=True)
class Options(RunConfig):
    """The arguments of the command: the fields of a run, and these."""

    seeds: int = option(
        0,
        "train this many runs with the seeds seed, seed+1, ... and report the mean and standard deviation "
        "of their results; 0: one run",
        at_least=0,
    )
    folds: int = option(
        0,
        "cross-validation: cut the data into this many folds (data.folds), train a run for each that is held out, and "
        "report the mean and standard deviation of their results; 0: one run",
        at_least=0,
    )
    resume: str = option(
        "",
        "continue this run (a folder, or a name inside dir), with its config as the defaults of all flags; with more "
        "--epochs it trains on as if these had been given at first: a learning rate that had fallen to its end "
        "(cosine, one_cycle) jumps back up to its value in so long a run",
    )
    tune: Literal["none", "full", "head", "attention"] = option(
        "none",
        "with --init, a mode of fine-tuning, which sets the fields of optim that are not given: full (all weights, "
        "with layer decay), head (all else is frozen) or attention (with positions and head)",
    )
    config: str = option(
        "",
        "a file that --print-config wrote, or a run's config.json: its values replace those of the preset, and flags "
        "replace those of the file",
    )
    print_config: bool = option(False, "print the run's config as JSON and exit")
    dry_run: bool = option(
        False,
        "open the data, build the network, time a few steps, print what would be trained and exit; nothing is written",
    )
    hosts: str = option(
        "",
        "train with several processes that all give this command: auto (those that Slurm, MPI, a TPU pod or "
        "Kubernetes has started, or that JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID name), or "
        "ADDRESS:PORT,COUNT,INDEX (where process 0 listens, how many there are, and which this is, from 0); process 0 "
        "alone reads and writes the run's folder; empty: this process alone",
    )
    version: bool = option(False, "print the version and exit")

    def run(self) -> RunConfig:
        """The config of the run."""
        return RunConfig(**{f.name: getattr(self, f.name) for f in dataclasses.fields(RunConfig)})

    def of(self, run: RunConfig) -> Options:
        """These options with the fields of another run."""
        return replace(self, **{f.name: getattr(run, f.name) for f in dataclasses.fields(RunConfig)})


def parse(arguments: list[str]) -> tuple[str, Options, runs.Run | None]:
    """What arguments ask for -> (name of the preset, options, the run to resume or None).

    The defaults of the flags are the record of the run to resume, or else the preset's, over which go what the weights
    of --init decide, then --config.
    """
    words = list(arguments)
    named = words.pop(0) if words and not flags.is_flag(words[0]) else ""
    given = flags.given_texts(words)
    if flags.value_of(given, "resume"):
        folder = _find_resumed(named, given)
        name = folder.record()["preset"]
        return name, _parse_options(folder.config(), words, named, name), folder
    file = flags.value_of(given, "config")
    values, preset_of_file = read_config(file) if file else ({}, "")
    # An empty --init is none, whatever the file has.
    init = flags.value_of(given, "init") if "init" in given else str(values.get("init", ""))
    preset_name = named or (FINETUNE if init else _of_task(values.get("task")))
    name = named or _name_of(file, preset_of_file) or preset_name
    run = _preset_run(preset_name)
    if not init or {"-h", "help"} & given.keys():
        options = _parse_options(overlaid(run, values, file) if file else run, words, named, name)
        stated = _given_fields(options, words, values)
        if options.data.source != run.data.source:
            options = options.of(replace_fields(on_other_data(options.run()), stated))
        if options.init_encoder:
            options = options.of(starting.filled_encoder(options.run(), stated))
        return name, options, None
    place = flags.value_of(given, "dir") or str(values.get("dir", RunConfig.dir))
    with resumable(init, place, flags.value_of(given, "name") or str(values.get("name", "")) or name):
        if preset_name == FINETUNE:
            run = starting.base(init, place)
            _check_task(run, init, values.get("task"), file)
        run = replace(run, init=init, dir=place)
        options = _parse_options(overlaid(run, values, file) if file else run, words, named, name)
        return name, _filled_in(options, preset_name, words, values), None


def check_options(options: Options, folder: runs.Run | None = None) -> RunConfig:
    """The options' run."""
    run = options.run()
    try:
        run = check_run(run)
    except UserError as error:
        if folder and runs.changed_beside(error, folder, run):
            _same_run(folder, run, options.resume)
        raise
    if options.tune != "none" and not run.init:
        raise UserError(Field("tune"), f"is {options.tune} but init is empty", "name the weights to start from")
    if folder:
        _same_run(folder, run, options.resume)
    return run


def _same_run(folder: runs.Run, run: RunConfig, resume: str) -> None:
    """Raise UserError if flags of --resume make it another run: that can only start from its weights."""
    changed = other_identity(folder.config(), run)
    if changed.keys() - {*LENGTH}:
        fields = ", ".join(f"{name} {old!r} -> {new!r}" for name, (old, new) in changed.items())
        path, source = shlex.quote(resume), shlex.quote(run.data.source)
        raise UserError(
            folder,
            f"holds another run, which differs in {fields}",
            f"leave these as they were, or start a new run from its weights with --init {path} --name NEW "
            f"--data.source {source} in place of --resume {path}",
        )


def _find_resumed(named: str, given: Mapping[str, Sequence[str]]) -> runs.Run:
    """The run that --resume names. Raises UserError on what cannot be given with it."""
    resume, file, tune, other = (flags.value_of(given, flag) for flag in ("resume", "config", "tune", "name"))
    for flag, value in ((f"the preset {named!r}", named), (f"--config {file}", file), (f"--tune {tune}", tune)):
        if value:
            raise UserError(f"--resume {resume} uses the config of that run", f"leave out {flag}")
    folder = runs.find(resume, flags.value_of(given, "dir") or RunConfig.dir)
    if other and other != folder.path.name:
        raise UserError(
            f"--name {other}",
            f"--resume {resume} goes on in the run's own folder",
            f"leave --name out, or start a new run from its weights with --init {shlex.quote(resume)} in place of "
            "--resume",
        )
    return folder


def _parse_options(base: RunConfig, words: list[str], named: str, name: str) -> Options:
    """The options that the words after the preset give, with a run's fields as defaults; --help is printed here.

    `named` is the preset as the user gave it, `name` as it is recorded.
    """
    # Not dataclasses.asdict, which would turn the nested configs into dicts.
    default = Options(**{f.name: getattr(base, f.name) for f in dataclasses.fields(RunConfig)})
    return flags.parse(
        Options,
        _one_preset(words),
        default=default,
        prog="python -m vit_jax.train" + (f" {named}" if named else ""),
        description=_description(named, name) if {"-h", "--help"} & {*words} else None,
    )


def _filled_in(options: Options, preset_name: str, words: list[str], values: dict[str, Any]) -> Options:
    """The options with the fields that the weights of --init decide, unless flags or --config give them."""
    stated = _given_fields(options, words, values)
    try:
        run = starting.fill_run(options.run(), stated, own=preset_name != FINETUNE)
        return options.of(run if options.tune == "none" else apply_tuning(run, options.tune, stated))
    except OtherNetwork as error:
        wanted, given = (c.describe()[0] for c in (error.wanted, error.given))
        in_file_alone = {*flatten(values)} - {*flags.given_fields(words, options)}
        if wanted == given or not {f"model.{field}" for field in error.fields} & in_file_alone:
            raise
        file = options.config
        raise Unfit(
            f"--config {file}",
            f'its network is "{wanted}" and init {options.init} holds "{given}"',
            f'to train the latter, give a copy of {file} without "model", to train the former from random weights, '
            'give --init ""',
        ) from error


def _given_fields(options: Options, words: list[str], values: dict[str, Any]) -> dict[str, Any]:
    """{field: value} of the fields of the run that the user states, by flags or in a --config."""
    named = {*flatten(values), *flags.given_fields(words, options)}
    return {field: value for field, (value, _) in flat(options.run()).items() if field in named}


def _check_task(run: RunConfig, init: str, task: object, file: str) -> None:
    """Raise UserError where the task of a --config trains another kind of network than the weights `init` are of."""
    other = _preset_run(_of_task(task))
    if task == other.task and type(other.model) is not type(run.model):
        held, trained = (each.model.name for each in (run, other))
        raise Unfit(
            f"--config {file}",
            f"its task is {task}, which trains a {trained}, and init {init} holds a {held}",
            f"start from weights of a {trained}, or leave --config out",
        )


def _of_task(task: object) -> str:
    """The first preset of a task; DEFAULT if none has it. Raises UserError on a task whose network is never trained."""
    if task in TASKS:
        check_trained(str(task))
    return next((name for name in PRESETS.ours if preset(name).run.task == task), DEFAULT)


def _name_of(file: str, beside: str) -> str:
    """The name of the runs of a --config without a preset: the preset in the file, or else the file's own name."""
    return next((name for name in (beside, Path(file).stem) if file and is_name(name)), "")


def _preset_run(name: str) -> RunConfig:
    """The run of a preset. Raises UserError saying what else the word may have meant."""
    if not is_preset(name):
        kind = "a folder" if os.path.isdir(name) else "a file" if os.path.isfile(name) else ""
        remedy = f"--config {name} reads a config, --init {name} starts from weights"
        if kind == "a folder":
            remedy = f"--resume {name} continues a run, --init {name} starts from its weights, "
            remedy += f"--data.source folder:{name} trains on its images"
        if users := [each for each in PRESETS.ours if preset(each).run.data.source == name]:
            kind = "a set of images"
            remedy = f"give one that trains on it ({', '.join(users)}), or another and --data.source {name}"
        if kind:
            raise UserError(f"{name} is {kind}, not a preset", remedy=remedy)
    return preset(name).run


def _one_preset(words: list[str]) -> list[str]:
    """The words after the preset. Raises UserError if there is another preset among those that follow no flag."""
    for before, word in zip(["", *words], words, strict=False):
        if (word in PRESETS or word in VARIANTS) and not (flags.is_flag(before) and "=" not in before):
            raise UserError(
                f"the preset {word!r} is not the first argument",
                remedy="give one preset only, before all --field flags",
            )
    return words


def _description(named: str, name: str) -> str:
    """The text of --help before the fields, as wide as the terminal; after a preset, that of the preset."""
    width = max(shutil.get_terminal_size().columns - 2, 40)
    usage = ["Train a network: python -m vit_jax.train [PRESET] [--field value ...].", ""]
    # Lines with an indent, because tyro joins all others.
    if named:
        found = preset(named)
        texts = [found.help or found.title]
        if size := _download_size(found.run):
            texts.append(
                f"Its data, {found.run.data.source}, is fetched once ({size}) and prepared in --data.dir, by default "
                "$TFDS_DATA_DIR or ~/tensorflow_datasets; with --data.no-download it must be there."
            )
        texts += _variants(named)
        text = "\n".join(fill(t, width, 2, 2) for t in texts)
        return "\n".join([*usage, f"{named}:", text, "", f"The defaults below are those of {named}."])
    listing = {}
    for each in PRESETS:
        try:
            found = preset(each)
        except UserError as error:  # of another package
            print_note(f"{error}; it is left out", sys.stderr)
            continue
        size = _download_size(found.run)
        listing[each] = found.title + (f"; fetches {size}" if size else "")
    listing["PRESET-RECIPE"] = "cifar10-48x4-fast, ...: see the help of cifar10-48x4"
    listing["vit-SIZEPATCH"] = "vit-s16, vit-b32, ...: sizes ti s b l h g, any patch"
    column = max(map(len, listing))
    lines = [
        f"  {name:{column}} {textwrap.shorten(title, width - column - 3, placeholder=' ...')}"
        for name, title in listing.items()
    ]
    after = ["", f"The defaults below are those of {name}; PRESET --help explains a preset."]
    return "\n".join([*usage, "Presets:", *lines, *after])


def _variants(name: str) -> list[str]:
    """Paragraphs of help: what the notebook of a preset's network prints, and its other variants; empty without one."""
    base = name.rpartition("-")[0] if name in VARIANTS else name
    if not (notebook := NOTEBOOKS.get(base)):
        return []
    names = {f"{base}-{kind}": purpose for kind, purpose in PURPOSES.items()}
    others = [f"{each}: {purpose}. {VARIANTS[each].help}" for each, purpose in names.items() if each != name]
    others += [f"{base}: {preset(base).title}."] if name in VARIANTS else []
    printed = f"Its notebook prints {notebook.accuracy:.4g} on {notebook.split} after {notebook.epochs} epochs."
    return [f"{printed} Presets with the same network and other settings:", *others]


def _download_size(run: RunConfig) -> str:
    """How large the archives of a run's data are, in words, if these are fetched by name; else empty."""
    from ..data.prepared import FETCHED

    return f"{FETCHED[run.data.source]} MB" if run.data.source in FETCHED else ""
