"""What a path or URL is: a path is read where it lies, a URL by the store of its scheme (STORES in vit_jax/plugins.py).

Another package gives a store by an entry point `vit_jax.stores`: SCHEME = "module:class", of a class with what `Store`
says. By that alone images and shards are read from it, and runs kept in it, of which this machine has copies.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..errors import UserError
from ..plugins import KEPT, STORES
from .reading import COPIES, show_path

KINDS = "a folder, s3://BUCKET/PATH, gs://BUCKET/PATH or https://HOST/PATH"
LOCAL = "folder"  # in STORES: what reads a folder of this machine as a store, by no URL


class StoreError(UserError):
    """A store that cannot be reached, denies, or holds another object than before."""


class Stat(NamedTuple):
    """An object without its content."""

    size: int
    tag: str  # another one of another content; of a local file its size and time of change


class Store(Protocol):
    """The objects of one place: a class that is called with a URL, and reaches nothing yet.

    Names are paths with slashes, below the place. Several threads call at once; what fails is a StoreError.
    """

    url: str  # SCHEME://..., the place, without a slash at its end
    local: bool = False  # whether many small reads cost no more than a large one

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


def check_name(name: str) -> str:
    """A name, unchanged. Raises UserError where it leads out of its place."""
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or "\0" in name:
        raise UserError(name, "is no name of an object below its folder", "give it without .. and a slash at its front")
    return name


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether a place is a URL, and so no folder."""
    return "://" in os.fspath(place)


def store_of(place: str) -> Store:
    """The store of a place, which is not reached yet: of a path one that reads files by ranges, as shards are read."""
    scheme = place.partition("://")[0] if is_remote(place) else LOCAL
    if scheme not in STORES or (scheme == LOCAL and is_remote(place)):
        others = [f"{name}://PATH" for name in STORES.others]
        raise UserError(place, f"{scheme}:// is not known", f"give {', '.join([*others, KINDS])}")
    made = STORES[scheme]
    with STORES.blaming(scheme):
        store: Store = made(place)
    return store


def copied(place: str, verify: bool = False) -> str:
    """A folder of images on this machine: of a URL a copy."""
    return str(KEPT.load().copy_images(place, verify)) if is_remote(place) else place


def is_kept(text: str) -> bool:
    """Whether a text is the URL of what may be kept in a store."""
    return is_remote(text) and not text.startswith("hf:")


def join(place: str, name: str) -> str:
    """The path or URL of a name in a folder."""
    if is_kept(name):
        return name
    if is_kept(place):
        scheme, _, inside = place.partition("://")
        return f"{scheme}://{inside.rstrip('/')}/{name}"
    return os.path.join(place, name)


def local_copy(text: str) -> str:
    """The path of what a text names; of a URL that of a copy here, of a run or all runs below it, without weights."""
    return str(KEPT.load().local_copy(text)) if is_kept(text) else text


def kept_at(path: Path) -> str:
    """The URL of what a path holds a copy of; of anything else the path."""
    return url if is_kept(url := show_path(path)) else str(path)


def check_dir(place: str) -> None:
    """Raise UserError where a folder of runs is at a place that is only read."""
    if is_kept(place):
        KEPT.load().check_dir(place)


def _keeping(path: Path) -> Any:
    """What brings a run to the store that keeps it, and back; None of a folder that is no copy of one."""
    return KEPT.load() if COPIES and is_kept(show_path(path)) else None


def own(path: Path) -> contextlib.AbstractContextManager[None]:
    """A context in which this process alone writes the run in a folder that a store keeps; at its end that gets all."""
    return keeping.own(path) if (keeping := _keeping(path)) else contextlib.nullcontext()


def publish(path: Path) -> None:
    """Bring what is new in the folder of a run that this process owns to the store that keeps it, if one does."""
    if keeping := _keeping(path):
        keeping.publish(path)


def publish_several(folder: Path, *names: str) -> None:
    """Bring files of several runs to the store that keeps their folder, if one does; without names all of them."""
    if keeping := _keeping(folder):
        keeping.publish_several(folder, *names)


def pull_weights(path: Path) -> None:
    """Bring the weights of a run that is kept in a store. Raises UserError where they cannot be had."""
    if keeping := _keeping(path):
        keeping.pull_weights(path)


def is_written(path: Path) -> bool:
    """Whether a process writes the run in a folder in the store that keeps it, as far as the newest record tells."""
    return bool((keeping := _keeping(path)) and keeping.is_written(path))
