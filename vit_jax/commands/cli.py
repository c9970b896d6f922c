"""The `vit-jax` command, which calls the commands by their names, and `vit-jax plugins`, which lists all names."""

from __future__ import annotations

import sys

from ..config.flags import show_word
from ..config.hints import instead_of, nearest
from ..errors import UserError
from ..files.terminal import print_wrapped, printable, run_command, version
from ..plugins import CAPABILITIES, COMMANDS, HOOKS, LAYOUTS, SOURCES, STORES

PLUGINS_USAGE = """usage: vit-jax plugins [-h]

List what is there by name, and the package that each is of: commands, sources of data, stores, hooks, capabilities,
networks, tasks, presets and layouts. Another package adds names as entry points: vit_jax.hooks and so on."""


def main(program: str = "vit-jax") -> int:
    """Call the command that the first word names, with the words after it; returns its exit code."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name.startswith("-") or name not in COMMANDS:
        return run_command(lambda: _without_command(name, program))
    sys.argv = [f"{program} {name}", *sys.argv[2:]]
    return run_command(lambda: COMMANDS[name]())


def _without_command(name: str, program: str) -> None:
    """Print help, or the version. Raises UserError for another word, which is no command."""
    if name == "--version":
        print(f"vit-jax {version()}")
        return
    if name not in ("-h", "--help"):
        raise UserError(_no_command(name, program))
    listed = {name: plugin.says or f"of the package {plugin.package}" for name, plugin in COMMANDS.plugins().items()}
    print(
        f"usage: {program} COMMAND [...]\n\n"
        + "\n".join(f"  {command:10} {says}" for command, says in listed.items())
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
    return f"there is no command {show_word(name)}{nearest(name, list(COMMANDS.plugins()))}"


def _list_plugins(arguments: list[str]) -> None:
    """Print the names of all tables."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(PLUGINS_USAGE)
        return
    from ..kinds.table import KINDS
    from ..models.networks import NETWORKS
    from ..presets.table import PRESETS
    from ..tasks.table import TASKS

    if arguments:
        raise UserError(f"vit-jax plugins {arguments[0]}", "takes no arguments", "leave them out")
    for table in (COMMANDS, SOURCES, STORES, HOOKS, CAPABILITIES, NETWORKS, TASKS, KINDS, PRESETS, LAYOUTS):
        ours = table.ours if table is not LAYOUTS else ["`vit-jax convert formats` lists ours"]
        print_wrapped(f"{table.group:14} {', '.join([*ours, *table.built_in])}")
        for name, plugin in table.plugins().items():
            if name not in table.ours:
                print_wrapped(printable(f"{'':14} {name}: {plugin.package}, {plugin.target}"))


def list_plugins() -> int:
    """The command `vit-jax plugins`; returns the exit code."""
    return run_command(lambda: _list_plugins(sys.argv[1:]))
