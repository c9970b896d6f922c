"""npz: a zip file of .npy members, stored or deflated. bfloat16 has no name in it and is written as V2, two bytes."""

from __future__ import annotations

import ast
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from vit_jax.errors import UserError

from . import limits
from .positional import CHUNK, PositionalFile
from .source import Shape, Source, Spec, Tensor, TreePath, check_names, check_shape, raw
from .zips import Member, zip_members

MAGIC, SUFFIX = b"\x93NUMPY", ".npy"
FEW = 4096  # bytes that are enough to unpack the beginning of a deflated member
HEADER_TEXT = 10_000  # bytes of a .npy header, numpy's own limit
ZIP64_FROM = (1 << 31) - 1  # bytes from which a member's sizes are written as zip64
LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # the format of the header's length, by version of .npy
DTYPES = {
    np.dtype(code).str[1:]: np.dtype(code)
    for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "V2")
}


# ------------------------------------------------------------------------------------------- reading


def open_file(path: str) -> Source:
    """Open a file; reads the headers of all members, no values."""
    file = PositionalFile(path)
    try:
        found = zip_members(file)
        for member in found.values():
            _check_member(path, member)
        check_names([name.removesuffix(SUFFIX) for name in found], path)
        if (total := sum(member.size for member in found.values())) > max(limits.RATIO_FROM, limits.RATIO * file.size):
            raise UserError(
                path, f"would grow from {file.size} to {total} bytes, like a zip bomb", "re-save the file uncompressed"
            )
        if not found:
            raise UserError(path, "holds no arrays", "get the file again")
        tree = {name.removesuffix(SUFFIX): _tensor(file, member) for name, member in found.items()}
    except BaseException:
        file.close()
        raise
    return Source(path, "npz", dict(tree), size=file.size, close=file.close)


def _check_member(path: str, member: Member) -> None:
    if not member.name.endswith(SUFFIX):
        raise UserError(path, f"the member {member.name!a} is no .npy array", "give an .npz file of arrays alone")
    if member.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(
            path, f"the member {member.name!a} is compressed by method {member.method}", "re-save the file with numpy"
        )
    if member.method == zipfile.ZIP_STORED and member.size != member.compressed:
        raise UserError(
            path,
            f"the stored member {member.name!a} has the sizes {member.size} and {member.compressed}",
            "get the file again",
        )
    if member.size > max(limits.RATIO_FROM, limits.RATIO * member.compressed):
        raise UserError(
            path,
            f"the member {member.name!a} would grow from {member.compressed} to {member.size} bytes, like a zip bomb",
            "re-save the file uncompressed",
        )


def _tensor(file: PositionalFile, member: Member) -> Tensor:
    name = member.name.removesuffix(SUFFIX)
    stored, fortran, shape, start = _npy_header(file, member)
    dtype = stored.newbyteorder("=")
    check_shape(name, dtype, shape, file.path)
    if (needed := start + Spec(dtype, shape).nbytes) != member.size:
        raise UserError(
            file.path,
            f"{name} {list(shape)} of {dtype} takes {needed} bytes with its header, its member has {member.size}",
            "get the file again",
        )

    def read() -> np.ndarray:
        data = _bytes(file, member, member.size)
        if zlib.crc32(data) != member.crc:
            raise UserError(
                file.path, f"{name} is damaged (its bytes do not have the CRC in the file)", "get the file again"
            )
        values = data[start:]
        if dtype == np.bool_ and values.size and values.max() > 1:
            raise UserError(
                file.path,
                f"{name} holds the byte {values.max()}, which is neither true nor false",
                "re-save the file with numpy",
            )
        array = values.view(stored)
        array = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
        return np.asarray(array, dtype=dtype, order="C")

    return Tensor(name, dtype, shape, read)


