"""Flax's msgpack files (flax.serialization): nested dictionaries, with arrays as extension values.

Opening a file reads its structure and skips the bytes of arrays, which are read later, by position. Formats: msgpack's
specification, and flax/serialization.py for the extensions and for large arrays, which it splits into chunks.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.errors import UserError

from . import limits
from .positional import PositionalFile
from .source import Marker, Shape, Source, Spec, Tensor, TreePath, check_shape, raw

MAX_LEVELS = 2 * limits.NESTING  # each part of a parameter's name is a level of its own
ARRAY, SCALAR = 1, 3  # extension codes; 2 is a complex number, which no weights are
CHUNKED, CHUNK = "__msgpack_chunked_array__", 1 << 30
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
NAMES = {
    str(np.dtype(d)): np.dtype(d) for d in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.bool_, *INTEGERS)
}
REMEDY = "re-save it with flax.serialization.to_bytes"


@dataclass(frozen=True)
class Piece:
    """An array's bytes in the file, or those of one of its chunks; `swapped` where they are big-endian."""

    offset: int
    dtype: np.dtype
    shape: Shape
    swapped: bool

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def open_file(path: str) -> Source:
    """Open a file of flax.serialization."""
    file = PositionalFile(path)
    try:
        scan = _Scan(file)
        value = scan.value(0)
        if scan.at != file.size:
            raise scan.refused(f"has {file.size - scan.at} bytes after its end")
        if not isinstance(value, dict):
            raise scan.refused("does not hold a dictionary")
        tree = _Tree(file)
        return Source(path, "msgpack", tree.of(value, ()), skipped=tree.skipped, size=file.size, close=file.close)
    except BaseException:
        file.close()
        raise


