"""Orbax folders, read and written with TensorStore and JSON.

An item is a folder with `_METADATA` (which arrays there are, as JSON) and the arrays themselves: zarr arrays named by their
dotted key path, inside an OCDBT database or, in older ones, as folders. A step is a folder of items, a checkpoint manager's a folder of
numbered steps. Orbax itself would start a jax backend and hold everything at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as Folder
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.errors import UserError

from .source import FREE_BYTES, HEADER, NESTING, RATIO, Path, Source, Spec, Tensor, check_names, check_shape

METADATA, TEMPORARY = "_METADATA", ".orbax-checkpoint-tmp"
BATCH = 32 << 20  # bytes that one commit to the database takes together
ONE_AT_A_TIME = {
    "data_copy_concurrency": {"limit": 1},
    "file_io_concurrency": {"limit": 1},
}  # threads each keep memory of their own
DEPTH = 2 * NESTING  # of names: an optimizer's moments lie some levels deeper than weights
EMPTY = ("None", "Dict", "List", "Tuple")  # value types of what holds nothing
Keys = tuple[str, ...]


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether this looks like a folder that Orbax wrote: an item, a step, or numbered steps."""
    folder = Folder(path)
    return (folder / METADATA).is_file() or bool(items(folder)) or bool(steps(folder))


def items(folder: Folder) -> list[str]:
    """The names of the items of arrays in a step's folder."""
    return sorted(p.parent.name for p in folder.glob(f"*/{METADATA}") if TEMPORARY not in p.parent.name)


def steps(folder: Folder) -> list[int]:
    """The numbered steps in a checkpoint manager's folder, newest first."""
    return sorted((int(p.name) for p in folder.glob("*") if p.name.isdecimal() and items(p)), reverse=True)


def open_folder(path: str | os.PathLike[str], step: int | None = None) -> Source:
    """An item, a step (its items under their names, but a single `default`), or one step of a checkpoint manager's folder.

    Names are key paths with dots; the level `value` that states of nnx have is left out. Raises UserError on unfinished and damaged
    folders, and where there are several steps and none is named.
    """
    folder = Folder(path)
    if TEMPORARY in folder.absolute().as_posix():
        raise UserError(f"{path}: a save that was never finished; give a finished step")
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
        skipped = [f"{name}.{what}" for name, (_, told) in found.items() for what in told]
        skipped += [f"{p.name} (no arrays)" for p in sorted(folder.iterdir()) if p.is_dir() and p.name not in found]
    return Source(str(folder), "orbax", tree, skipped=skipped, files=files, size=size)


def _step(folder: Folder, step: int | None) -> Folder:
    """The step that is meant, in a checkpoint manager's folder."""
    known = steps(folder)
    if not known:
        raise UserError(
            f"{folder}: no finished Orbax checkpoint (there is no {METADATA}); give the folder of an item, a step or a run"
        )
    if step is None and len(known) > 1:
        raise UserError(f"{folder}: holds the steps {', '.join(map(str, known))}; name one with --step")
    if step is not None and step not in known:
        raise UserError(f"{folder}: there is no step {step}; it holds {', '.join(map(str, known))}")
    return folder / str(known[0] if step is None else step)


def _files(folder: Folder) -> tuple[list[str], int]:
    """All files in a folder and their bytes. Raises UserError on links that lead out of it."""
    root, found = folder.resolve(), []
    for base, folders, names in os.walk(folder):
        for name in (*folders, *names):
            place = Folder(base, name)
            if place.is_symlink() and not place.resolve().is_relative_to(root):
                raise UserError(f"{place}: a link that leads out of the checkpoint; put the file itself there")
        found += [os.path.join(base, name) for name in names]
    return sorted(found), sum(os.path.getsize(file) for file in found)


# ------------------------------------------------------------------------------------------ reading


def _item(folder: Folder, size: int) -> tuple[dict[str, Tensor], list[str]]:
    """An item's tensors by name, and what was passed over."""
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
    """What an item's _METADATA says. Raises UserError where it is not what Orbax writes."""
    file = folder / METADATA
    try:
        if file.stat().st_size > HEADER:
            raise UserError(f"{file}: {file.stat().st_size} bytes are more than a checkpoint's; this is no model's")
        value = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(value["tree_metadata"], dict):
            return value
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(f"{file}: damaged or not written by Orbax; restore it, or take another step")


def _entries(metadata: Mapping[str, Any], folder: Folder) -> tuple[list[Keys], list[str]]:
    """The key paths of an item's arrays, and the names of values that are none."""
    found: dict[str, Keys] = {}
    skipped = []
    try:
        for entry in metadata["tree_metadata"].values():
            keys = tuple(part["key"] for part in entry["key_metadata"])
            sort = entry["value_metadata"]["value_type"]
            if not all(isinstance(key, str) and key for key in keys) or not 0 < len(keys) <= DEPTH:
                raise TypeError
            name = ".".join(keys)
            if entry["value_metadata"].get("skip_deserialize") or sort in EMPTY:
                continue
            if sort == "string":
                skipped.append(f"{name} (a string)")
            elif name in found:  # a key with a dot: Orbax itself would restore one array for both
                raise UserError(
                    f"{folder}: two arrays are called {name} in {METADATA}; save them under keys without dots"
                )
            else:
                found[name] = keys
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder / METADATA}: damaged or not written by Orbax; restore it, or take another step"
        ) from error
    return list(found.values()), skipped


