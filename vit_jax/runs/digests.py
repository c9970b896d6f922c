"""Digests of arrays, of JSON values and of a growing file; nested names as dotted ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def array_digest(array: np.ndarray) -> str:
    """BLAKE2b of an array's dtype, shape and little-endian bytes in C order, as 32 hexadecimal digits."""
    return parts_digest(array.dtype, array.shape, [array])


def parts_digest(dtype: np.dtype, shape: Sequence[int], parts: Iterable[np.ndarray]) -> str:
    """The `array_digest` of the array of this dtype and shape that its parts, in C order, make up."""
    digest = hashlib.blake2b(f"{dtype.name}|{list(shape)}|".encode(), digest_size=16)
    for part in parts:
        little = part.astype(dtype.newbyteorder("<")) if part.dtype.byteorder == ">" else part
        digest.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def text_digest(value: Any) -> str:
    """BLAKE2b of a JSON value in canonical form (sorted keys), as 32 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def bytes_digest() -> hashlib.blake2b:
    """A BLAKE2b that bytes are added to with `update`; `hexdigest()` gives 32 hexadecimal digits."""
    return hashlib.blake2b(digest_size=16)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': x}} as {'a.b': x}. Raises ValueError on names that contain dots, which could collide."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str) or "." in key or not key:
            raise ValueError(f"{prefix}{key!r}: names in a tree are non-empty strings without dots")
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return out


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{'a.b': x} as {'a': {'b': x}}."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        node = out
        for key in path:
            node = node.setdefault(key, {})
        node[leaf] = value
    return out
