"""The command `vit-jax plugins`: the features by name, and the packages they are of."""

from __future__ import annotations

import sys

from ..errors import UserError
from ..files.terminal import printable, run_command
from ..plugins import OURS, TABLES

USAGE = """usage: vit-jax plugins [-h]

List what is there by name, and the package that each is of: commands, sources of data, stores, hooks, capabilities,
networks, tasks, presets and layouts. Another package adds names as entry points: vit_jax.hooks and so on."""


def command(arguments: list[str]) -> None:
    """Print the names of all tables."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    if arguments:
        raise UserError(f"vit-jax plugins {arguments[0]}", "takes no arguments", "leave them out")
    for table in TABLES.values():
        ours = [name for name, plugin in table.all().items() if plugin.package == OURS]
        others = [[name, plugin] for name, plugin in table.all().items() if plugin.package != OURS]
        print(printable(f"{table.group:14} {', '.join(ours)}"))
        for name, plugin in others:
            print(printable(f"{'':14} {name}: {plugin.package}, {plugin.target}"))


def main() -> int:
    """Run `vit-jax plugins`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
