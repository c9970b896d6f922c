"""Open the source of images that a run names."""

from __future__ import annotations

import os
from pathlib import Path

from ....errors import Field, UserError
from ....files.places import copied
from ....kinds.table import class_of
from ...base import GivenData, not_given
from ...items import SETS, source_named
from ..config import FOLDER, GIVEN, TABLE, ImageData
from ..tables.files import Place, find_table, metadata_in
from ..tables.open import declared_in, open_table
from .arrays import open_digits, open_npz
from .base import Source
from .folders import open_folder
from .given import open_given
from .item_images import open_source_named
from .layout import Folder


def open_image_source(data: ImageData, given: GivenData | None = None, fetch: bool = True) -> Source:
    """Open a source of images."""
    return check_target(data, _open(data, given, fetch))


def check_target(data: ImageData, source: Source) -> Source:
    """The source, unchanged."""
    if data.target not in ("", source.outputs.kind):
        what = f"is {data.target}, but the labels of data.source {data.source} are {class_of(source.outputs.kind).says}"
        raise UserError(Field("data.target"), what, "leave it out, or give other labels")
    return source


def table_of(data: ImageData) -> Place | None:
    """Where the table of labels is, if the source is one; else None."""
    if data.source.startswith(TABLE):
        return find_table(data.source)
    return metadata_in(Path(os.path.expanduser(folder_of(data)))) if data.source.startswith(FOLDER) else None


def folder_of(data: ImageData) -> str:
    """The folder of a source folder:PATH, on this machine: of a URL a copy. Raises UserError."""
    return copied(data.source.removeprefix(FOLDER), data.verify)


def _open_table(data: ImageData, place: Place) -> Source:
    """The source of a table. Raises UserError, which says what else folders of classes beside it may be read by."""
    try:
        return open_table(place, declared_in(data))
    except UserError as error:
        folders = Folder(str(place.folder)).folders.values() if data.source.startswith(FOLDER) else ()
        if sum(folder.holds_images for folder in folders) > 1:
            error.add(f"; or move {place.files[0].name} away, to learn the names of the folders")
        raise


def _open(data: ImageData, given: GivenData | None, fetch: bool) -> Source:
    """The source that `data` names, or that Python gave; arrays are read as data.target says."""
    if given is None and (place := table_of(data)):
        return _open_table(data, place)
    for name in () if source_named(data.source) else data.of_a_table():
        what = f"is for a table, and data.source {data.source} is none"
        raise UserError(Field(f"data.{name}"), what, "leave it out, or give csv:FILE")
    if given is not None:
        return open_given(given, data.range, data.target)
    if data.source == GIVEN:
        raise not_given(GIVEN, "(images, labels)")
    if source_named(data.source):
        return open_source_named(data, data.source, fetch)
    for name in ("class_names", "label_table"):
        if getattr(data, name):
            what = f"is for shards, and data.source {data.source} is none"
            raise UserError(Field(f"data.{name}"), what, "leave it out, or give wds:PATTERN or parquet:PATTERN")
    if data.source == "digits":
        return open_digits()
    if data.source.startswith(FOLDER):
        return open_folder(folder_of(data))
    if data.source.lower().endswith(".npz"):
        return open_npz(data.source, data.range, data.target)
    return open_source_named(data, f"{SETS}:{data.source}", fetch)
