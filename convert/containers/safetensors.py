"""safetensors: a JSON header, then the bytes of all tensors without gaps.

Files written here have the CRC-32 of every tensor in the header's metadata ("digests"); reading checks them.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.errors import UserError

from . import limits, strict_json
from .positional import PositionalFile
from .source import Shape, Source, Spec, Tensor, TreePath, check_names, check_shape, raw

DTYPES = {  # in the order in which the library sorts tensors
    name: np.dtype(dtype)
    for name, dtype in {
        "U64": np.uint64,
        "I64": np.int64,
        "F64": np.float64,
        "C64": np.complex64,
        "F32": np.float32,
        "U32": np.uint32,
        "I32": np.int32,
        "BF16": ml_dtypes.bfloat16,
        "F16": np.float16,
        "U16": np.uint16,
        "I16": np.int16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "I8": np.int8,
        "U8": np.uint8,
        "BOOL": np.bool_,
    }.items()
}
RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA, DIGESTS = "__metadata__", "digests"


# ------------------------------------------------------------------------------------------- reading


def open_file(path: str) -> Source:
    """Open a file; reads its header only."""
    file = PositionalFile(path)
    try:
        entries, start = _header(file)
        metadata = _metadata(entries.pop(METADATA, {}), path)
        check_names(entries, path)
        if not entries:
            raise UserError(path, "holds no tensors", "get the file again")
        ranges = {name: _entry(name, entry, path) for name, entry in entries.items()}
        _check_ranges({name: (begin, end) for name, (_, _, begin, end) in ranges.items()}, file.size - start, path)
        digests = _digests(metadata, ranges.keys(), path)
    except BaseException:
        file.close()
        raise
    tree = {
        name: _tensor(file, name, dtype, shape, start + begin, digests.get(name))
        for name, (dtype, shape, begin, _) in ranges.items()
    }
    return Source(path, "safetensors", dict(tree), metadata, size=file.size, close=file.close)


def _header(file: PositionalFile) -> tuple[dict[str, Any], int]:
    """The header's entries, and the offset of the tensors' bytes."""
    length = struct.unpack("<Q", file.read(0, 8))[0] if file.size >= 8 else 0
    if not 2 <= length <= min(limits.HEADER, file.size - 8):
        raise UserError(
            file.path,
            f"is damaged or no safetensors file (a header of {length} bytes, at most {limits.HEADER}, in {file.size} "
            "bytes)",
            "get the file again",
        )
    text = file.read(8, length).rstrip(b" ")
    if not (text.startswith(b"{") and text.endswith(b"}")):
        raise UserError(file.path, "its header is no JSON object", "get the file again")
    return strict_json.parse(text, file.path), 8 + length


def _metadata(metadata: Any, path: str) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UserError(path, f"its {METADATA} holds values that are no strings", "re-save the file from its library")
    return metadata


def _entry(name: str, entry: Any, path: str) -> tuple[np.dtype, Shape, int, int]:
    """A tensor's dtype, shape, and the begin and end of its bytes. Raises UserError where they do not agree."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise UserError(
            path, f"the entry of {name} is not dtype, shape and data_offsets", "re-save the file from its library"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UserError(
            path,
            f"{name} has the dtype {str(dtype)[:40]!a}, which is none of {', '.join(DTYPES)}",
            "re-save the file in another dtype",
        )
    if (
        not all(
            isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)
            for numbers in (shape, offsets)
        )
        or len(offsets) != 2
    ):
        raise UserError(path, f"shape and data_offsets of {name} are not lists of whole numbers", "get the file again")
    spec, (begin, end) = Spec(DTYPES[dtype], tuple(shape)), offsets
    check_shape(name, spec.dtype, spec.shape, path)
    if spec.nbytes != end - begin:
        raise UserError(
            path,
            f"{name} {shape} of {dtype} takes {spec.nbytes} bytes, but by its data_offsets {offsets} it takes "
            f"{end - begin}",
            "get the file again",
        )
    return spec.dtype, spec.shape, begin, end


