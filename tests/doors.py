"""Several commands in one process: `python -m tests.doors "train ink --max-steps 5" "evaluate ink"`."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import sys
from typing import Any

from vit_jax import export
from vit_jax.commands import cli
from vit_jax.training import finish
from vit_jax.training.hooks import Hooks
from vit_jax.weights import checkpoint


def kill_in_save(number: int) -> None:
    """Let this process be killed in the middle of a save: its arrays are written, its digests are not."""
    sync, numbers = checkpoint.sync_tree, itertools.count(1)

    def then_die(*paths: Any) -> None:
        sync(*paths)
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.sync_tree = then_die


if __name__ == "__main__":
    for command in sys.argv[1:]:
        if command.startswith("kill in save "):
            kill_in_save(int(command.removeprefix("kill in save ")))
        elif command == "without figures":  # and report, at the end of the runs that follow
            finish.draw = lambda *_: None
            Hooks.each = lambda *_: []
        else:
            print(f"$ {command}")
            sys.argv = ["vit-jax", *shlex.split(command)]
            try:
                print(f"exit {export(*sys.argv[2:]) if sys.argv[1] == 'export' else cli.main()}")
            except SystemExit as error:  # --help
                print(f"exit {error.code or 0}")
