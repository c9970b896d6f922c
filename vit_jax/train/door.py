"""The command `python -m vit_jax.train`: presets, fields, and what is only printed."""

from __future__ import annotations

import dataclasses
import difflib
import json
import shutil
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

from .. import backend, runs
from ..config import RunConfig, check_run, to_dict
from ..errors import DONE, UserError, door
from . import train, train_seeds
from .session import announce, prepare


@dataclass(frozen=True)
class Options(RunConfig):
    """What the command takes besides a run's own fields."""

    seeds: int = field(
        default=0,
        metadata={"help": "train this many runs, of seeds seed, seed+1, ..., and report mean and spread; 0: one run"},
    )
    resume: str = field(
        default="",
        metadata={"help": "go on with this run (a folder or a name); its config is the default of all other fields"},
    )
    print_config: bool = field(default=False, metadata={"help": "print the run's config as JSON and end"})
    dry_run: bool = field(
        default=False,
        metadata={"help": "open the data, build the network, print what would be trained, and end; nothing is written"},
    )
    version: bool = field(default=False, metadata={"help": "print the version and end"})

    def run(self) -> RunConfig:
        """The run's fields alone."""
        return RunConfig(**{f.name: getattr(self, f.name) for f in dataclasses.fields(RunConfig)})


def parse(arguments: list[str]) -> tuple[str, Options, runs.Run | None]:
    """Command-line arguments to (preset's name, options, the run to resume). Raises UserError; the parser itself exits with 2."""
    import tyro

    from ..presets import PRESETS, preset

    arguments = list(arguments)
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else ""
    resume = _value(arguments, "--resume")
    if resume and name:
        raise UserError(f"--resume {resume} brings its own config: leave out the preset {name!r}")
    folder = None
    if resume:
        folder = runs.find(resume, _value(arguments, "--dir") or RunConfig.dir)
        name, base = folder.record()["preset"], folder.config()
    else:
        name = name or "digits"
        base = preset(name).run
    # Shallow: the parts of a config stay dataclasses.
    default = Options(**{f.name: getattr(base, f.name) for f in dataclasses.fields(RunConfig)}, resume=resume)
    program = "python -m vit_jax.train" + ("" if resume else f" {name}")
    # AvoidSubcommands: the kind of network is the preset's.
    options, strays = tyro.cli(
        Options,
        args=arguments,
        default=default,
        prog=program,
        description=_description(name),
        return_unknown_args=True,
        config=(tyro.conf.AvoidSubcommands,),
    )
    if strays and strays[0] in PRESETS:
        raise UserError(
            f"the preset {strays[0]!r} comes too late: it is the first argument, before any --field, and the only one"
        )
    if strays:
        raise UserError(
            f"there is no field {strays[0]}{_nearest(strays[0], default)}"
            if strays[0].startswith("-")
            else f"{strays[0]!r} belongs to no --field"
        )
    return name, options, folder


def _nearest(flag: str, options: Options) -> str:
    """A clause naming the fields most like a mistaken one, by their names or by what their help says."""
    wanted = flag.lstrip("-").partition("=")[0].replace("_", "-")
    words = wanted.rpartition(".")[2].replace("-", " ")

    def likeness(name: str, text: str) -> float:
        pairs = ((wanted, name), (words, name.rpartition(".")[2].replace("-", " ")))
        said = 0.7 + 0.3 * len(words) / len(text) if f" {words} " in f" {text} " else 0.0
        return max(said, *(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs))

    found = sorted(((likeness(name, text), name) for name, text in _help_texts(options).items()), reverse=True)
    close = [f"--{name}" for score, name in found if score >= max(0.6, found[0][0] - 0.2)][:3]
    return f"; nearest: {', '.join(close)}" if close else "; --help lists them"


def _help_texts(config: Any, prefix: str = "") -> dict[str, str]:
    """{field of a config as a flag spells it: its help text}."""
    texts: dict[str, str] = {}
    for f in dataclasses.fields(config):
        if dataclasses.is_dataclass(part := getattr(config, f.name)):
            texts |= _help_texts(part, f"{prefix}{f.name}.")
        else:
            texts[prefix + f.name.replace("_", "-")] = f.metadata["help"]
    return texts


def _description(name: str) -> str:
    """What --help says before the fields, as wide as the terminal."""
    from ..presets import PRESETS, preset

    width, gap = shutil.get_terminal_size().columns - 2, " " * 20
    listing = [
        textwrap.fill(preset(n).help, max(width, 50), initial_indent=f"  {n:18}", subsequent_indent=gap)
        for n in PRESETS
    ]
    # A paragraph each: tyro joins the lines of one.
    usage = [
        "Train a network: python -m vit_jax.train [PRESET] [--field value ...].",
        "",
        f"The defaults below are those of {name}.",
    ]
    return "\n".join([*usage, "", "Presets:", *listing])


def _value(arguments: list[str], flag: str) -> str:
    """The value that a flag has on the command line, or ''."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(flag + "="):
            return argument.partition("=")[2]
    return ""


def command(arguments: list[str]) -> int:
    """The command's body: parse, then train."""
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
    if options.seeds < 0 or (options.seeds and folder):
        raise UserError(
            f"seeds is {options.seeds}: give a number of runs, and no --resume; repeat the command with --seeds to go on with such a group"
        )
    if options.seeds:
        train_seeds(run, options.seeds, preset=name)
        return DONE
    if folder:
        runs.same_identity(folder, run)
    train(run, preset=name, folder=folder)
    return DONE


def dry_run(run: RunConfig) -> int:
    """Everything up to the first step, keeping nothing."""
    backend.prepare()
    with backend.precision(run.compute_dtype):
        setup = prepare(run)
        announce(setup)
    print(f"dry run  {setup.epochs} epochs of {setup.order.steps_per_epoch} steps; nothing was written")
    return DONE


def main() -> int:
    """`python -m vit_jax.train`: exit codes are those of errors.py."""
    return door(lambda: command(sys.argv[1:]))