def _check_ranges(ranges: Mapping[str, tuple[int, int]], size: int, path: str) -> None:
    """Raise UserError unless the tensors follow each other from the first byte to the last, `size`."""
    at = 0
    for name, (begin, end) in sorted(ranges.items(), key=lambda item: item[1]):
        if begin != at:
            raise UserError(
                path,
                f"{name} begins at byte {begin} of the data and not at {at}, so tensors overlap or leave a gap",
                "get the file again",
            )
        at = end
    if at != size:
        raise UserError(path, f"its tensors take {at} bytes, the file has {size} for them", "get the file again")


def _digests(metadata: Mapping[str, str], names: Any, path: str) -> dict[str, int]:
    """{name: CRC-32} from the header's metadata; empty where it has none. Raises UserError where names differ."""
    if DIGESTS not in metadata:
        return {}
    listed = strict_json.parse(metadata[DIGESTS].encode(), path)
    try:
        digests = {name: int(text, 16) for name, text in listed.items()}
    except (AttributeError, TypeError, ValueError):
        digests = {}
    if digests.keys() != names:
        raise UserError(path, "its digests are not those of its tensors", "get the file again")
    return digests


def _tensor(file: PositionalFile, name: str, dtype: np.dtype, shape: Shape, offset: int, digest: int | None) -> Tensor:
    size = Spec(dtype, shape).nbytes

    def read() -> np.ndarray:
        data = file.array(offset, size)
        if digest is not None and zlib.crc32(data) != digest:
            raise UserError(
                file.path, f"{name} is damaged (its bytes do not have the digest in the file)", "get the file again"
            )
        if dtype == np.bool_ and data.size and data.max() > 1:
            raise UserError(
                file.path,
                f"{name} holds the byte {data.max()}, which is neither true nor false",
                "re-save the file from its library",
            )
        return data.view(dtype).reshape(shape)

    return Tensor(name, dtype, shape, read)


# ------------------------------------------------------------------------------------------- writing


def write(
    path: str, tree: Mapping[str, Spec], arrays: Iterator[tuple[TreePath, np.ndarray]], metadata: Mapping[str, str]
) -> None:
    """Write tensors in the order in which they come, then their digests into the header (see source.Writer)."""
    for name, spec in tree.items():
        if spec.dtype not in NAMES:
            raise UserError(
                os.path.basename(path),
                f"{name} is {spec.dtype.name}, which safetensors does not have",
                "choose another with `dtype`",
            )
    names = sorted(tree, key=lambda name: (RANKS[tree[name].dtype], name))
    digests = dict.fromkeys(names, 0)
    header = _encode_header(tree, digests, metadata)
    offsets, at = {}, len(header)
    for name in names:
        offsets[name] = at
        at += tree[name].nbytes
    with open(path, "wb") as file:
        file.truncate(at)
        missing = set(names)
        for keys, array in arrays:
            name = str(keys[0])
            data = raw(array, tree[name])
            file.seek(offsets[name])
            file.write(data)
            digests[name] = zlib.crc32(data)
            missing.remove(name)
        if missing:
            raise ValueError(f"no values came for {sorted(missing)}")
        file.seek(0)
        file.write(_encode_header(tree, digests, metadata))


def _encode_header(tree: Mapping[str, Spec], digests: Mapping[str, int], metadata: Mapping[str, str]) -> bytes:
    """The header's bytes; their number does not depend on the digests."""
    listed = json.dumps({name: f"{crc:08x}" for name, crc in digests.items()}, separators=(",", ":"))
    entries: dict[str, Any] = {METADATA: {**metadata, DIGESTS: listed}}
    at = 0
    for name in digests:
        spec = tree[name]
        entries[name] = {"dtype": NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [at, at + spec.nbytes]}
        at += spec.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
