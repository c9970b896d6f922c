"""The command `vit-jax plan`: what a run's steps ask of a GPU or TPU that need not be there."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...commands import train as training
from ...config import flags
from ...config.fields import option
from ...config.run import NO_DATA, RunConfig
from ...errors import DONE, Field, UserError
from ...files.terminal import print_wrapped, run_command
from ...machine.division import check_groups, check_shares
from ...machine.targets import GIB, KNOWN, Named, check_compiler, read_target
from ...runs.check import check_complete
from ...tasks.table import task_spec
from .compile import Compiler, versions
from .table import advice, fits, print_plan, variants

OF_TRAINING = ("continue", "hosts", "seeds", "folds", "dry-run", "print-config", "version")
MOST_TRIED = 8  # batches that are compiled to find the largest


@dataclass(frozen=True)
class Options:
    """The arguments of the command besides those of `train`."""

    target: str = option(
        "here",
        f"devices to compile for: {KNOWN}, or any of these with more (h100:16, v5p:4x4x4); here: this machine's",
    )
    evaluate: bool = option(False, "compile the evaluation step too")
    decode: bool = option(False, "compile the search for texts too, in a task that writes texts")
    length: int = option(0, "tokens of the sequences of a batch; 0: as many as the run allows", at_least=0)
    largest_batch: bool = option(False, "find the largest batch that fits into the memory of the devices")
    try_: bool = option(
        False, "compile the training step also with what may help: fused attention, bfloat16, remat, fsdp, accumulate"
    )
    again: bool = option(False, "compile what was compiled before by the same versions, instead of showing that")
    json: bool = option(False, "print all figures as JSON in place of the table")


DESCRIPTION = """Compile the steps of a run for a GPU or TPU, and print what they need on each device:

  vit-jax plan vit-b16 --target h100 --compute-dtype bfloat16 --batch 256 --model.classes 1000

