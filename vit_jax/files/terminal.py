"""How a command runs in a terminal: what it prints, how it reports an error, and how it ends."""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib.metadata
import logging
import os
import re
import signal
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from ..errors import CHECK, DONE, INTERRUPTED, USER, CheckFailed, Interrupted, as_user_error

LONG = 400
_LABEL = re.compile(r"\s*[\w-]{1,10}(?: {2,}|: )|\s+")  # what stands before a text: "note     ", "vit-jax: "
_COMMAND = re.compile(r"`[^`]*`|(?<=: )(?:python -m|pip install|vit-jax) .*$")
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # categories of Unicode
JOINERS = frozenset("\u200c\u200d")  # of the same categories, but needed to write Persian, Hindi and emoji


def run_command(main: Callable[[], int | None]) -> int:
    """Run a command's body and return its exit code; an error is printed on stderr as one sentence, a bug is raised."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")  # a name that stdout's encoding lacks is escaped, as on stderr
    warnings.filterwarnings("ignore", "Image size")  # Pillow's: images have bounds of ours
    code = _run(main)
    atexit.unregister(_end_undisturbed)
    atexit.register(_end_undisturbed)  # last registered, so the first handler to run at exit
    try:
        if sys.stdout is not None:  # None where it was closed from the start
            sys.stdout.flush()  # raises here if the reader of a pipe is gone
    except BrokenPipeError:
        _forget_output()
    return code


def _end_undisturbed() -> None:
    """Ignore signals while the interpreter shuts down: the work is done and its exit code decided."""
    for name in INTERRUPTED:
        with contextlib.suppress(ValueError, AttributeError):  # not the main thread; Windows lacks one of them
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _run(main: Callable[[], int | None]) -> int:
    try:
        return main() or DONE
    except (CheckFailed, Interrupted) as error:
        print_wrapped("vit-jax: " + printable(str(error)), sys.stderr)
        return error.exit_code if isinstance(error, Interrupted) else CHECK
    except KeyboardInterrupt:
        print("vit-jax: interrupted; what was not saved yet is lost", file=sys.stderr)
        return INTERRUPTED["SIGINT"]
    except BrokenPipeError:  # the reader of stdout (head, less) has closed it: not an error
        _forget_output()
        return DONE
    except Exception as error:
        known = as_user_error(error)
        if known is None:
            raise
        print_wrapped("vit-jax: error: " + printable(_shorten(" ".join(str(known).splitlines()))), sys.stderr)
        return USER


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """A context in which work goes on when nobody reads its stdout any more (`| head`, a terminal that was closed)."""
    stream = sys.stdout
    if stream is not None:  # None where it was closed from the start
        sys.stdout = _Lasting(stream)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout = stream


class _Lasting:
    """A text stream that discards what is written once nobody reads it."""

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    @staticmethod
    def _attempt(action: Callable[[], Any]) -> None:
        try:
            action()
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # a closed pipe, a terminal that is gone
                raise
            _forget_output()


def _forget_output() -> None:
    """Discard further output: the interpreter flushes stdout once more at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def version() -> str:
    """That of this package, as `--version` prints it."""
    try:
        return importlib.metadata.version("vit-jax")
    except importlib.metadata.PackageNotFoundError:  # a checkout that was never installed
        return "0+unknown"


def print_line(text: str) -> None:
    """Print a text, each line `printable`; carry on if the reader of stdout has closed it (as head does)."""
    try:
        for line in text.split("\n"):
            print_wrapped(printable(line))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()


def print_note(text: str, stream: TextIO | None = None) -> None:
    """Print a remark for the user."""
    print_wrapped(f"note     {printable(text)}", stream)


def print_wrapped(line: str, stream: TextIO | None = None) -> None:
    """Print a line; on a terminal in several that end at words, beside its label."""
    stream = stream or sys.stdout
    print(_wrapped(line, _columns(stream)) if stream is not None and stream.isatty() else line, file=stream)


def _columns(stream: TextIO) -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def _wrapped(line: str, columns: int) -> str:
    label = _LABEL.match(line)
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), line)
    return fill(whole, max(columns, 40), rest=len(label[0]) if label else 0).replace("\0", " ")


def fill(text: str, columns: int, first: int = 0, rest: int = 0) -> str:
    """A text in lines that end at words: flags and paths stay whole, which have hyphens and may be long."""
    return textwrap.fill(
        text, columns, initial_indent=" " * first, subsequent_indent=" " * rest, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def printable(text: str) -> str:
    """A text of a stranger, with what would steer a terminal as an escape such as \\x1b."""
    return "".join(
        ch if ch in JOINERS or unicodedata.category(ch) not in _STEERING else ch.encode("unicode_escape").decode()
        for ch in text
    )


def _shorten(text: str) -> str:
    """The text without the middle of its longest words: paths and values of a screenful."""
    return re.sub(rf"(\S{{{LONG // 2}}})\S{{{LONG // 2},}}(\S{{{LONG // 4}}})", r"\1...\2", text)


@contextlib.contextmanager
def without_logs(level: int = logging.WARNING) -> Iterator[None]:
    """A context in which nothing up to this level is logged, such as advice that no user of ours needs."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)
