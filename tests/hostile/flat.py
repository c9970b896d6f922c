"""Files of tensors made by hand, right or wrong in every field."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

A = np.array([1.5, -0.0], np.float32)
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def st(header: Any, data: bytes = A.tobytes(), length: int | None = None) -> bytes:
    """A safetensors file; a header of bytes is taken as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(**changes: Any) -> bytes:
    """A file with one tensor, `a`, float32 [2], and what is changed of its entry."""
    return st({"a": {**ENTRY, **changes}})


def npy(array: np.ndarray | None = None, header: str = "", version: bytes = b"\x01\x00", data: bytes = b"") -> bytes:
    """A .npy file: of an array as numpy writes it, or of a header's text and data."""
    if array is not None:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()
    text = header.encode("latin-1")
    return (
        b"\x93NUMPY"
        + version
        + (struct.pack("<H", len(text)) if version[0] == 1 else struct.pack("<I", len(text)))
        + text
        + data
    )


def header(
    descr: str = "'<f4'",
    shape: str = "(2,)",
    fortran: str = "False",
    more: str = "",
    data: bytes = A.tobytes(),
    **kwargs: Any,
) -> bytes:
    """A .npy file of these texts."""
    return npy(
        header=f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, {more}}}\n", data=data, **kwargs
    )


def npz(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of these members."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as file:
        for name, content in files.items():
            file.writestr(zipfile.ZipInfo(name), content, method)
    return made.getvalue()
