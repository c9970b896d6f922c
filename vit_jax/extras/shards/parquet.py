"""Parquet files as the datasets of Hugging Face are stored: an image and its label in a row, rows in groups.

The footer tells what is where, and the columns of labels and texts are small: images are not read before they are
needed, and then with all others of their group.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...errors import UserError
from ...files.digests import content_digest
from ...files.places import Store
from .index import AGAIN, Index, ObjectFile, read_edge

IMAGES = ("image", "img", "images", "bytes")  # columns of images, where no feature says which it is
_END = b"PAR1"


def scan_parquet(store: Store, name: str, size: int, tag: str) -> Index:
    """Read the footer of a parquet file, and its columns of labels and texts."""
    where = f"{store.url}/{name}"
    edge = read_edge(store, name, size, tag)
    if not edge.endswith(_END):
        first = store.read(name, 0, min(4, size), tag)
        what = "is cut: it has no end mark" if first == _END else "is no parquet file"
        raise UserError(where, what, AGAIN if first == _END else "give files that end with .parquet")
    with _opened(where, store, name, size, tag) as file:
        features = _features(file)
        column = _image_column(where, file, features)
        meta = file.metadata
        counts = [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
        each = [meta.row_group(g).total_byte_size // max(n, 1) for g, n in enumerate(counts)]
        texts = {field: _texts(where, file, field) for field in _small_columns(file) if field != column}
    n = sum(counts)
    if not n:
        raise UserError(where, "has no rows", "leave it out")
    classes = {field: tuple(of["names"]) for field, of in features.items() if field in texts and _is_class(of)}
    sizes, groups = np.repeat(np.array(each, np.int64), counts), np.repeat(np.arange(len(counts)), counts)
    starts = np.full(n, 0 if column else -1, np.int64)
    return Index(name, size, tag, content_digest(edge), (), starts, sizes, groups, texts, column, classes)


def read_group(store: Store, index: Index, group: int) -> list[bytes]:
    """The images of a group of rows."""
    where = f"{store.url}/{index.name}"
    with _opened(where, store, index.name, index.size, index.tag) as file:
        column = file.read_row_group(group, columns=[index.column]).column(0).combine_chunks()
    found = column.field("bytes") if hasattr(column, "field") and column.type.num_fields else column
    images = [value.as_py() for value in found]
    if any(image is None for image in images):
        row = int(np.flatnonzero(index.groups == group)[0]) + images.index(None)
        what = f"row {row} has no bytes of its image, only the path of a file at most"
        raise UserError(where, what, "write the files into it, as Dataset.push_to_hub and embed_external_files do")
    return images


@contextmanager
def _opened(where: str, store: Store, name: str, size: int, tag: str) -> Iterator[Any]:
    """A parquet file, open. Raises UserError where it cannot be read."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.PythonFile(ObjectFile(store, name, size, tag), mode="r") as file:
            yield pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        line = str(error).partition("\n")[0]
        raise UserError(where, f"cannot be read ({line})", AGAIN) from error


def _features(file: Any) -> dict[str, Any]:
    """What Hugging Face's datasets says of the columns: {column: its feature}."""
    try:
        stated = json.loads((file.schema_arrow.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: each for name, each in stated.items() if isinstance(each, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _is_class(feature: Any) -> bool:
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _image_column(where: str, file: Any, features: dict[str, Any]) -> str:
    """The column of images; empty where there is none."""
    from pyarrow import types

    def holds_bytes(kind: Any) -> bool:
        if types.is_struct(kind):
            return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
        return types.is_binary(kind) or types.is_large_binary(kind)

    columns = [field.name for field in file.schema_arrow if holds_bytes(field.type)]
    stated = [name for name in columns if features.get(name, {}).get("_type") == "Image"]
    found = stated or [name for name in columns if name in IMAGES] or columns
    if len(found) > 1:
        raise UserError(where, f"has several columns of images: {', '.join(found)}", "write it with one")
    return found[0] if found else ""


def _small_columns(file: Any) -> list[str]:
    """The columns whose cells are a number or a text."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    return [field.name for field in file.schema_arrow if any(is_kind(field.type) for is_kind in kinds)]


def _texts(where: str, file: Any, field: str) -> tuple[str, ...]:
    """The cells of a column as texts. Raises UserError where one is empty."""
    cells = file.read(columns=[field]).column(0).to_pylist()
    if None in cells:
        raise UserError(where, f"row {cells.index(None)} has no {field}", "fill it, or leave the row out")
    return tuple(str(int(cell) if isinstance(cell, bool) else cell) for cell in cells)
