"""Writes .pt files that torch.load(weights_only=True) reads, without PyTorch: a zip of stored members."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError

from .pickle_names import STORAGES, TORCH_DTYPES
from .source import Spec, TreePath, raw

TOP, ALIGNMENT = "archive", 64
TAGS = {dtype: name for name, dtype in STORAGES.items() if name != "torch.storage.UntypedStorage"}
# Dtypes without a storage class of their own.
UNTYPED = {np.dtype(d): name for name, d in TORCH_DTYPES.items() if np.dtype(d) not in TAGS}


def write(
    path: str, tree: Mapping[Any, Any], arrays: Iterator[tuple[TreePath, np.ndarray]], metadata: Mapping[str, str]
) -> None:
    """Write a tree that torch.load reads; see source.Writer."""
    del metadata
    pickled = Pickler()
    pickled.value(tree, ())
    with zipfile.ZipFile(path, "w") as archive:
        _member(archive, "data.pkl", b"\x80\x02" + b"".join(pickled.parts) + b".")
        _member(archive, "byteorder", b"little")
        for keys, array in arrays:
            key, spec = pickled.storages.pop(keys)
            _member(archive, f"data/{key}", raw(array, spec))
            del array  # release it before the next one is made
        _member(archive, "version", b"3\n")
    if pickled.storages:
        raise ValueError(f"no values came for {', '.join(map(str, pickled.storages))}")


def _member(archive: zipfile.ZipFile, name: str, data: bytes | np.ndarray) -> None:
    """Add a stored member; its bytes begin at a multiple of 64 of the file, as PyTorch wants them for memory maps."""
    entry = zipfile.ZipInfo(f"{TOP}/{name}")
    entry.file_size = len(data)
    wide = entry.file_size * 1.05 > zipfile.ZIP64_LIMIT  # zipfile's own rule: then it adds a field of 20 bytes
    assert archive.fp is not None
    bare = archive.fp.tell() + 30 + len(entry.filename) + 20 * wide + 4
    padding = -bare % ALIGNMENT
    entry.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    with archive.open(entry, "w", force_zip64=wide) as member:
        member.write(data)  # type: ignore[arg-type]


class Pickler:
    """Writes plain values and Specs as a pickle of protocol 2; `storages` is {path in the tree: (key, Spec)}."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.storages: dict[TreePath, tuple[str, Spec]] = {}

    def value(self, value: Any, keys: TreePath) -> None:
        """Add a value and all that it contains."""
        put = self.parts.append
        if isinstance(value, Spec):
            self.tensor(value, keys)
        elif isinstance(value, Mapping):
            put(b"}(")
            for key, each in value.items():
                self.value(key, keys)
                self.value(each, (*keys, key))
            put(b"u")
        elif isinstance(value, (list, tuple)):
            put(b"](" if isinstance(value, list) else b"(")
            for i, each in enumerate(value):
                self.value(each, (*keys, i))
            put(b"e" if isinstance(value, list) else b"t")
        else:
            put(_scalar(value, keys))

    def tensor(self, spec: Spec, keys: TreePath) -> None:
        """Add a call of _rebuild_tensor_v2, or of v3 where the dtype has no storage class."""
        tag: str | None = TAGS.get(spec.dtype)
        key, put = str(len(self.storages)), self.parts.append
        self.storages[keys] = key, spec
        if tag is None and spec.dtype not in UNTYPED:
            raise UserError(
                ".".join(map(str, keys)),
                f"is {spec.dtype}, which PyTorch's files do not have",
                "choose another with `dtype`, or another container",
            )
        count = spec.nbytes if tag is None else spec.nbytes // spec.dtype.itemsize
        put(_global(f"torch._utils._rebuild_tensor_v{3 if tag is None else 2}") + b"((" + _scalar("storage"))
        put(
            _global(tag or "torch.storage.UntypedStorage")
            + _scalar(key)
            + _scalar("cpu")
            + _scalar(count)
            + b"tQ"
            + _scalar(0)
        )
        strides = [int(np.prod(spec.shape[i + 1 :], dtype=object)) for i in range(len(spec.shape))]
        for numbers in (spec.shape, strides):
            put(b"(" + b"".join(map(_scalar, numbers)) + b"t")
        put(b"\x89" + _global("collections.OrderedDict") + b")R")
        put((b"" if tag else _global(f"torch.{UNTYPED[spec.dtype]}")) + b"tR")


def _global(name: str) -> bytes:
    module, _, name = name.rpartition(".")
    return f"c{module}\n{name}\n".encode()


def _scalar(value: Any, keys: TreePath = ()) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, int):
        if -(1 << 31) <= value < 1 << 31:
            return b"J" + struct.pack("<i", value)
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + struct.pack("<B", len(data)) + data
    raise ValueError(f"{keys}: a .pt file cannot hold a {type(value).__name__}")
