"""The command `vit-jax sweep`: its arguments, and the processes that train its points."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

from ..config import flags
from ..config.fields import option
from ..errors import DONE, UserError
from ..files.terminal import lasting_output, run_command
from ..machine.backend import check_flags
from ..reports.sweep import print_points
from ..runs.points import Point
from ..runs.values import flat
from ..training.sweep import Sweep, describe, is_done, prepare, train_sweep
from . import train as training
from .processes import one_device_each, train_in_processes

# Flags that decide the classes of a run's parts, and so the types of all others.
OF_THE_BASE = ("init", "init-encoder", "config", "dir")
OF_ONE_RUN = ("resume", "continue", "hosts", "folds", "print-config", "version")  # of the command train only
PLACES = ("init", "init-encoder", "teacher")  # fields that may name a run inside dir


@dataclass(frozen=True)
class Options:
    """The arguments of the command besides those of `train`."""

    seeds: int = option(0, "train each point with so many seeds, seed, seed+1, ..., and compare the means", at_least=0)
    halving: bool = option(
        False,
        "successive halving: train all points for few epochs, the best third anew for three times as many, and so on, "
        "up to --epochs; each time from the start, since most schedules depend on the length of a run",
    )
    by_device: bool = option(
        False, "train as many points at a time as there are NVIDIA GPUs here, each on one; else each on all, in turn"
    )
    points: int = option(100, "the most runs that a sweep may have, so that none grows by mistake", at_least=1)
    dry_run: bool = option(False, "check all points, list them and exit, writing nothing")


DESCRIPTION = """Train a run with each combination of several values of its fields, and compare them:

  vit-jax sweep PRESET --optim.lr 1e-3,3e-3,1e-2 --model.depth 4,6

