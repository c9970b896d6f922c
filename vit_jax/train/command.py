"""The command `python -m vit_jax.train`: its arguments, its help, and what it does besides training."""

from __future__ import annotations

import dataclasses
import difflib
import json
import shutil
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

from .. import backend, runs, starting
from ..config import RunConfig, check_run, to_dict
from ..errors import DONE, UserError, run_command
from . import train, train_seeds
from .session import announce, set_up, starting_parameters


@dataclass(frozen=True)
class Options(RunConfig):
    """The arguments of the command: the fields of a run, and these."""

    seeds: int = field(
        default=0,
        metadata={
            "help": "train this many runs with the seeds seed, seed+1, ... and report the mean and standard deviation "
            "of their results; 0: one run"
        },
    )
    resume: str = field(
        default="",
        metadata={
            "help": "continue this run (a folder, or a name inside dir), with its config as the defaults of all flags"
        },
    )
    print_config: bool = field(default=False, metadata={"help": "print the run's config as JSON and exit"})
    dry_run: bool = field(
        default=False,
        metadata={"help": "open the data, build the network, print what would be trained and exit, writing nothing"},
    )
    version: bool = field(default=False, metadata={"help": "print the version and exit"})

    def run(self) -> RunConfig:
        """The config of the run."""
        return RunConfig(**{f.name: getattr(self, f.name) for f in dataclasses.fields(RunConfig)})


def parse(arguments: list[str]) -> tuple[str, Options, runs.Run | None]:
    """Parse command-line arguments to (name of the preset, options, the run to resume or None).

    Raises UserError, or SystemExit(2) from the parser.
    """
    import tyro

    from ..presets import PRESETS, preset

    arguments = list(arguments)
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else ""
    resume = _value(arguments, "--resume")
    if resume and name:
        raise UserError(f"--resume {resume} uses the config of that run: leave out the preset {name!r}")
    folder = None
    if resume:
        folder = runs.find(resume, _value(arguments, "--dir") or RunConfig.dir)
        name, base = folder.record()["preset"], folder.config()
    else:
        init = _value(arguments, "--init")
        name = name or "digits"
        base = filled_in(preset(name).run, init)
    # Not dataclasses.asdict, which would turn the nested configs into dicts.
    default = Options(**{f.name: getattr(base, f.name) for f in dataclasses.fields(RunConfig)}, resume=resume)
    program = "python -m vit_jax.train" + ("" if resume else f" {name}")
    # AvoidSubcommands: the preset determines the type of model, so there is no choice to make on the command line.
    options, unknown = tyro.cli(
        Options,
        args=arguments,
        default=default,
        prog=program,
        description=_description(name),
        return_unknown_args=True,
        config=(tyro.conf.AvoidSubcommands,),
    )
    if unknown and unknown[0] in PRESETS:
        raise UserError(
            f"the preset {unknown[0]!r} is not the first argument: give one preset only, before all --field flags"
        )
    if unknown and unknown[0].startswith("-"):
        raise UserError(f"there is no field {unknown[0]}{_nearest(unknown[0], default)}")
    if unknown:
        raise UserError(f"the argument {unknown[0]!r} follows no --field: name its field, or leave it out")
    return name, options, folder


def filled_in(run: RunConfig, init: str) -> RunConfig:
    """A preset's run with the fields that the weights of `init` decide ("": none); flags override the result.

    Raises UserError.
    """
    return run


def _nearest(flag: str, options: Options) -> str:
    """A clause with the fields that are most similar to an unknown one, by their names or by their help texts."""
    wanted = flag.lstrip("-").partition("=")[0].replace("_", "-")
    words = wanted.rpartition(".")[2].replace("-", " ")

    def similarity(name: str, text: str) -> float:
        pairs = ((wanted, name), (words, name.rpartition(".")[2].replace("-", " ")))
        in_help = 0.7 + 0.3 * len(words) / len(text) if f" {words} " in f" {text} " else 0.0
        return max(in_help, *(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs))

    found = sorted(((similarity(name, text), name) for name, text in _help_texts(options).items()), reverse=True)
    close = [f"--{name}" for score, name in found if score >= max(0.6, found[0][0] - 0.2)][:3]
    return f"; nearest: {', '.join(close)}" if close else "; --help lists them"


def _help_texts(config: Any, prefix: str = "") -> dict[str, str]:
    """{field of a config, spelt as in its flag: its help text}, nested configs included."""
    texts: dict[str, str] = {}
    for f in dataclasses.fields(config):
        if dataclasses.is_dataclass(part := getattr(config, f.name)):
            texts |= _help_texts(part, f"{prefix}{f.name}.")
        else:
            texts[prefix + f.name.replace("_", "-")] = f.metadata["help"]
    return texts


def _description(name: str) -> str:
    """The text of --help before the fields, as wide as the terminal."""
    from ..presets import PRESETS, preset

    width, gap = shutil.get_terminal_size().columns - 2, " " * 20
    listing = [
        textwrap.fill(preset(n).help, max(width, 50), initial_indent=f"  {n:18}", subsequent_indent=gap)
        for n in PRESETS
    ]
    # Separate paragraphs, because tyro joins the lines of each.
    usage = [
        "Train a network: python -m vit_jax.train [PRESET] [--field value ...].",
        "",
        f"The defaults below are those of {name}.",
        "",
        "PRESET --help shows those of another preset.",
    ]
    return "\n".join([*usage, "", "Presets:", *listing])


def _value(arguments: list[str], flag: str) -> str:
    """The value of a flag on the command line, or ''; of several the last, as for the parser."""
    value = ""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            value = arguments[i + 1]
        if argument.startswith(flag + "="):
            value = argument.partition("=")[2]
    return value


def command(arguments: list[str]) -> int:
    """Parse the arguments and train, or print what they ask for; returns the exit code. Raises UserError."""
    name, options, folder = parse(arguments)
    run = options.run()
    if options.version:
        from .. import __version__

        print(f"vit-jax {__version__}")
        return DONE
    check_run(run)
    if options.print_config:
        print(json.dumps(to_dict(run), indent=1))
        return DONE
    if options.dry_run:
        return dry_run(run)
    if options.seeds < 0:
        raise UserError(f"seeds is {options.seeds}: give a number of runs, or 0 for one run")
    if options.seeds and folder:
        raise UserError(
            f"seeds is {options.seeds} and resume is {options.resume}: leave one of them out; "
            "to continue runs that were started with --seeds, repeat their command"
        )
    if options.seeds:
        train_seeds(run, options.seeds, preset=name)
        return DONE
    if folder:
        runs.same_identity(folder, run)
    train(run, preset=name, folder=folder)
    return DONE


def dry_run(run: RunConfig) -> int:
    """Set a run up and print it, without training or writing anything; returns the exit code. Raises UserError."""
    backend.configure_jax()
    with backend.precision(run.compute_dtype):
        if run.init:
            starting.check(run)  # before the data is opened
        setup = set_up(run)
        announce(setup)
        starting_parameters(setup)
    print(f"dry run  {setup.epochs} epochs of {setup.order.steps_per_epoch} steps; nothing was written")
    return DONE


def main() -> int:
    """The command `python -m vit_jax.train`; returns an exit code of errors.py."""
    return run_command(lambda: command(sys.argv[1:]))
