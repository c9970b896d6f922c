"""Orbax checkpoints, read and written with TensorStore and JSON; Orbax itself would start a jax backend.

An item is a folder with `_METADATA` (JSON: which arrays there are) and the arrays themselves: zarr arrays named by
their dotted key paths, inside an OCDBT database or, from older versions, as folders. A step is a folder of items; a
checkpoint manager's folder holds numbered steps.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as Folder
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.errors import UserError
from vit_jax.files import strict_json
from vit_jax.files.reading import check_regular, read_regular

from . import limits
from .source import Source, Spec, Tensor, TreePath, check_names, check_shape, leaves

METADATA, TEMPORARY = "_METADATA", ".orbax-checkpoint-tmp"
BATCH = 32 << 20  # bytes that are committed to the database at a time
# Each thread of TensorStore has memory of its own.
ONE_AT_A_TIME = {"data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}}
MAX_DEPTH = 2 * limits.NESTING  # parts of a name: an optimizer's moments are nested deeper than weights
CHUNK, CHUNKS = 1 << 20, 2  # bytes that a chunk may have in any case; how often it may exceed its array
PARTS = 1 << 16  # chunks of an array
EMPTY = ("None", "Dict", "List", "Tuple")  # value types that stand for empty containers
Keys = tuple[str, ...]


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether this is a folder that Orbax wrote: an item, a step, or numbered steps."""
    folder = Folder(path)
    return (folder / METADATA).is_file() or bool(items(folder)) or bool(steps(folder))


def items(folder: Folder) -> list[str]:
    """The names of the items with arrays in a step's folder, sorted."""
    found = (p.name for p in folder.glob("*") if os.path.lexists(p / METADATA))  # a broken link is refused on reading
    return sorted(name for name in found if TEMPORARY not in name)


def steps(folder: Folder) -> list[int]:
    """The numbered steps in a checkpoint manager's folder, newest first."""
    return sorted((int(p.name) for p in folder.glob("*") if p.name.isdecimal() and items(p)), reverse=True)


def open_folder(path: str | os.PathLike[str], step: int | None = None) -> Source:
    """Open an item, a step, or a checkpoint manager's folder.

    Tensors are named by their key paths joined with dots; in a step their item's name comes first, unless that is a
    single `default`. The last level `value`, which states of nnx have, is left out.
    """
    folder = Folder(path)
    if TEMPORARY in folder.absolute().as_posix():
        raise UserError(path, "this save was never finished", "give a finished step")
    if not (folder / METADATA).is_file() and not items(folder):
        folder = _step(folder, step)
    files, size = _files(folder)
    tree: dict[str, Any]
    if (folder / METADATA).is_file():
        tree, skipped = _item(folder, size)
    else:
        found = {name: _item(folder / name, size) for name in items(folder)}
        tree = {name: item for name, (item, _) in found.items()}
        tree = tree["default"] if list(tree) == ["default"] else tree
        skipped = [f"{name}.{what}" for name, (_, passed_over) in found.items() for what in passed_over]
        skipped += [f"{p.name} (no arrays)" for p in sorted(folder.iterdir()) if p.is_dir() and p.name not in found]
    total = sum(tensor.nbytes for tensor in leaves(tree).values())
    if total > max(limits.RATIO_FROM, limits.RATIO * size):  # zeros are stored as nothing
        raise UserError(
            folder,
            f"its arrays would take {total} bytes, more than {limits.RATIO} times the checkpoint, so its headers are "
            "wrong",
            "restore it, or take another step",
        )
    return Source(str(folder), "orbax", tree, skipped=skipped, files=files, size=size)


def _step(folder: Folder, step: int | None) -> Folder:
    """The folder of a step (of the only one, where `step` is None) in a checkpoint manager's folder."""
    known = steps(folder)
    if not known:
        raise UserError(
            folder, f"no finished Orbax checkpoint (it has no {METADATA})", "give the folder of an item, step or run"
        )
    if step is None and len(known) > 1:
        raise UserError(folder, f"holds the steps {', '.join(map(str, known))}", "name one with `step`")
    if step is not None and step not in known:
        raise UserError(folder, f"there is no step {step}", f"it holds {', '.join(map(str, known))}")
    return folder / str(known[0] if step is None else step)


def _files(folder: Folder) -> tuple[list[str], int]:
    """All files in a folder, and their bytes in all."""
    root, found = Folder(os.path.realpath(folder)), []
    for base, folders, names in os.walk(folder):
        for name in (*folders, *names):
            file = Folder(base, name)
            if file.is_symlink() and not Folder(os.path.realpath(file)).is_relative_to(root):
                raise UserError(file, "is a link out of the checkpoint", "put the file itself there")
        for name in names:
            check_regular(path := os.path.join(base, name))
            if not os.path.exists(path):
                raise UserError(path, "is a link to a file that is not there", "put the file itself there")
            found.append((path, os.path.getsize(path)))
    return sorted(path for path, _ in found), sum(size for _, size in found)