All flags of `vit-jax train PRESET --help` may be given. Values of a number, a word or true,false are joined by
commas; those of a size or a sequence are written as 4x8 (none: an empty one), of words as kernel+bias; values of a
text, which may have commas, follow as words: --init runs/a runs/b. Each point is a whole run in the folder of the
sweep, DIR/NAME. The same command goes on after an interruption, and with more values adds their points."""


def command(arguments: list[str]) -> int:
    """Train the points that arguments ask for, or list them."""
    own, sweep = parse(arguments)
    if own.dry_run:
        list_points(sweep)
        return DONE
    places = one_device_each() if own.by_device else [{}]
    if own.by_device and len(places) < 2:
        print("note     there are not several NVIDIA GPUs here: one point at a time")
    train_sweep(sweep, lambda units: train_in_processes(units, places))
    return DONE


def parse(arguments: Sequence[str]) -> tuple[Options, Sweep]:
    """The options and the sweep that a command line gives."""
    words = list(arguments)
    named = [words.pop(0)] if words and not flags.is_flag(words[0]) else []
    given = flags.given_texts(words)
    if given[""]:
        raise UserError(
            f"the argument {flags.show_word(given[''][0])} follows no --field", "name its field, or leave it out"
        )
    ours = {name: given.pop(name) for name in flags.flags(Options) if name in given}
    if {"h", "help", "-h"} & given.keys():
        flags.parse(Options, ["--help"], prog="vit-jax sweep PRESET", description=DESCRIPTION)
    own = flags.parse(Options, _words(ours), prog="vit-jax sweep")
    if other := next((name for name in OF_ONE_RUN if name in given), None):
        raise UserError(f"--{other}", "is of the command train", "leave it out; the same sweep goes on by itself")

    base = training.parse([*named, *_words({name: given[name][:1] for name in OF_THE_BASE if name in given})])[1]
    known = flags.flags(base)
    given = {name: _located(texts, base.dir) if name in PLACES else texts for name, texts in given.items() if name}
    values = {name: split_values(known[name], texts) if name in known else [texts] for name, texts in given.items()}
    flags.read_words(_words({name: each[0] for name, each in values.items()}, known), known)
    swept = [name for name, each in values.items() if len(each) > 1]
    if other := next((name for name in swept if name.replace("-", "_") not in flat(base.run())), ""):
        raise UserError(f"--{other}", "is no field of a run", "give it one value")
    if not swept:
        raise UserError(
            "no field has several values", remedy="give them with commas, such as --optim.lr 1e-3,3e-3; see --help"
        )
    count = math.prod(len(values[name]) for name in swept) * max(1, own.seeds)
    if count > own.points:
        raise UserError(f"the sweep has {count:,} runs", remedy=f"give fewer values, or --points {count}")
    combined = itertools.product(*values.values())
    commands = [[*named, *_words(dict(zip(values, each, strict=True)), known)] for each in combined]
    try:
        return own, _sweep_of(commands, {name: len(values[name]) for name in swept}, own)
    except UserError as error:
        for name, texts in given.items():
            if name in known and known[name].hint is str and "," in "".join(texts) and "".join(texts) in str(error):
                error.add(f"; several values of a text follow as words: --{name} {' '.join(texts).replace(',', ' ')}")
        raise


def _sweep_of(commands: Sequence[list[str]], counts: Mapping[str, int], own: Options) -> Sweep:
    """The sweep of these arguments of `train`, in which so many values of these flags are combined."""
    points, preset, names = [], "", [name.replace("-", "_") for name in counts]
    for words in commands:
        preset, options, _ = training.parse(words)
        run = training.check_options(options)
        fields = flat(run)
        points.append(Point({name: fields[name][0] for name in names}, run, tuple(words)))
    values = {name: [*dict.fromkeys(point.fields[name] for point in points)] for name in names}
    for (flag, count), each in zip(counts.items(), values.values(), strict=True):
        if len(each) < count:
            raise UserError(f"--{flag}", "has a value twice", "give it once")
    _leave_accelerators()
    run = points[0].run
    return prepare(points, values, run.name or f"{preset}-sweep", bool(run.name), own.seeds, own.halving)


def _leave_accelerators() -> None:
    """Have jax, which checks need, use none in this process: those that train need their memory."""
    check_flags()
    import jax

    jax.config.update("jax_platforms", "cpu")


def split_values(flag: flags.Flag, texts: list[str]) -> list[list[str]]:
    """The values that the texts after a flag give a field."""
    said = f"--{flag.name} {' '.join(texts)}"
    hints = flags.alternatives(flag.hint)
    entries = [entry for hint in hints if get_origin(hint) is tuple for entry in get_args(hint)]
    if flag.hint is str and len(texts) > 1:
        return [[text] for text in texts]
    if flag.hint is str or str in entries:  # a comma may belong to it
        return [texts]
    pieces = " ".join(texts).split(",")
    if len(pieces) == 1 and len(texts) != 1:
        return [texts]
    if len(texts) != 1 or "" in pieces:
        what = "has an empty value" if len(texts) == 1 else "has commas and spaces"
        raise UserError(said, what, f"write values as {'4x8,8x4' if entries else '1,2'}, with commas and no spaces")
    if flag.hint is bool and not {*pieces} <= {"true", "false"}:
        raise UserError(said, "give true,false")
    if not entries:
        return [[piece] for piece in pieces]
    joint = "+" if any(get_origin(entry) is Literal for entry in entries) else "x"
    return [[] if piece == "none" and ... in entries else piece.split(joint) for piece in pieces]


def _located(texts: list[str], place: str) -> list[str]:
    """The texts, the names of runs inside the folder of all runs as paths."""
    return [
        os.path.join(place, text) if not os.path.exists(text) and os.path.exists(os.path.join(place, text)) else text
        for text in texts
    ]


def _words(given: Mapping[str, Sequence[str]], known: Mapping[str, flags.Flag] | None = None) -> list[str]:
    """The words of a command line with these texts after these flags."""
    words = []
    for name, texts in given.items():
        if known and name in known and known[name].hint is bool and [*texts] in (["true"], ["false"]):
            part, dot, last = name.rpartition(".")
            words.append(f"--{name}" if texts[0] == "true" else f"--{part}{dot}no-{last}")
        else:
            words += [f"--{name}={texts[0]}", *texts[1:]] if texts else [f"--{name}"]
    return words


def list_points(sweep: Sweep) -> None:
    """Print the points of a sweep, and which of their runs are done."""
    print(describe(sweep))
    points = [point for rung in sweep.rungs for point in rung]
    columns = [
        ["parameters", *(f"{point.run.model.with_data().parameter_count():,}" for point in points)],
        ["done", *(_done(sweep, point) for point in points)],
    ]
    print_points(points, columns)
    print("dry run  nothing was written")


def _done(sweep: Sweep, point: Point) -> str:
    """How many runs of a point need no more training."""
    each = [is_done(run) for _, run in sweep.units([point])]
    return f"{sum(each)} of {len(each)}" if sweep.seeds else "yes" if all(each) else "no"


def main() -> int:
    """The command `vit-jax sweep`; returns the exit code."""

    def lasting() -> int:
        with lasting_output():
            return command(sys.argv[1:])

    return run_command(lasting)