class _Scan:
    """Reads a file's values one after the other: arrays as Pieces, other byte strings as Markers."""

    def __init__(self, file: PositionalFile):
        self.file, self.at, self.end, self.nodes = file, 0, file.size, 0
        self.window, self.start = b"", 0
        self.texts = 0  # bytes of all strings so far

    def refused(self, what: str, remedy: str = REMEDY) -> UserError:
        return UserError(self.file.path, f"the msgpack data {what} (at byte {self.at})", remedy)

    def take(self, size: int) -> bytes:
        if size > self.end - self.at:
            raise self.refused("is cut off", "get the file again")
        if not self.start <= self.at <= self.at + size <= self.start + len(self.window):
            self.start, self.window = (
                self.at,
                self.file.read(self.at, min(max(size, 1 << 12), self.file.size - self.at)),
            )
        at = self.at - self.start
        self.at += size
        return self.window[at : at + size]

    def skip(self, size: int) -> None:
        if size > self.end - self.at:
            raise self.refused("is cut off", "get the file again")
        self.at += size

    def number(self, form: str) -> Any:
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        self.nodes += 1
        if depth > MAX_LEVELS or self.nodes > limits.OPCODES:
            raise self.refused(
                f"is nested deeper than {MAX_LEVELS} levels, or has more than {limits.OPCODES} values",
                "save the parameters alone",
            )
        code = self.take(1)[0]
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 256
        if code < 0x90:
            return self.entries(code & 15, depth)
        if code < 0xA0:
            return self.items(code & 15, depth)
        if code < 0xC0:
            return self.text(code & 31)
        if code in CONSTANTS:
            return CONSTANTS[code]
        if code in NUMBERS:
            return self.number(NUMBERS[code])
        if code in FIXED:
            return self.extension(FIXED[code])
        if code not in SIZED:
            raise self.refused(f"has the byte {code:#04x}, with which no value begins")
        kind, form = SIZED[code]
        size = self.number(form)
        match kind:
            case "bin":
                self.skip(size)
                return Marker(f"{size} bytes")
            case "text":
                return self.text(size)
            case "extension":
                return self.extension(size)
            case "list":
                return self.items(size, depth)
        return self.entries(size, depth)

    def text(self, size: int) -> str:
        self.texts += size
        if self.texts > limits.HEADER:
            raise self.refused(f"has strings of more than {limits.HEADER} bytes")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise self.refused("has a string that is not UTF-8") from error

    def items(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(self.counted(count))]

    def entries(self, count: int, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for _ in range(self.counted(count)):
            key = self.value(MAX_LEVELS)
            if not isinstance(key, str):
                raise self.refused(f"has a key of type {type(key).__name__}, where Flax writes strings")
            if key in made:
                raise self.refused(f"has the key {key[:200]!a} twice")
            made[key] = self.value(depth + 1)
        return made

    def counted(self, count: int) -> int:
        if count > self.end - self.at:  # each item takes a byte at least
            raise self.refused("is cut off", "get the file again")
        return count

    def extension(self, size: int) -> Piece:
        code = self.number("b")
        if code not in (ARRAY, SCALAR):
            kind = {2: "a complex number", -1: "a timestamp"}.get(code, f"a value of extension type {code}")
            raise self.refused(f"holds {kind}, which no weights are")
        outer, self.end = self.end, self.at + size
        if self.end > outer:
            raise self.refused("is cut off", "get the file again")
        if self.take(1) != b"\x93":
            raise self.refused("has an array that is not [shape, dtype, bytes]")
        shape, name = self.value(MAX_LEVELS - 1), self.value(MAX_LEVELS)
        if (
            not isinstance(shape, list)
            or not all(type(n) is int and n >= 0 for n in shape)
            or not isinstance(name, str)
        ):
            raise self.refused("has an array whose shape or dtype is not valid")
        swapped = name.startswith(">")
        dtype = np.dtype(name[1:]) if re.fullmatch(r"[<>|=]([iu][1248]|f[248]|b1)", name) else NAMES.get(name)
        if dtype is None:
            raise self.refused(f"has an array of dtype {name[:50]!a}, which weights here do not have")
        code = self.take(1)[0]
        if SIZED.get(code, ("", ""))[0] != "bin":
            raise self.refused("has an array without its bytes")
        length = self.number(SIZED[code][1])
        piece = Piece(self.at, dtype, tuple(shape), swapped)
        check_shape("an array", dtype, piece.shape, self.file.path)
        if piece.nbytes != length or self.at + length != self.end:
            raise self.refused(f"has an array {list(shape)} of {dtype} in {length} bytes", "get the file again")
        self.skip(length)
        self.end = outer
        return piece


CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
NUMBERS = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}  # codes of extensions of a fixed number of bytes
SIZED = {  # code: (what it begins, the format of its length)
    0xC4: ("bin", "B"), 0xC5: ("bin", "H"), 0xC6: ("bin", "I"),
    0xC7: ("extension", "B"), 0xC8: ("extension", "H"), 0xC9: ("extension", "I"),
    0xD9: ("text", "B"), 0xDA: ("text", "H"), 0xDB: ("text", "I"),
    0xDC: ("list", "H"), 0xDD: ("list", "I"), 0xDE: ("map", "H"), 0xDF: ("map", "I"),
}  # fmt: skip


