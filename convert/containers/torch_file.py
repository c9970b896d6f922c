"""PyTorch's files (.pt, .pth, .bin), zip archives or the older format, read without PyTorch.

All descriptions of tensors are checked when a file is opened; bytes are read by position after that. The tree is nested
as it was saved; the numbers of an optimizer's parameters stay ints.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vit_jax.errors import UserError

from . import limits, pickles
from .pickle_calls import Array, Description, DType, Global, Storage
from .pickle_names import REMEDY
from .pickles import Pickle
from .positional import CHUNK, PositionalFile
from .source import Marker, Shape, Source, Tensor, check_shape
from .torch_writer import write
from .zips import Member, zip_members

FEW = 3  # values that a message lists
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # begin a file of the older format
OTHER_ARCHIVES = (  # a pattern of members that such an archive has, what it is and the remedy
    (
        r"[^/]+/(constants\.pkl|code/.*)",
        "a TorchScript archive; save model.state_dict() of the module before torch.jit",
    ),
    (
        r"(.*/)?(archive_format|serialized_exported_program\.json|models/.*\.json)",
        "a torch.export archive; save the model's state_dict() instead",
    ),
    (r".*\.npy", "a numpy archive; name it .npz"),
)

__all__ = ["open_file", "write"]


@dataclass(frozen=True)
class Place:
    """Where a storage's bytes are in the file; the older format has no CRC."""

    offset: int
    size: int
    crc: int | None


def open_file(path: str) -> Source:
    """Open a file of torch.save."""
    file = PositionalFile(path)
    try:
        head = file.read(0, min(file.size, 265))
        if not head:
            raise UserError(path, "is empty", "get the file again")
        if head.startswith(b"PK"):
            return _zip(file)
        if head[257:262] == b"ustar":
            raise UserError(
                path, "is a tar archive, the format before PyTorch 0.1.10", "load and save it with a newer PyTorch"
            )
        if head.startswith(b"\x80"):
            return _legacy(file)
        raise UserError(path, "was not written by torch.save", "give the right file")
    except BaseException:
        file.close()
        raise


def _zip(file: PositionalFile) -> Source:
    found = zip_members(file)
    for pattern, what in OTHER_ARCHIVES:
        if any(re.fullmatch(pattern, name) for name in found):
            raise UserError(file.path, f"is {what}")
    if len(tops := sorted({name.partition("/")[0] for name in found})) > 1:
        raise UserError(file.path, f"has the folders {tops[0]!a} and {tops[1]!a} where PyTorch writes one", REMEDY)
    inner = {name.partition("/")[2]: member for name, member in found.items()}
    if absent := {"data.pkl", "version"} - inner.keys():
        raise UserError(
            file.path,
            f"is a zip file without {' and '.join(sorted(absent))}, so torch.save did not write it",
            "give the right file",
        )
    for member in inner.values():
        if member.method or member.size != member.compressed:
            raise UserError(file.path, f"the member {member.name!a} is compressed, which PyTorch never does", REMEDY)
    order = _content(file, inner["byteorder"]) if "byteorder" in inner else b"little"
    if order not in (b"little", b"big"):
        raise UserError(file.path, f"its byteorder is {order[:20]!a}, which is neither little nor big", REMEDY)
    data = _content(file, inner["data.pkl"])
    pickle = pickles.read_pickle(data, file.path)
    if pickle.end != len(data):
        raise UserError(file.path, f"has {len(data) - pickle.end} bytes after its pickle", REMEDY)
    places = {
        name.removeprefix("data/"): Place(m.offset, m.size, m.crc)
        for name, m in inner.items()
        if name.startswith("data/")
    }
    return _source(file, pickle, places, order == b"big")


def _content(file: PositionalFile, member: Member) -> bytes:
    """The whole content of a small member."""
    if member.size > limits.HEADER:
        raise UserError(
            file.path, f"the member {member.name!a} takes {member.size} bytes, more than {limits.HEADER}", REMEDY
        )
    data = file.checked(member.offset, member.size, member.crc, 0, member.size)
    if data is None:
        raise _damage(file, member.name)
    return data.tobytes()


def _damage(file: PositionalFile, what: str) -> UserError:
    hint = "get the file again (or re-save it, if it was saved under torch.serialization.set_crc32_options(False))"
    return UserError(file.path, f"the bytes of {what} do not have the checksum that the file notes", hint)


