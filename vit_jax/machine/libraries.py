"""The libraries of extras such as `text`, imported when a run needs them, and their errors as ours."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from ..errors import Field, UserError, install


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


@contextlib.contextmanager
def without_logs(level: int = logging.WARNING) -> Iterator[None]:
    """A context in which nothing up to this level is logged, such as advice that no user of ours needs."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)