class _Tree:
    """Turns scanned values into the tree of a Source, Pieces into Tensors."""

    def __init__(self, file: PositionalFile):
        self.file, self.tensors = file, 0
        self.skipped: list[str] = []

    def of(self, value: Any, keys: tuple[str, ...]) -> Any:
        name = "/".join(keys)
        if isinstance(value, Marker):
            self.skipped.append(f"{name} ({value.kind})")
        if isinstance(value, Piece):
            return self.tensor(name, value.shape, [value])
        if isinstance(value, list):
            return [self.of(each, (*keys, str(i))) for i, each in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if CHUNKED in value:
            return self.chunked(name, value)
        return {key: self.of(each, (*keys, key)) for key, each in value.items()}

    def chunked(self, name: str, value: dict[str, Any]) -> Tensor:
        """One array from {"shape": {"0": n, ...}, "chunks": {"0": flat array, ...}}."""
        shape, pieces = (self.numbered(name, value.get(key)) for key in ("shape", "chunks"))
        valid = (
            value.keys() == {CHUNKED, "shape", "chunks"}
            and value[CHUNKED] is True
            and all(type(n) is int and n >= 0 for n in shape)
        )
        if (
            not valid
            or not pieces
            or not all(isinstance(p, Piece) and len(p.shape) == 1 and p.dtype == pieces[0].dtype for p in pieces)
        ):
            raise self.refused(name)
        check_shape(name, pieces[0].dtype, tuple(shape), self.file.path)
        if sum(p.shape[0] for p in pieces) != int(np.prod(shape, dtype=object)):
            raise self.refused(name)
        return self.tensor(name, tuple(shape), pieces)

    def numbered(self, name: str, value: Any) -> list[Any]:
        """A list from {"0": value, "1": value, ...}."""
        if not isinstance(value, dict) or value.keys() != {str(i) for i in range(len(value))}:
            raise self.refused(name)
        return [value[str(i)] for i in range(len(value))]

    def refused(self, name: str) -> UserError:
        return UserError(self.file.path, f"the pieces of {name[:200]!a} do not make one array", REMEDY)

    def tensor(self, name: str, shape: Shape, pieces: list[Piece]) -> Tensor:
        self.tensors += 1
        if self.tensors > limits.TENSORS:
            raise UserError(self.file.path, f"has more than {limits.TENSORS} arrays", "save the parameters alone")
        return Tensor(name, pieces[0].dtype, shape, lambda: _values(self.file, name, shape, pieces))


def _values(file: PositionalFile, name: str, shape: Shape, pieces: list[Piece]) -> np.ndarray:
    """An array [shape] from its pieces, in C order and native byte order."""
    content = np.empty(sum(p.nbytes for p in pieces), np.uint8)
    at = 0
    for piece in pieces:
        data = content[at : at + piece.nbytes]
        file.into(piece.offset, data)
        if piece.swapped:
            data[:] = data.reshape(-1, piece.dtype.itemsize)[:, ::-1].reshape(-1)
        at += piece.nbytes
    if pieces[0].dtype == np.bool_ and content.size and content.max() > 1:
        raise UserError(file.path, f"the array {name[:200]!a} of booleans has the byte {content.max()}", REMEDY)
    return content.view(pieces[0].dtype).reshape(shape)


# ------------------------------------------------------------------------------------------ writing


def write(
    path: str, tree: Mapping[Any, Any], arrays: Iterator[tuple[TreePath, np.ndarray]], metadata: Mapping[str, str]
) -> None:
    """Write a nested tree that flax.serialization.msgpack_restore reads; see source.Writer."""
    del metadata
    plan = FileLayout()
    plan.value(tree, ())
    with open(path, "wb") as file:
        for offset, data in plan.fixed:
            file.seek(offset)
            file.write(data)
        for keys, array in arrays:
            spec, slots = plan.slots.pop(keys)
            flat, at = raw(array, spec), 0
            for offset, size in slots:
                file.seek(offset)
                file.write(memoryview(flat[at : at + size]))
                at += size
            del array, flat  # before the next is made
        file.truncate(plan.size)
    if plan.slots:
        raise ValueError(f"no values came for {', '.join(map(str, plan.slots))}")


class FileLayout:
    """The layout of a file: `fixed` [(offset, bytes)], and by Spec the `slots` [(offset, size)] of its values."""

    def __init__(self) -> None:
        self.size = 0
        self.fixed: list[tuple[int, bytearray]] = []
        self.slots: dict[TreePath, tuple[Spec, list[tuple[int, int]]]] = {}

    def put(self, data: bytes) -> None:
        if not self.fixed or self.fixed[-1][0] + len(self.fixed[-1][1]) != self.size:
            self.fixed.append((self.size, bytearray()))
        self.fixed[-1][1].extend(data)
        self.size += len(data)

    def value(self, value: Any, keys: TreePath) -> None:
        """Add a value and all that it contains."""
        if isinstance(value, Spec):
            self.array(value, keys)
        elif isinstance(value, Mapping):
            self.put(_head(len(value), 0x80, 16, (0, 0xDE, 0xDF)))
            for key, each in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"{keys}: the key {key!r} is not a string")
                self.put(_scalar(key, keys))
                self.value(each, (*keys, key))
        elif isinstance(value, (list, tuple)):
            self.put(_head(len(value), 0x90, 16, (0, 0xDC, 0xDD)))
            for i, each in enumerate(value):
                self.value(each, (*keys, i))
        else:
            self.put(_scalar(value, keys))

    def array(self, spec: Spec, keys: TreePath) -> None:
        """Add an array: an extension value [shape, dtype, bytes], or where it is larger than 2^30 bytes flat chunks."""
        if str(spec.dtype) not in NAMES:
            raise ValueError(f"{keys}: a msgpack file has no {spec.dtype}")
        slots: list[tuple[int, int]] = []
        if spec.nbytes <= CHUNK:
            slots.append(self.piece(spec))
        else:
            step = CHUNK // spec.dtype.itemsize
            count = spec.nbytes // spec.dtype.itemsize
            self.put(b"\x83" + _scalar(CHUNKED, keys) + b"\xc3" + _scalar("shape", keys))
            self.value({str(i): n for i, n in enumerate(spec.shape)}, keys)
            starts = range(0, count, step)
            self.put(_scalar("chunks", keys) + _head(len(starts), 0x80, 16, (0, 0xDE, 0xDF)))
            for i, start in enumerate(starts):
                self.put(_scalar(str(i), keys))
                slots.append(self.piece(Spec(spec.dtype, (min(step, count - start),))))
        self.slots[keys] = spec, slots

    def piece(self, spec: Spec) -> tuple[int, int]:
        """Add one extension value; the offset and the size of its array's bytes."""
        shape = _head(len(spec.shape), 0x90, 16, (0, 0xDC, 0xDD)) + b"".join(_scalar(n, ()) for n in spec.shape)
        head = b"\x93" + shape + _scalar(str(spec.dtype), ()) + _head(spec.nbytes, 0, 0, (0xC4, 0xC5, 0xC6))
        size = len(head) + spec.nbytes
        fixed = [code for code, length in FIXED.items() if length == size]
        self.put((bytes(fixed) or _head(size, 0, 0, (0xC7, 0xC8, 0xC9))) + bytes([ARRAY]) + head)
        slot = self.size, spec.nbytes
        self.size += spec.nbytes
        return slot