def _legacy(file: PositionalFile) -> Source:
    """The older format: pickled magic, protocol, system, value, storage keys; then each storage's count and bytes."""
    data, at = file.read(0, min(file.size, limits.HEADER)), 0
    parts = []
    for _ in range(5):
        parts.append(pickles.read_pickle(data, file.path, at))
        at = parts[-1].end
        if type(parts[0].value) is not int or parts[0].value != MAGIC:
            raise UserError(file.path, "is a pickle that torch.save did not write", REMEDY)
    protocol, system, keys = parts[1].value, parts[2].value, parts[4].value
    if (
        protocol != PROTOCOL
        or not isinstance(system, dict)
        or not isinstance(keys, list)
        or not all(isinstance(key, str) for key in keys)
    ):
        raise UserError(file.path, "is damaged, or in an unknown variant of PyTorch's older format", REMEDY)
    places: dict[str, Place] = {}
    for key in keys:
        storage = parts[3].storages.get(key)
        count = struct.unpack("<q", file.read(at, 8))[0]
        if storage is None or key in places or count != storage.count:
            raise UserError(file.path, f"its list of storages is wrong at {key[:100]!a}", REMEDY)
        places[key] = Place(at + 8, storage.nbytes, None)
        at += 8 + storage.nbytes
    if at != file.size:
        raise UserError(file.path, f"ends at byte {file.size} instead of {at}", "get the file again")
    return _source(file, parts[3], places, big=False)  # the older format is little-endian on every machine


def _source(file: PositionalFile, pickle: Pickle, places: dict[str, Place], big: bool) -> Source:
    if not isinstance(pickle.value, dict):
        raise UserError(file.path, f"holds a {_kind(pickle.value)} instead of a dictionary of tensors", REMEDY)
    for key, storage in pickle.storages.items():
        if key not in places:
            raise UserError(file.path, f"the storage {key[:100]!a} is missing", "get the file again")
        if places[key].size != storage.nbytes:
            raise UserError(
                file.path,
                f"the storage {key[:100]!a} has {places[key].size} bytes instead of {storage.nbytes}",
                "get the file again",
            )
    tree = _Tree(file, _Storages(file, places, big))
    value = tree.of(pickle.value, (), 1)
    if tree.skipped and not tree.tensors:
        raise UserError(
            file.path,
            f"holds no tensors but values of classes whose code is not run here: {', '.join(tree.skipped[:FEW])}",
            "load it with that code and save model.state_dict() alone",
        )
    source = Source(file.path, "torch", value, skipped=tree.skipped, size=file.size, close=file.close)
    source.tied = [tuple(names) for names in tree.users.values() if len(names) > 1]
    return source


class _Tree:
    """Turns a pickle's value into the tree of a Source, descriptions into Tensors."""

    def __init__(self, file: PositionalFile, storages: _Storages):
        self.file, self.storages = file, storages
        self.nodes = self.tensors = 0
        self.skipped: list[str] = []
        self.users: dict[str, list[str]] = {}  # {storage: names of the tensors in it}

    def of(self, value: Any, keys: tuple, depth: int) -> Any:
        self.nodes += 1  # a value that is in the pickle once may be in the tree many times
        if depth > limits.NESTING + 1 or self.nodes > limits.OPCODES:
            raise UserError(
                self.file.path,
                f"is nested deeper than {limits.NESTING} levels, or has more than {limits.OPCODES} values",
                "save model.state_dict() alone",
            )
        if isinstance(value, dict):
            return {key: self.of(each, (*keys, key), depth + 1) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(each, (*keys, i), depth + 1) for i, each in enumerate(value))
        if value is None or isinstance(value, (str, int, float, bytes)):
            return value
        name = ".".join(map(str, keys))
        if isinstance(value, Description) or (isinstance(value, Array) and not value.foreign):
            self.tensors += 1
            if self.tensors > limits.TENSORS:
                raise UserError(self.file.path, f"has more than {limits.TENSORS} tensors", REMEDY)
            return self.described(name, value) if isinstance(value, Description) else self.inline(name, value)
        marker = Marker(_kind(value))
        self.skipped.append(f"{name} ({marker.kind})")
        return marker

    def described(self, name: str, d: Description) -> Tensor:
        _check(name, d, self.file)
        self.users.setdefault(d.storage.key, []).append(name)
        return Tensor(name, d.dtype, d.shape, lambda: self.storages.read(name, d))

    def inline(self, name: str, array: Array) -> Tensor:
        if array.dtype is None:
            raise UserError(self.file.path, f"the numpy array {name[:100]!a} has no values", REMEDY)
        check_shape(name, array.dtype, array.shape, self.file.path)
        order: Any = "F" if array.fortran else "C"
        values = np.frombuffer(array.data, array.dtype).reshape(array.shape, order=order)
        return Tensor(
            name,
            array.dtype.newbyteorder("="),
            array.shape,
            lambda: np.array(values, values.dtype.newbyteorder("="), order="C"),
        )