# ------------------------------------------------------------------------------------------ reading


def _item(folder: Folder, size: int) -> tuple[dict[str, Tensor], list[str]]:
    """An item's {name: Tensor}, and descriptions of values that were skipped."""
    metadata = _metadata(folder)
    entries, skipped = _entries(metadata, folder)
    check_names([".".join(keys) for keys in entries], str(folder))
    bare = bool(entries) and all(len(keys) > 1 and keys[-1] == "value" for keys in entries)
    stores = _open(folder, entries, bool(metadata.get("use_ocdbt", True)), bool(metadata.get("use_zarr3", False)))
    named = {
        ".".join(keys[:-1] if bare else keys): _tensor(".".join(keys), store, folder, size)
        for keys, store in stores.items()
    }
    return named, skipped


def _metadata(folder: Folder) -> dict[str, Any]:
    """An item's _METADATA. Raises UserError where it is not as Orbax writes it."""
    file = folder / METADATA
    try:
        value = strict_json.parse(read_regular(file, limits.HEADER, "give a checkpoint of weights"))
        if isinstance(value["tree_metadata"], dict):
            return value
    except (ValueError, KeyError, TypeError):
        pass
    raise _not_orbax(file)


def _not_orbax(file: Folder) -> UserError:
    return UserError(file, "is damaged or not written by Orbax", "restore it, or take another step")


def _entries(metadata: Mapping[str, Any], folder: Folder) -> tuple[list[Keys], list[str]]:
    """The key paths of an item's arrays, and descriptions of values that are no arrays."""
    found: dict[str, Keys] = {}
    skipped = []
    try:
        for entry in metadata["tree_metadata"].values():
            keys = tuple(part["key"] for part in entry["key_metadata"])
            value_type = entry["value_metadata"]["value_type"]
            if not all(isinstance(key, str) and key for key in keys) or not 0 < len(keys) <= MAX_DEPTH:
                raise TypeError
            name = ".".join(keys)
            if entry["value_metadata"].get("skip_deserialize") or value_type in EMPTY:
                continue
            if value_type == "string":
                skipped.append(f"{name} (a string)")
            elif name in found:  # some key contains a dot; Orbax itself would restore one array for both
                raise UserError(
                    folder, f"two arrays are called {name} in {METADATA}", "save them under keys without dots"
                )
            else:
                found[name] = keys
    except (KeyError, TypeError, AttributeError) as error:
        raise _not_orbax(folder / METADATA) from error
    return list(found.values()), skipped


def _file_store(folder: Folder) -> dict[str, str]:
    """TensorStore's name for a folder; it accepts no `..` in a path."""
    return {"driver": "file", "path": f"{os.path.realpath(folder)}{os.sep}"}


def _open(folder: Folder, entries: Iterable[Keys], ocdbt: bool, zarr3: bool) -> dict[Keys, Any]:
    """{key path: TensorStore handle} of an item's arrays; their headers are read, all at the same time."""
    import tensorstore

    base = _file_store(folder)
    context = tensorstore.Context(ONE_AT_A_TIME)
    opening = {}
    for keys in entries:
        name = ".".join(keys)
        if not ocdbt and (os.sep in name or "/" in name or not name.strip(".")):
            raise UserError(folder, f"the name {name!r} leads to another folder", "re-save the checkpoint")
        store = (
            {"driver": "ocdbt", "base": base, "path": f"{name}/"}
            if ocdbt
            else {**base, "path": f"{base['path']}{name}/"}
        )
        opening[keys] = tensorstore.open(
            {"driver": "zarr3" if zarr3 else "zarr", "kvstore": store}, open=True, context=context
        )
    opened = {}
    for keys, future in opening.items():
        try:
            opened[keys] = future.result()
        except Exception as error:  # TensorStore raises ValueError and others, with long texts of paths and sources
            raise _damage(folder, ".".join(keys)) from error
    return opened


def _tensor(name: str, store: Any, folder: Folder, size: int) -> Tensor:
    """One array of an item; `size` are the bytes of the whole checkpoint on disk, to recognise absurd headers."""
    dtype, shape = np.dtype(store.dtype.numpy_dtype), tuple(store.shape)
    if dtype.kind not in "fiub" and dtype != ml_dtypes.bfloat16:
        raise UserError(
            folder, f"{name} is of dtype {store.dtype.name}, which no weights have", "leave it out of the checkpoint"
        )
    check_shape(name, dtype, shape, str(folder))

    def read() -> np.ndarray:
        try:
            return np.require(store.read().result(), requirements=["C", "O", "W"])
        except Exception as error:  # as above
            raise _damage(folder, name) from error

    tensor = Tensor(name, dtype, shape, read)
    if tensor.nbytes > max(limits.RATIO_FROM, limits.RATIO * size):
        raise UserError(
            folder,
            f"{name} {list(shape)} would take {tensor.nbytes} bytes, more than {limits.RATIO} times the checkpoint, "
            "so its header is wrong",
            "restore it, or take another step",
        )
    _check_chunks(name, store, tensor, folder)
    return tensor


