"""What stands for the values that a pickle of PyTorch would make by calling functions. Nothing is called for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .pickle_names import NUMPY, REMEDY, TORCH_DTYPES
from .source import RANK, Marker


class Refused(ValueError):
    """A pickle holds what is not read: a clause that says so, and the remedy."""

    def __init__(self, what: str, remedy: str = REMEDY):
        super().__init__(what)
        self.what, self.remedy = what, remedy


@dataclass(frozen=True, eq=False)
class Storage:
    """A storage that a persistent id names, of `count` elements; a view of it (in the older form) has `length` from `start`."""

    key: str
    dtype: np.dtype
    count: int
    start: int
    length: int

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Description:
    """A tensor, before its bytes: offset and strides are in elements of `dtype`."""

    storage: Storage
    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(eq=False)
class Array:
    """A numpy array that lies in the pickle itself."""

    dtype: np.dtype | None = None
    shape: tuple[int, ...] = ()
    fortran: bool = False
    data: bytes = b""


@dataclass(eq=False)
class DType:
    """A numpy dtype: BUILD sets its byte order."""

    name: str
    order: str = "<"

    @property
    def numpy(self) -> np.dtype:
        """As numpy has it."""
        return np.dtype(self.order + self.name)


@dataclass(frozen=True, eq=False)
class Global:
    """A name of the closed list, as the pickle mentions it."""

    name: str


class Ordered(dict):
    """A collections.OrderedDict: unlike a dict it may be given attributes, which are ignored."""


def build(target: Any, state: Any) -> None:
    """Set the attributes of a value: those of numpy's say its order and its bytes, others are ignored."""
    if isinstance(target, DType):
        if not (isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "=", "|")) or any(state[2:5]):
            raise Refused("has a numpy dtype that is no plain number's")
        target.order = ">" if state[1] == ">" else "<"
    elif isinstance(target, Array):
        match state:
            case (int(), shape, DType() as dtype, bool(fortran), bytes(data)) if (
                _integers(shape) and min(shape, default=0) >= 0 and target.dtype is None
            ):
                if int(np.prod(shape, dtype=object)) * dtype.numpy.itemsize != len(data):
                    raise Refused(f"has a numpy array {list(shape)} of {len(data)} bytes", "get the file again")
                target.shape, target.dtype, target.fortran, target.data = shape, dtype.numpy, fortran, data
            case _:
                raise Refused("has a numpy array that is none of plain numbers")
    elif not isinstance(target, (Ordered, Description, Marker)):
        raise Refused("sets attributes of what has none")


def put(target: Any, items: list[Any]) -> None:
    """Set items [key, value, key, value, ...] of a dict; what a Marker stands for is not kept."""
    if isinstance(target, Marker):
        return
    if not isinstance(target, dict) or len(items) % 2:
        raise Refused("sets items of what is no dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not (_plain(key) or (isinstance(key, tuple) and len(key) <= RANK and all(map(_plain, key)))):
            raise Refused(f"has a dictionary key of type {type(key).__name__}")
        if key in target:
            raise Refused(f"has the key {str(key)[:200]!a} twice")
        target[key] = value


def tensor(arguments: tuple, dtype: np.dtype | None = None) -> Description:
    """_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]); v3 has a dtype before that."""
    match arguments:
        case (Storage() as storage, int(offset), shape, strides, bool(), _, *rest) if (
            _integers(shape) and _integers(strides) and _integers((offset,))
        ):
            pass
        case _:
            raise Refused("describes a tensor in a way that PyTorch does not")
    if len(shape) != len(strides):
        raise Refused(f"describes a tensor {list(shape)} with {len(strides)} strides")
    metadata = rest[-1] if rest else None
    if metadata:
        words = " and ".join(str(k) for k in metadata) if isinstance(metadata, dict) else "unknown"
        raise Refused(
            f"has a tensor that is a view with the metadata {words[:100]!a}",
            "save a clone() of it with resolve_conj() and resolve_neg()",
        )
    return Description(storage, dtype or storage.dtype, offset, shape, strides)


def typed_tensor(arguments: tuple) -> Description:
    """_rebuild_tensor_v3: the dtype is an argument, the storage bytes."""
    match arguments:
        case (Storage() as storage, _, _, _, _, _, Marker() as mark, *rest) if storage.dtype.itemsize == 1:
            known = TORCH_DTYPES.get(mark.kind.removeprefix("torch."))
        case _:
            raise Refused("describes a tensor in a way that PyTorch does not")
    if known is None:
        raise Refused(
            f"has a tensor of {mark.kind}, which no network here has", "save it in float32, float16 or bfloat16"
        )
    return tensor((*arguments[:6], *rest), np.dtype(known))


def parameter(arguments: tuple) -> Description:
    """_rebuild_parameter(data, requires_grad, hooks[, state]): the tensor in it."""
    if not arguments or not isinstance(arguments[0], Description):
        raise Refused("has a parameter that is no tensor")
    return arguments[0]


def ordered(arguments: tuple) -> Ordered:
    """OrderedDict(), or OrderedDict([[key, value], ...]) as Python 2 wrote it."""
    made = Ordered()
    if arguments:
        match arguments:
            case (list(pairs),) if all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
                put(made, [item for pair in pairs for item in pair])
            case _:
                raise Refused("has an OrderedDict of unknown form")
    return made


def size(arguments: tuple) -> tuple[int, ...]:
    """torch.Size((n, ...))."""
    if len(arguments) != 1 or not _integers(arguments[0]):
        raise Refused("has a torch.Size that is no shape")
    return arguments[0]


def encode(arguments: tuple) -> bytes:
    """_codecs.encode(text, "latin1"): bytes, in protocol 2."""
    match arguments:
        case (str(text), "latin1") if text.isascii() or max(text) <= "\xff":
            return text.encode("latin1")
    raise Refused("encodes text in a way that bytes are not")


def number(arguments: tuple) -> DType:
    """numpy.dtype("f8", False, True)."""
    match arguments:
        case (str(name), *_) if re.fullmatch(r"[iu][1248]|f[248]|b1", name):
            return DType(name)
    raise Refused("has a numpy dtype that is no plain number's")


def array(arguments: tuple) -> Array:
    """numpy's _reconstruct(ndarray, (0,), b"b"), whose values BUILD sets."""
    match arguments:
        case (Global(name="numpy.ndarray"), (0,), bytes()):
            return Array()
    raise Refused("has a numpy array of a class that is not numpy's own")


def scalar(arguments: tuple) -> Any:
    """numpy's scalar(dtype, bytes)."""
    match arguments:
        case (DType() as dtype, bytes(data)) if len(data) == dtype.numpy.itemsize:
            return np.frombuffer(data, dtype.numpy)[0].item()
    raise Refused("has a numpy scalar that is no plain number")


def _integers(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= RANK and all(type(n) is int and abs(n) < 1 << 63 for n in value)


def _plain(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool, bytes)


# What may be called, by its name.
CALLS: dict[str, Callable[[tuple], Any]] = {
    "torch._utils._rebuild_tensor_v2": tensor,
    "torch._utils._rebuild_tensor_v3": typed_tensor,
    "torch._utils._rebuild_parameter": parameter,
    "torch._utils._rebuild_parameter_with_state": parameter,
    "collections.OrderedDict": ordered,
    "torch.Size": size,
    "_codecs.encode": encode,
    **{
        full: {"scalar": scalar, "_reconstruct": array, "dtype": number}[name]
        for full, name in NUMPY.items()
        if name != "ndarray"
    },
}