def _bytes(file: PositionalFile, member: Member, size: int) -> np.ndarray:
    """The first `size` bytes of a member's content, uint8 [size]. Raises UserError where it has another length."""
    if member.method == zipfile.ZIP_STORED:
        return file.array(member.offset, min(size, member.size))
    content, done, fed, is_all = np.empty(size, np.uint8), 0, b"", size == member.size
    stream, at, end = zlib.decompressobj(-zlib.MAX_WBITS), member.offset, member.offset + member.compressed
    try:
        while not stream.eof and (is_all or done < size):
            if not fed:
                fed = file.read(at, min(CHUNK, end - at, 2 * size + FEW))
                at += len(fed)
            part = stream.decompress(fed, min(CHUNK, size - done) or 1)
            if len(part) > size - done or not (part or fed):
                break
            content[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done, fed = done + len(part), stream.unconsumed_tail
        else:
            if done == size and not (is_all and (at < end or stream.unused_data)):
                return content
    except zlib.error:
        pass
    raise UserError(
        file.path,
        f"the member {member.name!a} does not unpack to {member.size} bytes, as the file states",
        "get the file again",
    )


def _npy_header(file: PositionalFile, member: Member) -> tuple[np.dtype, bool, Shape, int]:
    """Dtype in the file's byte order, whether in Fortran order, shape, and the offset of the values in the member."""
    damaged = UserError(file.path, f"the member {member.name!a} has no valid .npy header", "get the file again")
    head = _bytes(file, member, min(12, member.size)).tobytes()
    if len(head) < 12 or not head.startswith(MAGIC) or head[6] not in LENGTHS or head[7]:
        raise damaged
    kind = LENGTHS[head[6]]
    (length,) = struct.unpack_from(kind, head, 8)
    start = 8 + struct.calcsize(kind) + length
    if length > HEADER_TEXT or start > member.size:
        raise damaged
    text = _bytes(file, member, start)[start - length :].tobytes()
    try:
        with warnings.catch_warnings(action="ignore"):  # Python warns of strange escapes in damaged texts
            node = ast.parse(text.decode("utf-8" if head[6] == 3 else "latin-1").strip(), mode="eval").body
            header = ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise damaged from error
    if not isinstance(node, ast.Dict) or len(node.keys) > 3 or header.keys() != {"descr", "fortran_order", "shape"}:
        raise damaged
    descr, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    if type(fortran) is not bool or not isinstance(shape, tuple) or not all(type(n) is int for n in shape):
        raise damaged
    if not isinstance(descr, str) or descr[:1] not in ("<", ">", "|", "=") or descr[1:] not in DTYPES:
        name = member.name.removesuffix(SUFFIX)
        raise UserError(
            file.path, f"{name} has the dtype {str(descr)[:60]!a}, which no weights have", "re-save the file without it"
        )
    return DTYPES[descr[1:]].newbyteorder(">" if descr[0] == ">" else "="), fortran, shape, start


# ------------------------------------------------------------------------------------------- writing


def write(
    path: str, tree: Mapping[str, Spec], arrays: Iterator[tuple[TreePath, np.ndarray]], metadata: Mapping[str, str]
) -> None:
    """Write arrays as stored members, in the order in which they come; see source.Writer."""
    for name, spec in tree.items():
        if spec.dtype.str[1:] not in DTYPES or spec.dtype != DTYPES[spec.dtype.str[1:]]:
            raise UserError(
                os.path.basename(path),
                f"{name} is {spec.dtype.name}, which .npz does not have",
                "choose another with `dtype`, or another container",
            )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        missing = set(tree)
        for keys, array in arrays:
            name = str(keys[0])
            spec = tree[name]
            header = _npy(spec)
            info = zipfile.ZipInfo(f"{name}{SUFFIX}")  # its date is always the same
            info.file_size = len(header) + spec.nbytes
            with file.open(info, "w", force_zip64=info.file_size > ZIP64_FROM) as member:
                member.write(header)
                member.write(memoryview(raw(array, spec)))
            missing.remove(name)
        if missing:
            raise ValueError(f"no values came for {sorted(missing)}")


def _npy(spec: Spec) -> bytes:
    """The .npy header of a C-ordered array, version 1.0; the values after it begin at a multiple of 64."""
    text = (
        f"{{'descr': {spec.dtype.str!r}, 'fortran_order': False, 'shape': {tuple(map(int, spec.shape))!r}, }}".encode(
            "latin-1"
        )
    )
    text += b" " * (-(len(MAGIC) + 4 + len(text) + 1) % 64) + b"\n"
    return MAGIC + b"\x01\x00" + struct.pack("<H", len(text)) + text