def _open(folder: Folder, entries: Iterable[Keys], ocdbt: bool, zarr3: bool) -> dict[Keys, Any]:
    """TensorStore's handles of an item's arrays: their headers are read, all at once."""
    import tensorstore

    base = {"driver": "file", "path": f"{folder.absolute()}{os.sep}"}
    context = tensorstore.Context(ONE_AT_A_TIME)
    opening = {}
    for keys in entries:
        name = ".".join(keys)
        if not ocdbt and (os.sep in name or "/" in name or not name.strip(".")):
            raise UserError(f"{folder}: the name {name!r} leads to another folder; save the checkpoint anew")
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
        except Exception as error:  # TensorStore raises ValueError and others, with paths and sources over many lines
            raise _damaged(folder, ".".join(keys)) from error
    return opened


def _tensor(name: str, store: Any, folder: Folder, size: int) -> Tensor:
    """One array of an item; `size` are the bytes of the whole checkpoint on disk."""
    dtype, shape = np.dtype(store.dtype.numpy_dtype), tuple(store.shape)
    if dtype.kind not in "fiub" and dtype != ml_dtypes.bfloat16:
        raise UserError(
            f"{folder}: {name} is of dtype {store.dtype.name}, which no weights have; leave it out of the checkpoint"
        )
    check_shape(name, dtype, shape, str(folder))

    def read() -> np.ndarray:
        try:
            return np.require(store.read().result(), requirements=["C", "O", "W"])
        except Exception as error:  # as above
            raise _damaged(folder, name) from error

    tensor = Tensor(name, dtype, shape, read)
    if tensor.nbytes > max(FREE_BYTES, RATIO * size):
        raise UserError(
            f"{folder}: {name} {list(shape)} would take {tensor.nbytes} bytes, more than {RATIO} times the checkpoint; its header is wrong"
        )
    return tensor


def _damaged(folder: Folder, name: str) -> UserError:
    return UserError(
        f"{folder}: {name} cannot be read; the checkpoint is damaged or incomplete: restore it, or take another step"
    )


# ------------------------------------------------------------------------------------------ writing


def write(
    path: str, tree: Mapping[Any, Any], arrays: Iterator[tuple[Path, np.ndarray]], metadata: Mapping[str, str]
) -> None:
    """Write an item folder that Orbax's StandardRestore and PyTreeRestore take; a Writer. `path` must not exist.

    Names are strings without dots. `metadata` has no place there.
    """
    import tensorstore

    leaves: dict[Path, Spec] = dict(_specs(tree))
    folder = Folder(path)
    folder.mkdir(parents=True)
    base = {"driver": "file", "path": f"{folder.absolute()}{os.sep}"}
    context = tensorstore.Context(ONE_AT_A_TIME)
    pending, size = tensorstore.Transaction(), 0
    for place, array in arrays:
        spec = leaves.pop(place)
        if (array.dtype, array.shape) != (spec.dtype, spec.shape):
            raise ValueError(f"{place} is {array.dtype} {array.shape} instead of {spec}")
        store = tensorstore.open(
            {
                "driver": "zarr",
                "kvstore": {"driver": "ocdbt", "base": base, "path": f"{'.'.join(map(str, place))}/"},
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
    if leaves:
        raise ValueError(f"no array came for {', '.join('.'.join(map(str, place)) for place in leaves)}")
    _write_text(folder / METADATA, json.dumps(_tree_metadata([place for place, _ in _specs(tree)])))


def _specs(tree: Mapping[Any, Any], prefix: Keys = ()) -> Iterator[tuple[Keys, Spec]]:
    """(key path, Spec) of a nested tree's leaves."""
    for key, value in tree.items():
        if not isinstance(key, str) or not key or "." in key or "/" in key:
            raise ValueError(
                f"{key!r} in {'.'.join(prefix)}: names in an Orbax tree are strings without dots and slashes"
            )
        if isinstance(value, Mapping):
            yield from _specs(value, (*prefix, key))
        elif isinstance(value, Spec):
            yield (*prefix, key), value
        else:
            raise ValueError(
                f"{key} in {'.'.join(prefix)} is a {type(value).__name__}, and an Orbax item holds arrays alone"
            )


def _tree_metadata(places: Iterable[Keys]) -> dict[str, Any]:
    """_METADATA of arrays under these key paths (2 is a dict's key)."""
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    entries = {
        str(place): {"key_metadata": [{"key": key, "key_type": 2} for key in place], "value_metadata": value}
        for place in places
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
