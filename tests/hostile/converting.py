"""The command in a child process. Light: it is imported there."""

from __future__ import annotations

import contextlib
import io
import sys
from multiprocessing.connection import Connection
from threading import Barrier

from convert.__main__ import main


def convert(source: str, *arguments: str) -> tuple[int, str]:
    """`python -m convert SOURCE ARGUMENTS`: its exit code and what it says on stderr."""
    sys.argv = ["convert", source, *arguments]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        code = main()
    return code, said.getvalue()


def told(pipe: Connection, ready: Barrier, *arguments: str) -> None:
    """Run the command once all others are ready, and send what came of it."""
    ready.wait()
    pipe.send(convert(*arguments))
