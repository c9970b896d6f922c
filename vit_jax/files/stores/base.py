"""Objects under names in one place: a folder, s3://, gs:// or https://.

They are read by ranges, listed, written whole, created where none is, and deleted. What is read again under a tag is
the same object, or an error. Object stores are reached by tensorstore, with the variables that their users have set.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple, Protocol

from ...errors import UserError

KINDS = "a folder, s3://BUCKET/PATH, gs://BUCKET/PATH or https://HOST/PATH"


class StoreError(UserError):
    """A store that cannot be reached, denies, or holds another object than before."""


class Stat(NamedTuple):
    """An object without its content."""

    size: int
    tag: str  # another one of another content; of a local file its size and time of change


PROBE = ".vit-jax-probe-"  # begins the name of an object that tells of nothing: one stays where a probe is killed


class Store(Protocol):
    """The objects of one place. Names are paths with slashes, below it."""

    url: str  # the place, without a slash at its end
    local: bool

    def stat(self, name: str, guess: int = 0) -> Stat:
        """The size of an object, and its tag; a `guess` of its size that is right saves a request."""

    def tag(self, name: str) -> str | None:
        """The tag of an object; None where there is none. Raises UserError where that cannot be known."""

    def read(self, name: str, start: int, stop: int, tag: str = "") -> bytes:
        """The bytes of an object, which has this tag (empty: any), from `start` to before `stop`, which it has."""

    def load(self, name: str) -> bytes | None:
        """The whole of a small object; None where there is none."""

    def list(self, prefix: str = "") -> list[str]:
        """The names that begin with a prefix, sorted. Raises UserError where they cannot be listed."""

    def put(self, name: str, content: bytes) -> None:
        """Write an object, whole, in place of one that is there."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object where none is; whether the object there has this content.

        So of two that write different contents one is told True, also where an answer was lost.
        """

    def delete(self, name: str) -> None:
        """Delete an object, which need not be there."""


def check_conditional(store: Store) -> None:
    """Check that a store creates an object only where none is, which claims and locks need."""
    name = f"{PROBE}{secrets.token_hex(8)}"
    won = [store.create(name, content) for content in (b"first", b"second")]
    store.delete(name)
    if won != [True, False]:
        what = "it does not honour conditional writes (If-None-Match), so two writers could not be kept apart"
        raise UserError(store.url, what, "take a store that does: S3, Google Cloud Storage, or a folder")


def check_name(name: str) -> str:
    """A name, unchanged. Raises UserError where it leads out of its place."""
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or "\0" in name:
        raise UserError(name, "is no name of an object below its folder", "give it without .. and a slash at its front")
    return name


def replaced(where: str) -> StoreError:
    """The error for an object that is another one than before."""
    return StoreError(
        where, "was replaced while it was read: its tag is another", "start again with the object as it is"
    )


def too_short(where: str, size: int, stop: int) -> StoreError:
    """The error for an object that ends too early."""
    return StoreError(where, f"ends after {size:,} bytes, and {stop:,} were to be read", "restore the whole object")
