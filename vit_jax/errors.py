"""What can go wrong that is not a bug: the exceptions and the exit codes that they become."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

DONE, BUG, USER, CHECK = 0, 1, 2, 3  # exit codes of every door
INTERRUPTED = {"SIGINT": 130, "SIGTERM": 143}


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
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(f"{error.filename or 'the run folder'}: the disk is full; free some space and repeat the command, it goes on from the last checkpoint")
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return UserError(f"{error.filename or 'the run folder'}: no permission to write or read here; choose another folder with --dir")
    if out_of_memory(error):
        return UserError("out of memory: lower --batch, or keep the batch and raise --accumulate, or set --compute-dtype bfloat16")
    return None


def door(main: Callable[[], int | None]) -> int:
    """Run a command's body and turn what it raises into an exit code and one sentence on stderr."""
    try:
        return main() or DONE
    except (CheckFailed, Interrupted) as error:
        print(f"vit-jax: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, Interrupted) else CHECK
    except KeyboardInterrupt:
        print("vit-jax: interrupted before there was anything to save", file=sys.stderr)
        return INTERRUPTED["SIGINT"]
    except BrokenPipeError:  # the reader of our output (head, less) went away: not an error
        sys.stderr.close()
        return DONE
    except Exception as error:
        known = translate(error)
        if known is None:
            raise
        print(f"vit-jax: error: {known}", file=sys.stderr)
        return USER
