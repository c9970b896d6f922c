"""Errors that are not bugs, and the exit code that each becomes."""

from __future__ import annotations

import contextlib
import errno
import shlex
from collections.abc import Iterator
from pathlib import Path

DONE, BUG, USER, CHECK = 0, 1, 2, 3  # exit codes of every command
INTERRUPTED = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}

_FULL = "the disk is full; free some space and repeat the command, a run goes on from its last checkpoint"
_CLOSED = "no permission to write or read here; change that with chmod, or choose another path"
_TAKEN = "a file is where a folder is needed; move it away, or choose another name"
_REMEDIES = {  # {errno: what happened; what the user can do}
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _CLOSED),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), _TAKEN),
    errno.EISDIR: "a folder is where a file is needed; move it away",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


class Field(str):
    """The dotted name of a field of a config, as the subject of an error."""


class UserFacingError(BaseException):
    """An error whose sentence is all that its reader needs: a notebook shows that, below the line of the user's own."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints in place of a traceback."""
        from traceback import extract_tb

        lines = []
        for frame in extract_tb(self.__traceback__):
            if not _of_a_library(frame.filename):
                file = f"{frame.filename}, " if Path(frame.filename).is_file() else ""  # a cell is no file
                within = "" if frame.name.startswith("<") else f", in {frame.name}"
                lines.append(f"{file}line {frame.lineno}{within}: {frame.line}")
        return [*lines, f"{type(self).__name__}: {self}"]


def _of_a_library(file: str) -> bool:
    """Whether a file of code belongs to Python, to this project or to what is installed, and is not the user's."""
    from sysconfig import get_path

    root, path = Path(__file__).resolve().parent, Path(file)
    ours = (root, root.parent / "convert", root.parent / "torch_ref", Path(get_path("stdlib")))
    return "site-packages" in path.parts or file.startswith("<frozen") or any(map(path.is_relative_to, ours))


class ArgumentError(UserFacingError, ValueError):
    """An argument that a network, a search or an optimizer cannot take."""


class UserError(UserFacingError, Exception):
    """An error that the user can resolve: wrong input, or a problem of the environment; exit code 2.

    It reads as one sentence: "model.width is 0: give 1 or more" where the subject is a Field, and otherwise
    "FILE: is empty; get it again".

    Args:
        subject: a Field; or a file, an option, an argument; or, without `what`, a whole sentence.
        what: what is wrong with it, with its value. Other fields are named as beside the subject.
        remedy: what the user can do. Fields and options stand in it in backticks and as in config.json, with their
            values: "give `optim.lr 0.001`", "choose another `name`".
    """

    def __init__(self, subject: object, what: str = "", remedy: str = ""):
        super().__init__(subject, what, remedy)
        self.subject = subject if isinstance(subject, str) else str(subject)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return (": " if isinstance(self.subject, Field) else "; ").join(filter(None, [self.fault, self.remedy]))

    @property
    def fault(self) -> str:
        """What is wrong, with the subject."""
        return (" " if isinstance(self.subject, Field) else ": ").join(filter(None, [self.subject, self.what]))

    def add(self, more: str) -> None:
        """Let it end with more."""
        last = "remedy" if self.remedy else "what" if self.what else "subject"
        setattr(self, last, f"{getattr(self, last)}{more}")


@contextlib.contextmanager
def fields_inside(part: str) -> Iterator[None]:
    """A context in which the fields of errors are those of a config that is the field `part` of another."""
    try:
        yield
    except UserError as error:
        if isinstance(error.subject, Field):
            error.subject = Field(f"{part}.{error.subject}")
        raise


@contextlib.contextmanager
def about(subject: str) -> Iterator[None]:
    """A context in which errors are those of a file or a flag: it is named before what they are about by themselves."""
    try:
        yield
    except UserError as error:
        error.subject, error.what = subject, error.fault
        raise


class CheckFailed(UserFacingError, Exception):
    """The results are wrong (a NaN loss, a failed verification); exit code 3."""


class Interrupted(UserFacingError, KeyboardInterrupt):
    """A signal ended the run after its state was saved; exit code 130 (SIGINT), 143 (SIGTERM) or 129 (SIGHUP).

    In Python it is the KeyboardInterrupt that a user expects who stops a cell, so `except Exception` lets it pass.
    """

    def __init__(self, message: str, signal_name: str):
        super().__init__(message)
        self.exit_code = INTERRUPTED[signal_name]


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception of XLA or Python means that memory ran out."""
    text = str(error)[:2000]
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "YNNPACK operation failed" in text


def as_user_error(error: BaseException) -> UserError | None:
    """The error as a UserError with a one-sentence message; None if it is a bug."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError):
        number = errno.EACCES if isinstance(error, PermissionError) else error.errno
        if number in _REMEDIES:
            return UserError(error.filename2 or error.filename or "the run folder", _REMEDIES[number])
    if out_of_memory(error):
        return UserError(
            "out of memory",
            "lower `batch`, or in training split it into more microbatches with `accumulate`, or give "
            "`compute_dtype bfloat16`, or `scan True` and `remat full`",
        )
    return None


def install(extra: str) -> str:
    """The command that installs an extra of this package: in a checkout from there, else by the package's name."""
    root = Path(__file__).resolve().parents[1]
    checkout = (root / "pyproject.toml").is_file()
    package = "vit-jax" if not checkout else "." if Path.cwd() == root else str(root)
    return "pip install " + shlex.quote(f"{package}[{extra}]")


@contextlib.contextmanager
def require(name: str, extra: str = "text") -> Iterator[None]:
    """A context around the import of a package."""
    try:
        yield
    except ImportError as error:
        raise UserError(Field(name), "is needed but not installed", install(extra)) from error


@contextlib.contextmanager
def report_damage(
    where: str, what: str = "is no tokenizer that can be read", remedy: str = "restore it, or give another"
) -> Iterator[None]:
    """Raise what a library says of a damaged file as a UserError."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # code in Rust that fails raises what is not even an Exception
        reason = (str(error).splitlines() or [type(error).__name__])[0][:100]
        raise UserError(where, f"{what} ({reason})", remedy) from error