No device, driver, network or data is needed, only the compiler of the target; nothing runs. All flags of
`vit-jax train PRESET --help` may be given. Times are lower bounds from published figures, never predictions."""


def command(arguments: list[str]) -> int:
    """Compile the steps that arguments ask for, and print what they would take."""
    options, preset, run = parse(arguments)
    target = read_target(options.target)
    given = task_spec(run.task).stand_in(run, options.length)
    if options.decode and not given.length:
        raise UserError(Field("decode"), f"is for tasks that write texts, and {run.task} does not", "leave it out")
    run = given.run
    if isinstance(target, Named):
        check_compiler(target)
        check_groups(run.fsdp, target.count, target)
        check_shares({f"batch {given.rows}": given.rows}, target.count, run.accumulate or 1, run.augment.together)
    compiler = Compiler(target, options.again, options.length)
    asked = {"train": True, "evaluate": options.evaluate, "decode": options.decode}
    steps = [compiler.figures(run, what) for what, wanted in asked.items() if wanted]
    tried = try_others(compiler, run, steps[0]) if options.try_ else {}
    largest = largest_batch(compiler, run, steps[0]) if options.largest_batch else None
    hint = advice(run, steps[0], tried)
    if options.json:
        found: dict[str, Any] = {"preset": preset, "target": target.name, "versions": versions(target)}
        found |= {"steps": steps, "tried": tried, "advice": hint, "fits": all(map(fits, steps))}
        if largest is not None:
            best, beyond = largest
            found["largest_batch"] = {"rows": best["rows"], "beyond": beyond, "train": best}
        print(json.dumps(found, indent=1))
    else:
        print_plan(run, target.name, steps, tried, largest)
        print_wrapped(f"advice   {hint}")
    return DONE


def parse(arguments: Sequence[str]) -> tuple[Options, str, RunConfig]:
    """What arguments ask for -> (options, name of the preset, its run)."""
    words = list(arguments)
    named = [words.pop(0)] if words and not flags.is_flag(words[0]) else []
    ours, others = flags.split_words(words, Options)
    given = flags.given_texts(others)
    if {"h", "help", "-h"} & given.keys():
        flags.parse(Options, ["--help"], prog="vit-jax plan PRESET", description=DESCRIPTION)
    options = flags.parse(Options, ours, prog="vit-jax plan")
    if other := next((name for name in OF_TRAINING if name in given), None):
        raise UserError(f"--{other}", "belongs to the command train", "leave it out")
    name, asked_of_train, folder = training.parse([*named, *others])
    run = training.check_options(asked_of_train, folder)
    check_complete(replace(run, data=replace(run.data, source=run.data.source or NO_DATA)))
    return options, name, run


def try_others(compiler: Compiler, run: RunConfig, figures: Mapping[str, Any]) -> dict[str, Any]:
    """{what is changed: figures of the training step with that}; without what the run cannot have."""
    found = {}
    for title, _, other in variants(run, figures):
        try:
            found[title] = compiler.figures(other, "train", f" with {title}")
        except UserError as error:
            print_wrapped(f"note     not with {title}: {error}", sys.stderr)
    return found


def largest_batch(compiler: Compiler, run: RunConfig, figures: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """The largest batch that fits, to 1 % of it, of the multiples that the devices divide -> (figures of its training
    step, the rows of the smallest that was found not to fit; 0: none was).
    """
    from .steps import with_rows

    parts = run.accumulate or figures["parts"]
    each, there = figures["devices"] * parts * run.augment.together, float(figures["memory"]["there"])
    if not there:
        raise UserError(Field("largest_batch"), "is asked for where the memory is not known", "leave it out")
    known: dict[int, Mapping[str, Any]] = {figures["rows"] // each: figures}
    while len(known) < MOST_TRIED:
        count = next_count({count: float(known[count]["memory"]["total"]) for count in known}, there)
        if count in known:
            break
        rows = count * each
        known[count] = compiler.figures(with_rows(run, rows, compiler.length), "train", f" with batch {rows:,}")
    fitting = [count for count in known if known[count]["memory"]["total"] <= there]
    beyond = [count for count in known if known[count]["memory"]["total"] > there]
    if not fitting:
        least = float(known[min(known)]["memory"]["total"])
        raise UserError(
            Field("batch"),
            f"of {min(known) * each} is the smallest that was tried, and takes {least / GIB:.1f} of "
            f"{there / GIB:.1f} GiB on each device",
            "compare what --try compiles",
        )
    return known[max(fitting)], min(beyond, default=0) * each


def next_count(totals: Mapping[int, float], there: float) -> int:
    """The next batch to try: where the line through the two nearest to the limit meets it."""
    lower = max((count for count in totals if totals[count] <= there), default=0)
    upper = min((count for count in totals if totals[count] > there), default=0)
    if not upper:
        low = max((count for count in totals if count < lower), default=0)
        slope = (totals[lower] - totals.get(low, 0.0)) / (lower - low)
        return max(lower + 1, int(lower + (there - totals[lower]) / slope)) if slope > 0 else 2 * lower
    if upper - lower <= max(1, lower // 100):
        return upper
    if not lower:
        more = min((count for count in totals if count > upper), default=0)
        slope = (totals[more] - totals[upper]) / (more - upper) if more else totals[upper] / upper
        guess = int(upper - (totals[upper] - there) / slope) if slope > 0 else 1
        return max(1, min(upper - 1, guess))
    guess = int(lower + (there - totals[lower]) * (upper - lower) / (totals[upper] - totals[lower]))
    margin = (upper - lower) // 8  # a line that is a little off must not stay at one end
    return min(max(guess, lower + 1 + margin * (guess - lower < margin)), upper - 1)


def main() -> int:
    """The command `vit-jax plan`; returns an exit code of errors.py."""
    return run_command(lambda: command(sys.argv[1:]))
