"""The `vit-jax` command, which calls the commands of the project by their names."""

from __future__ import annotations

import importlib
import sys

from .config import nearest
from .errors import USER

COMMANDS = {
    "train": "train a network, or resume a run",
    "evaluate": "measure a trained network on a split of its data",
    "predict": "classify images or translate sentences with a trained network",
    "convert": "convert weights from any layout to any other",
}


def main() -> int:
    """`vit-jax COMMAND ...` does the same as `python -m vit_jax.COMMAND ...`, or `python -m convert ...`."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(
            "usage: vit-jax COMMAND [...]\n\n"
            + "\n".join(f"  {command:10} {text}" for command, text in COMMANDS.items())
            + "\n\n`vit-jax COMMAND --help` explains each command, `vit-jax --version` prints the version."
        )
        return 0
    if name == "--version":
        from . import __version__

        print(f"vit-jax {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"vit-jax: error: there is no command {name!r}{nearest(name, list(COMMANDS))}", file=sys.stderr)
        return USER
    sys.argv = [f"vit-jax {name}", *sys.argv[2:]]
    if name == "convert":
        return importlib.import_module("convert.__main__").main("vit-jax convert")
    module = ".train.command" if name == "train" else f".{name}"
    return importlib.import_module(module, __package__).main()


if __name__ == "__main__":
    sys.exit(main())