def _check_chunks(name: str, store: Any, tensor: Tensor, folder: Folder) -> None:
    """Raise UserError where an array's parts, each of which is allocated whole, are absurdly large or many."""
    chunk = store.chunk_layout.read_chunk.shape or tensor.shape
    size = math.prod(chunk) * tensor.dtype.itemsize
    count = math.prod(-(-length // max(part, 1)) for length, part in zip(tensor.shape, chunk, strict=True))
    if size > max(CHUNK, CHUNKS * tensor.nbytes) or count > PARTS:
        raise UserError(
            folder,
            f"{name} {list(tensor.shape)} is stored in chunks of {list(chunk)}, which no library writes",
            "restore it, or take another step",
        )


def _damage(folder: Folder, name: str) -> UserError:
    return UserError(
        folder, f"{name} cannot be read", "the checkpoint is damaged or incomplete: restore it, or take another step"
    )


# ------------------------------------------------------------------------------------------ writing


def write(
    path: str, tree: Mapping[Any, Any], arrays: Iterator[tuple[TreePath, np.ndarray]], metadata: Mapping[str, str]
) -> None:
    """Write an item folder for Orbax's StandardRestore and PyTreeRestore; see source.Writer."""
    import tensorstore

    awaited: dict[TreePath, Spec] = dict(_specs(tree))
    folder = Folder(path)
    folder.mkdir(parents=True)
    base = _file_store(folder)
    context = tensorstore.Context(ONE_AT_A_TIME)
    with _system_errors(path):
        pending, size = tensorstore.Transaction(), 0
        for keys, array in arrays:
            spec = awaited.pop(keys)
            if (array.dtype, array.shape) != (spec.dtype, spec.shape):
                raise ValueError(f"{keys} is {array.dtype} {array.shape} instead of {spec}")
            store = tensorstore.open(
                {
                    "driver": "zarr",
                    "kvstore": {"driver": "ocdbt", "base": base, "path": f"{'.'.join(map(str, keys))}/"},
                    "metadata": {"compressor": {"id": "zstd", "level": 1}, "chunks": [max(n, 1) for n in array.shape]},
                },
                create=True,
                dtype=tensorstore.dtype(array.dtype),
                shape=array.shape,
                context=context,
                transaction=pending,
            ).result()
            store.write(array).result()
            size += array.nbytes
            if size > BATCH:
                pending.commit_sync()
                pending, size = tensorstore.Transaction(), 0
        pending.commit_sync()
    if awaited:
        raise ValueError(f"no array came for {', '.join('.'.join(map(str, keys)) for keys in awaited)}")
    _write_text(folder / METADATA, json.dumps(_tree_metadata([keys for keys, _ in _specs(tree)])))


@contextlib.contextmanager
def _system_errors(path: str) -> Iterator[None]:
    """Raise the OSError that TensorStore states in the text of another exception (a full disk as exhaustion)."""
    try:
        yield
    except Exception as error:
        number = re.search(r"os_error_code=.(\d+)", str(error))
        if isinstance(error, UserError | OSError) or not number:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), path) from error


def _specs(tree: Mapping[Any, Any], prefix: Keys = ()) -> Iterator[tuple[Keys, Spec]]:
    """(key path, Spec) of a nested tree's leaves."""
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "." in key or "/" in key:
            raise ValueError(
                f"{key!r} in {'.'.join(prefix)}: keys in an Orbax tree are strings without dots and slashes"
            )
        if isinstance(value, Mapping):
            yield from _specs(value, (*prefix, key))
        elif isinstance(value, Spec):
            yield (*prefix, key), value
        else:
            raise ValueError(
                f"{key} in {'.'.join(prefix)} is a {type(value).__name__}, and an Orbax item holds arrays only"
            )


def _tree_metadata(paths: Iterable[Keys]) -> dict[str, Any]:
    """_METADATA for arrays with these key paths (key_type 2 is the key of a dictionary)."""
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    entries = {
        str(keys): {"key_metadata": [{"key": key, "key_type": 2} for key in keys], "value_metadata": value}
        for keys in paths
    }
    return {
        "tree_metadata": entries,
        "use_ocdbt": True,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }


def _write_text(file: Folder, text: str) -> None:
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