def _head(count: int, short: int, limit: int, codes: tuple[int, int, int]) -> bytes:
    """The first bytes of a value of `count` parts: one byte for few, else a code and the count in 1, 2 or 4 bytes."""
    if count < limit:
        return bytes([short + count])
    for code, form, top in zip(codes, "BHI", (1 << 8, 1 << 16, 1 << 32), strict=True):
        if code and count < top:
            return struct.pack(">B" + form, code, count)
    raise ValueError(f"{count} is more than a msgpack file can hold in one value")


def _scalar(value: Any, keys: TreePath) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", True: b"\xc3", False: b"\xc2"}[value]
    if isinstance(value, str):
        return _head(len(value.encode()), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + value.encode()
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        if -32 <= value < 128:
            return struct.pack("B" if value >= 0 else "b", value)
        for code, bits in zip(
            (0xCC, 0xCD, 0xCE, 0xCF) if value >= 0 else (0xD0, 0xD1, 0xD2, 0xD3), (8, 16, 32, 64), strict=True
        ):
            if value < 1 << bits and -value <= 1 << bits - 1:  # the shortest form, as msgpack itself writes it
                return struct.pack(">B" + NUMBERS[code], code, value)
    raise ValueError(f"{keys}: a msgpack file cannot hold {value!r}")
