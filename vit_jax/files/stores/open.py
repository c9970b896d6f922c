"""Open the store of a place, by the kind of its URL."""

from __future__ import annotations

import os

from ...errors import UserError
from .base import KINDS, Store
from .folder import Folder
from .objects import ObjectStore

SCHEMES = ("s3://", "gs://", "https://", "http://")


def is_remote(place: str | os.PathLike[str]) -> bool:
    """Whether a place is a URL, and so no folder."""
    return "://" in os.fspath(place)


def open_store(place: str) -> Store:
    """The store of a place, which is not reached yet."""
    if not is_remote(place):
        return Folder(place)
    if not place.startswith(SCHEMES):
        raise UserError(place, f"{place.partition('://')[0]}:// is not known", f"give {KINDS}")
    return ObjectStore(place)
