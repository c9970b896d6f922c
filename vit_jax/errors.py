"""What can go wrong that is not a bug: the exceptions and the exit codes that they become."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable

DONE, BUG, USER, CHECK = 0, 1, 2, 3  # exit codes of every door
INTERRUPTED = {"SIGINT": 130, "SIGTERM": 143}

_FULL = "the disk is full; free some space and repeat the command, it goes on from the last checkpoint"
_CLOSED = "no permission to write or read here; choose another folder with --dir"
_TAKEN = "a file stands where a folder is needed; choose another --dir or --name"
ENVIRONMENT = {  # what the system says that a user can mend
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _CLOSED),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), _TAKEN),
    errno.ENAMETOOLONG: "the name is too long; choose a shorter --name",
}


class UserError(Exception):
    """The user or the environment did something wrong.

    The message is one sentence that names the field, the value and the remedy; exit code 2.
    """


class CheckFailed(Exception):
    """A check of ours found wrong numbers (a NaN loss, a failed verification); exit code 3."""


class Interrupted(Exception):
    """A signal ended the run after its state was saved; exit code 130 (INT) or 143 (TERM)."""

    def __init__(self, message: str, signal_name: str):
        super().__init__(message)
        self.exit_code = INTERRUPTED[signal_name]


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception is XLA's (or Python's) way of saying that memory ran out."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)[:2000]


def translate(error: BaseException) -> UserError | None:
    """The one-sentence form of an error of the environment, or None where it is a bug of ours."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError):
        number = errno.EACCES if isinstance(error, PermissionError) else error.errno
        if number in ENVIRONMENT:
            return UserError(f"{error.filename or 'the run folder'}: {ENVIRONMENT[number]}")
    if out_of_memory(error):
        return UserError(
            "out of memory: lower --batch, or keep the batch and raise --accumulate, or set --compute-dtype bfloat16"
        )
    return None


def door(main: Callable[[], int | None]) -> int:
    """Run a command's body and turn what it raises into an exit code and one sentence on stderr."""
    code = _run(main)
    atexit.unregister(_end_undisturbed)
    atexit.register(_end_undisturbed)  # of all that runs at the interpreter's end, what was registered last runs first
    try:
        if sys.stdout is not None:  # None where it was closed from the start
            sys.stdout.flush()  # so that a reader who went away is noticed here
    except BrokenPipeError:
        _forget_output()
    return code


def _end_undisturbed() -> None:
    """Let no signal break into the interpreter's own end: the work is done, and its exit code is known."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(number, signal.SIG_IGN)


def _run(main: Callable[[], int | None]) -> int:
    try:
        return main() or DONE
    except (CheckFailed, Interrupted) as error:
        print(f"vit-jax: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, Interrupted) else CHECK
    except KeyboardInterrupt:
        print("vit-jax: interrupted; what was not saved yet is lost", file=sys.stderr)
        return INTERRUPTED["SIGINT"]
    except BrokenPipeError:  # the reader of our output (head, less) went away: not an error
        _forget_output()
        return DONE
    except Exception as error:
        known = translate(error)
        if known is None:
            raise
        print("vit-jax: error: " + " ".join(str(known).splitlines()), file=sys.stderr)
        return USER


def _forget_output() -> None:
    """Let what is still printed go nowhere: the interpreter flushes once more."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print where it must not end the work that the reader of our output went away."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _forget_output()
