"""A function in a child process with limits: a file that kills its reader, or starves it, kills only that."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from convert.containers import open_source
from convert.containers.source import Tensor
from vit_jax.errors import CheckFailed, UserError

MEMORY, SECONDS = 6 << 30, 40  # of address space; of wall-clock time

# One process that has imported what reads files (and no framework); every child is a fork of it.
CONTEXT = multiprocessing.get_context("forkserver")
READERS = [f"convert.containers.{name}" for name in ("safetensors", "npz", "torch_file", "msgpack", "folder")]
CONTEXT.set_forkserver_preload(
    [
        __name__,
        *READERS,
        "convert.recognise.reading",
        "convert.plan.plan",
        "convert.write.write",
        "tests.hostile.reading",
    ]
)


@dataclass(frozen=True)
class Outcome:
    """How a call ended: with a value, a refusal, or as no file may make it end (a traceback, a signal, a timeout)."""

    value: Any = None
    refused: str = ""
    failed: str = ""
    grown: int = 0  # bytes by which the child's memory peaked above where it began


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
    """Call `function` in a child. It and its arguments must be picklable, its module without frameworks and pytest."""
    here, there = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_child, args=(there, function, args, kwargs), daemon=True)
    process.start()
    there.close()
    try:
        outcome = here.recv()
    except EOFError:  # it ended without a word
        outcome = None
    process.join()
    return outcome or Outcome(
        failed=f"ended with {process.exitcode}{', too slow' if process.exitcode == -signal.SIGALRM else ''}"
    )


def _child(pipe: Connection, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    before = _peak()
    try:
        outcome = {"value": function(*args, **kwargs)}
    except (UserError, CheckFailed) as error:
        outcome = {"refused": str(error)}
    except BaseException:
        outcome = {"failed": traceback.format_exc()}
    pipe.send(Outcome(**outcome, grown=_peak() - before))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def opened(path: str, file: str = "", step: int | None = None) -> Any:
    """A file or folder read as a whole: its tree, with arrays where tensors are."""
    with open_source(path, file, step) as source:
        return _values(source.tree)


def _values(node: Any) -> Any:
    if isinstance(node, Tensor):
        array = node.read()
        assert (
            (array.dtype, array.shape) == (node.dtype, node.shape) and array.flags.c_contiguous and array.dtype.isnative
        )
        return array
    if isinstance(node, dict):
        return {key: _values(value) for key, value in node.items()}
    return [_values(value) for value in node] if isinstance(node, list | tuple) else node


def accepts(path: Any, truth: dict[str, np.ndarray], grown: int = 64 << 20) -> None:
    """Assert that a file is read as these flat arrays, to the bit, in bounded memory."""
    outcome = run(opened, str(path))
    assert not outcome.refused and not outcome.failed, outcome
    assert outcome.value.keys() == truth.keys()
    for name, array in truth.items():
        found = outcome.value[name]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes()), name
    assert outcome.grown < grown


def refuses(path: Any, *words: str, function: Callable[..., Any] = opened, grown: int = 64 << 20, **kwargs: Any) -> str:
    """Assert that a file is refused in one sentence with these words, in bounded memory; that sentence."""
    outcome = run(function, str(path), **kwargs)
    assert not outcome.failed, outcome.failed
    assert outcome.refused, f"was accepted: {str(outcome.value)[:500]}"
    said = outcome.refused
    assert "\n" not in said and len(said) < 1000 and said.isprintable() and not said.endswith("."), said
    assert all(word in said for word in words), said
    assert outcome.grown < grown, f"took {outcome.grown >> 20} MB"
    return said
