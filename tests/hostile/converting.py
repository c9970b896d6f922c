"""The command in a child process. Light: it is imported there."""

from __future__ import annotations

import contextlib
import io
import resource
import sys
from multiprocessing.connection import Connection
from threading import Barrier

from convert.__main__ import main
from convert.containers import open_source
from vit_jax.errors import UserError


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


def with_few_files(count: int, path: str) -> list[str]:
    """The names of all tensors in a source, which are read, where a process may have `count` files open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    with open_source(path) as source:
        return [name for name, tensor in source.tree.items() if tensor.read().size]


def refusal(path: str) -> None:
    """Convert a file that is refused. Raises UserError with the sentence."""
    code, said = convert(path, f"{path}.out.safetensors")
    assert code == 2
    raise UserError(said.removeprefix("vit-jax: error: ").rstrip("\n"))
