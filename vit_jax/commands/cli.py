"""The `vit-jax` command, which calls the commands of the project by their names."""

from __future__ import annotations

import importlib
import sys

from ..config.flags import show_word
from ..config.gone import instead_of
from ..config.hints import nearest
from ..errors import UserError
from ..files.terminal import run_command, version

COMMANDS = {
    "train": "train a network, or resume a run",
    "plan": "compile a run's steps for a GPU or TPU that need not be there: memory, bytes, kernels, bounds of time",
    "sweep": "train a run with each combination of several values of its fields, and compare them",
    "evaluate": "measure a trained network on a split of its data",
    "compare": "put runs side by side: where they differ, their results and curves",
    "report": "write what a run, or several, left as one page for a browser: curves, errors, attention",
    "predict": "classify or caption images, or translate sentences, with a trained network",
    "join": "join what --share of predict or evaluate wrote, of all shares, to one file",
    "sheet": "draw what augmentation makes of a preset's images",
    "convert": "convert weights from one layout to another, with proof",
}


def main(program: str = "vit-jax") -> int:
    """Call the command that the first word names, with the words after it; returns its exit code."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name not in COMMANDS:
        return run_command(lambda: _without_command(name, program))
    sys.argv = [f"{program} {name}", *sys.argv[2:]]
    if name == "convert":
        return importlib.import_module("convert.__main__").main(f"{program} convert")
    module = {"compare": "..reports.compare", "report": "..reports.command"}.get(name, f".{name}")
    return importlib.import_module(module, __package__).main()


def _without_command(name: str, program: str) -> None:
    """Print help, or the version. Raises UserError for another word, which is no command."""
    if name == "--version":
        print(f"vit-jax {version()}")
        return
    if name not in ("-h", "--help"):
        raise UserError(_no_command(name, program))
    print(
        f"usage: {program} COMMAND [...]\n\n"
        + "\n".join(f"  {command:10} {text}" for command, text in COMMANDS.items())
        + f"\n\n`{program} COMMAND --help` explains each command, `{program} --version` prints the version."
    )


def _no_command(name: str, program: str) -> str:
    """A sentence for a first word that is no command: it may be a preset or a flag."""
    from ..presets.table import is_preset

    if is_preset(name):
        return f"{name} is a preset, not a command; give {program} train {name}"
    if name.startswith("-"):
        return f"the command comes before its flags: give {program} COMMAND {show_word(name)}"
    if reason := instead_of(name):
        return f"there is no command {show_word(name)} any more: {reason}"
    return f"there is no command {show_word(name)}{nearest(name, list(COMMANDS))}"
