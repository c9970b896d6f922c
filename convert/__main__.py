"""`python -m convert SRC DST`, `inspect PATH`, `verify A B`, `formats`: weights from one layout to another."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

try:
    from vit_jax.errors import DONE, Interrupted, UserError, out_of_memory
except ModuleNotFoundError as error:
    if error.name != "vit_jax.errors":
        raise
    hiding = sys.modules["vit_jax"].__file__
    print(
        f"vit-jax: error: {hiding}: hides the package vit_jax; rename it, or start in another folder", file=sys.stderr
    )
    sys.exit(2)
from vit_jax.files.terminal import run_command

from .commands.arguments import options, parser

# Each command loads its own modules: help and errors in arguments are there at once.


def convert(arguments: argparse.Namespace) -> int:
    """Convert SRC to DST."""
    from .commands.publish import REMOTE, publish

    if REMOTE.match(arguments.dst):
        return publish(arguments)
    from .commands.convert import run

    return run(arguments)


def inspect(arguments: argparse.Namespace) -> int:
    """Show what a file or folder is."""
    from .commands.inspect import show

    show(arguments.src, options(arguments))
    return DONE


def verify(arguments: argparse.Namespace) -> int:
    """Compare two files as functions."""
    from .verify import command

    return command(arguments, options(arguments))


def formats(arguments: argparse.Namespace) -> int:
    """List the layouts."""
    from .commands.formats import show

    show()
    return DONE


COMMANDS = {"": convert, "inspect": inspect, "verify": verify, "formats": formats}


def main(prog: str = "python -m convert") -> int:
    """Run the command in sys.argv; the exit codes are those of vit_jax.errors."""
    words = sys.argv[1:]
    command = words[0] if words and words[0] in COMMANDS and words[0] and not os.path.exists(words[0]) else ""

    def body() -> int:
        arguments = parser(command, prog).parse_args(words[1:] if command else words)
        return COMMANDS[command](arguments)

    return run_command(lambda: run_undisturbed(body))


def called_by_vit_jax() -> int:
    """The command `vit-jax convert`."""
    return main(sys.argv[0])


def run_undisturbed(body: Callable[[], int]) -> int:
    """Run a command: errors of the system become one sentence, and a signal that ends it leaves nothing behind."""
    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is None or threading.current_thread() is not threading.main_thread():
            continue
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            before[name] = signal.signal(number, end_by_signal)
    try:
        return body()
    except Exception as error:
        if out_of_memory(error):
            raise UserError(
                "out of memory",
                "these networks do not fit into what is free here",
                "close other programs, or repeat it where there is more",
            ) from error
        if not isinstance(error, OSError) or isinstance(error, BrokenPipeError) or error.errno is None:
            raise
        raise UserError(
            error.filename or "the target",
            os.strerror(error.errno).lower(),
            "check the path, its permissions and the disk, nothing was changed",
        ) from error
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def end_by_signal(number: int, frame: Any) -> None:
    """A signal handler: everything that was begun is undone, as after Ctrl-C."""
    raise Interrupted("ended by a signal; what was being written is removed", signal.Signals(number).name)


if __name__ == "__main__":
    sys.exit(main())