def _kind(value: Any) -> str:
    """A readable name for the class of a value in a pickle."""
    if isinstance(value, (Marker, Global)):
        name = value.kind if isinstance(value, Marker) else value.name
        return name.removeprefix("builtins.").removeprefix("__builtin__.")
    names = {Description: "tensor", Array: "numpy.ndarray", DType: "numpy.dtype", Storage: "torch storage"}
    return names.get(type(value), type(value).__name__)


def _check(name: str, d: Description, file: PositionalFile) -> None:
    """Raise UserError unless a tensor lies in its storage, does not overlap itself, and is not larger than the file.

    Strides of 0 are the exception to the overlap: expand() makes them.
    """
    check_shape(name, d.dtype, d.shape, file.path)
    axes = sorted((stride, size) for size, stride in zip(d.shape, d.strides, strict=True) if size > 1)
    count = int(np.prod(d.shape, dtype=object))
    reach = 1 + sum(stride * (size - 1) for stride, size in axes)
    width = d.dtype.itemsize
    what = f"{file.path}: the tensor {name[:200]!a} {list(d.shape)} with strides {list(d.strides)} at {d.offset}"
    if (
        d.offset < 0
        or any(stride < 0 for stride in d.strides)
        or (count and (d.offset + reach) * width > d.storage.length * d.storage.dtype.itemsize)
    ):
        raise UserError(f"{what} lies outside its storage of {d.storage.length} values", remedy="get the file again")
    covered = 1
    for stride, size in axes:
        if 0 < stride < covered:
            raise UserError(f"{what} overlaps itself, which PyTorch never saves", remedy=REMEDY)
        covered += stride * (size - 1)
    if count * width > file.size:
        raise UserError(f"{what} would take {count * width} bytes, more than its file", remedy="save a clone() of it")


class _Storages:
    """Reads tensors from a file's storages."""

    def __init__(self, file: PositionalFile, places: Mapping[str, Place], big: bool):
        self.file, self.places, self.big = file, places, big
        self.checked: set[str] = set()  # storages whose CRC was compared

    def read(self, name: str, d: Description) -> np.ndarray:
        """The values of a tensor, a new array in C order and native byte order."""
        count, width = int(np.prod(d.shape, dtype=object)), d.dtype.itemsize
        if count == 0:
            return np.empty(d.shape, d.dtype)
        reach = 1 + sum(stride * (size - 1) for stride, size in zip(d.strides, d.shape, strict=True))
        if reach * width > 2 * count * width + CHUNK:  # values far apart: do not read all bytes between them
            axis = max(range(len(d.shape)), key=lambda i: d.strides[i] * (d.shape[i] > 1))
            rest = [tuple(np.delete(numbers, axis).tolist()) for numbers in (d.shape, d.strides)]
            rows = [
                replace(d, offset=d.offset + i * d.strides[axis], shape=rest[0], strides=rest[1])
                for i in range(d.shape[axis])
            ]
            return np.stack([self.read(name, row) for row in rows], axis)
        start = d.storage.start * d.storage.dtype.itemsize + d.offset * width
        data = self.part(name, d.storage.key, start, start + reach * width)
        if self.big:
            data = np.ascontiguousarray(data.reshape(-1, width)[:, ::-1]).reshape(-1)
        if d.dtype == np.bool_ and data.max() > 1:
            raise UserError(self.file.path, f"the tensor {name[:200]!a} of booleans has the byte {data.max()}", REMEDY)
        flat = data.view(d.dtype)
        if reach == count and _contiguous(d.shape, d.strides):
            return flat.reshape(d.shape)
        # The stride of an axis of length one may be any number.
        steps = [stride * width * (size > 1) for size, stride in zip(d.shape, d.strides, strict=True)]
        return np.array(np.lib.stride_tricks.as_strided(flat, d.shape, steps), order="C")

    def part(self, name: str, key: str, start: int, stop: int) -> np.ndarray:
        """Bytes `start` to `stop` of a storage; its CRC, where there is one, is compared once."""
        place = self.places[key]
        if place.crc is None or key in self.checked:
            return self.file.array(place.offset + start, stop - start)
        data = self.file.checked(place.offset, place.size, place.crc, start, stop)
        if data is None:
            raise _damage(self.file, name)
        self.checked.add(key)
        return data


def _contiguous(shape: Shape, strides: tuple[int, ...]) -> bool:
    """Whether a tensor's values follow each other in C order."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
