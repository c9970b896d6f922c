"""The command `vit-jax sweep`: its arguments, as runs of the command `train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from ...commands import train as training
from ...config import flags
from ...config.fields import option
from ...config.run import RunConfig
from ...errors import DONE, UserError
from ...files.output import print_table
from ...files.terminal import lasting_output, run_command
from ...reports.compare import text_of
from ...runs.values import flat
from ...training.train import steps
from .study import Pruner, Range, Sampler, Search, read_range
from .sweep import Sweep, describe, prepare, train_sweep

# Flags that decide the classes of a run's parts, and so the types of all others.
OF_THE_BASE = ("init", "init-encoder", "config", "dir")
OF_ONE_RUN = ("resume", "continue", "hosts", "folds", "print-config", "version")
PLACES = ("init", "init-encoder", "teacher")  # fields that may name a run inside dir
NUMBERS = {int, float}


@dataclass(frozen=True)
class Options:
    """The arguments of the command besides those of `train`."""

    trials: int = option(0, "how many combinations are trained, chosen by --sampler; 0: every one", at_least=0)
    sampler: Sampler = option("tpe", "how Optuna chooses the trials: by the results of the others, or at random")
    pruner: Pruner = option("none", "ends trials whose validation is behind the others' after as many epochs")
    seeds: int = option(0, "train each trial with this many seeds (seed, seed+1, ...) and compare means", at_least=0)
    dry_run: bool = option(False, "check all combinations, list them and exit, writing nothing")


DESCRIPTION = """Train a run with several values of its fields, and compare them by validation:

  vit-jax sweep PRESET --optim.lr 1e-3,3e-3,1e-2 --model.depth 4,6
  vit-jax sweep PRESET --optim.lr 1e-4..1e-2 --model.depth 4,6 --trials 20 --pruner hyperband

All flags of `vit-jax train PRESET --help` may be given. Values of a number, a word or true,false are joined by
commas; those of a size or a sequence are written as 4x8 (none: an empty one), of words as kernel+bias; values of a
text, which may have commas, follow as words: --init runs/a runs/b. A range of numbers is LOW..HIGH. Each trial is a
whole run in the folder of the sweep, DIR/NAME, beside Optuna's study.db. The same command goes on after an
interruption; given several times at once, such as on each GPU, it shares the trials."""


def command(arguments: list[str]) -> int:
    """Train the trials that arguments ask for, or list them."""
    own, preset, sweep = parse(arguments)
    if own.dry_run:
        list_trials(sweep)
        return DONE
    train_sweep(sweep, lambda run: steps(run, preset=preset))
    return DONE


def parse(arguments: Sequence[str]) -> tuple[Options, str, Sweep]:
    """The options, the preset's name and the sweep that a command line gives."""
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
        raise UserError(f"--{other}", "belongs to the command train", "leave it out; the same sweep goes on by itself")

    preset, base, _ = training.parse(
        [*named, *_words({name: given[name][:1] for name in OF_THE_BASE if name in given})]
    )
    known = flags.flags(base)
    given = {name: _located(texts, base.dir) if name in PLACES else texts for name, texts in given.items() if name}
    values = {name: _values(known[name], texts) if name in known else [texts] for name, texts in given.items()}
    swept = {name: each for name, each in values.items() if isinstance(each, Range) or len(each) > 1}
    fixed = {name: given[name] for name in values if name not in swept}
    first = {name: [str(each.low)] if isinstance(each, Range) else each[0] for name, each in swept.items()}
    flags.read_words(_words({**fixed, **first}, known), known)
    _check_swept(swept, base.run())
    fields = {name.replace("-", "_"): _typed(known[name], each, known) for name, each in swept.items()}

    def run_of(values: Mapping[str, Any]) -> RunConfig:
        chosen = {name.replace("_", "-"): _texts(value) for name, value in values.items()}
        options = training.parse([*named, *_words({**fixed, **chosen}, known)])[1]
        return training.check_options(options)

    search = Search(fields, own.trials, own.sampler, own.pruner, own.seeds)
    try:
        return own, preset, prepare(search, run_of, preset)
    except UserError as error:
        _explain_commas(error, given, known)
        raise


def _check_swept(swept: Mapping[str, Any], run: RunConfig) -> None:
    """Raise UserError where no field has several values, or one that a run does not have."""
    if other := next((name for name in swept if name.replace("-", "_") not in flat(run)), ""):
        raise UserError(f"--{other}", "is no field of a run", "give it one value")
    if not swept:
        raise UserError(
            "no field has several values", remedy="give them with commas, such as --optim.lr 1e-3,3e-3; see --help"
        )


def _explain_commas(error: UserError, given: Mapping[str, list[str]], known: Mapping[str, flags.Flag]) -> None:
    """Add to an error about a text with commas how several texts are given."""
    for name, texts in given.items():
        if name in known and known[name].hint is str and "," in "".join(texts) and "".join(texts) in str(error):
            error.add(f"; several values of a text follow as words: --{name} {' '.join(texts).replace(',', ' ')}")


def _values(flag: flags.Flag, texts: list[str]) -> list[list[str]] | Range:
    """The texts of each value that a command line gives a field, or the range."""
    if len(texts) == 1 and NUMBERS & {*flags.alternatives(flag.hint)} and (found := read_range(flag.name, texts[0])):
        return found
    return split_values(flag, texts)


def _typed(flag: flags.Flag, values: list[list[str]] | Range, known: Mapping[str, flags.Flag]) -> list[Any] | Range:
    if not isinstance(values, Range):
        return [flags.read_words(_words({flag.name: texts}, known), known)[flag.name] for texts in values]
    low, high = values.low, values.high
    return Range(float(low), float(high)) if flag.hint is float else values


def _texts(value: Any) -> list[str]:
    """The texts of a value, which a command line may have after a flag."""
    if isinstance(value, tuple):
        return [*map(str, value)]
    return [str(value).lower() if isinstance(value, bool) else str(value)]


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


def list_trials(sweep: Sweep) -> None:
    """Print what a sweep is to train, with each combination that it begins with and its parameters."""
    print(describe(sweep))
    each = sweep.search.to_check()
    fields = [[name, *(text_of(values[name]) for values in each)] for name in sweep.search.fields]
    counts = [f"{sweep.run_of(values).model.with_data().parameter_count():,}" for values in each]
    numbers = map(str, range(1, len(each) + 1))
    print_table(["", *numbers], [fields, [["parameters", *counts]]])
    print("dry run  nothing was written")


def main() -> int:
    """The command `vit-jax sweep`; returns the exit code."""

    def lasting() -> int:
        with lasting_output():
            return command(sys.argv[1:])

    return run_command(lasting)
