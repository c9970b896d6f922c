"""Pickles and archives put together by hand, as PyTorch's files hold them."""

from __future__ import annotations

import struct
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

VALUES = np.arange(1, 5, dtype=np.float32)  # the storage "0" of every file, unless said otherwise
EMPTY, ORDERED = b"}", b"ccollections\nOrderedDict\n)R"


def pickle(body: bytes, protocol: int = 2) -> bytes:
    """A whole pickle that makes one value."""
    return bytes([0x80, protocol]) + body + b"."


def word(module: str, name: str) -> bytes:
    """A global."""
    return f"c{module}\n{name}\n".encode()


def call(module: str, name: str, arguments: bytes = b")") -> bytes:
    """A global that is called."""
    return word(module, name) + arguments + b"R"


def plain(value: Any) -> bytes:
    """A text, a number, or a tuple of them."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data
    if isinstance(value, str):
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
    return b"(" + b"".join(map(plain, value)) + b"t"


def dictionary(items: Mapping[Any, bytes] | Iterable[tuple[Any, bytes]]) -> bytes:
    """A dict of values that are pickled already."""
    pairs = items.items() if isinstance(items, Mapping) else items
    return b"}(" + b"".join(plain(key) + value for key, value in pairs) + b"u"


def storage(
    kind: str = "FloatStorage", key: str = "0", count: int = 4, place: str = "cpu", module: str = "torch"
) -> bytes:
    """A persistent id of a storage."""
    return plain(("storage", word(module, kind), key, place, count)) + b"Q"


def tensor(
    shape: tuple = (4,), strides: tuple = (1,), offset: int = 0, of: bytes | None = None, last: tuple = ()
) -> bytes:
    """A tensor on a storage."""
    return call(
        "torch._utils",
        "_rebuild_tensor_v2",
        plain((storage() if of is None else of, offset, shape, strides, False, ORDERED, *last)),
    )


def archive(
    path: Any,
    body: bytes,
    members: Mapping[str, bytes | None] | None = None,
    again: Mapping[str, bytes] | None = None,
    method: int = zipfile.ZIP_STORED,
) -> Any:
    """A zip file of torch.save around the pickle of `body`.

    `members` replace those of the same name (None: it is left out); those of `again` follow, with their full names.
    """
    whole = {
        "data.pkl": pickle(body),
        "byteorder": b"little",
        "data/0": VALUES.tobytes(),
        "version": b"3\n",
        **(members or {}),
    }
    with zipfile.ZipFile(path, "w", method) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of duplicate names
        for name, data in [*((f"archive/{name}", data) for name, data in whole.items()), *(again or {}).items()]:
            if data is not None:
                file.writestr(name, data)
    return path


def legacy(path: Any, body: bytes, data: bytes | None = None, keys: bytes | None = None) -> Any:
    """A file of the older form around the pickle of `body`, with one storage."""
    data = struct.pack("<q", 4) + VALUES.tobytes() if data is None else data
    parts = [
        plain(0x1950A86A20F9469CFC6C),
        plain(1001),
        dictionary({"little_endian": plain(True)}),
        body,
        b"](" + plain("0") + b"e" if keys is None else keys,
    ]
    path.write_bytes(b"".join(map(pickle, parts)) + data)
    return path
