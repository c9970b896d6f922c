"""Digests of arrays, of JSON values and of a growing file; a JSON object with its own digest."""

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
    """The `array_digest` of an array that is there in parts."""
    digest = hashlib.blake2b(f"{dtype.name}|{list(shape)}|".encode(), digest_size=16)
    for part in parts:
        little = part.astype(dtype.newbyteorder("<")) if part.dtype.byteorder == ">" else part
        digest.update(np.ascontiguousarray(little).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def text_digest(value: Any) -> str:
    """BLAKE2b of a JSON value in canonical form (sorted keys), as 32 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def content_digest(content: bytes) -> str:
    """BLAKE2b of the content of a file, as 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def bytes_digest() -> hashlib.blake2b:
    """A BLAKE2b that bytes are added to with `update`; `hexdigest()` gives 32 hexadecimal digits."""
    return hashlib.blake2b(digest_size=16)


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a digest of itself as its last entry."""
    content = {key: value for key, value in content.items() if key != "digest"}
    return {**content, "digest": text_digest(content)}


def without_digest(value: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """(A JSON object without its digest, whether that was its own or there was none)."""
    content = {key: each for key, each in value.items() if key != "digest"}
    return content, "digest" not in value or value["digest"] == text_digest(content)
