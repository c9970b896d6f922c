"""The command `vit-jax plugins`: the features by name, and the packages they are of."""

from __future__ import annotations

import sys

from ..errors import UserError
from ..files.terminal import print_wrapped, printable, run_command
from ..models.networks import NETWORKS
from ..plugins import CAPABILITIES, COMMANDS, HOOKS, LAYOUTS, SOURCES, STORES
from ..presets.table import PRESETS
from ..tasks.table import TASKS

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
    for table in (COMMANDS, SOURCES, STORES, HOOKS, CAPABILITIES, NETWORKS, TASKS, PRESETS, LAYOUTS):
        ours = table.ours if table is not LAYOUTS else ["`vit-jax convert formats` lists ours"]
        print_wrapped(f"{table.group:14} {', '.join([*ours, *table.built_in])}")
        for name, plugin in table.plugins().items():
            if name not in table.ours:
                print_wrapped(printable(f"{'':14} {name}: {plugin.package}, {plugin.target}"))


def main() -> int:
    """Run `vit-jax plugins`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
