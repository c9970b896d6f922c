"""Stand-ins for the values that a pickle of PyTorch would make by calling functions: nothing is called."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import limits
from .pickle_names import NUMPY, REMEDY, TORCH_DTYPES
from .source import Marker


class Refused(ValueError):
    """A pickle holds what this reader refuses: `what` is a clause that says it, `remedy` what to do."""

    def __init__(self, what: str, remedy: str = REMEDY):
        super().__init__(what)
        self.what, self.remedy = what, remedy


@dataclass(frozen=True, eq=False)
class Storage:
    """A storage of `count` elements, named by a persistent id.

    In PyTorch's older format an id may name a view of a storage: `length` elements from `start`.
    """

    key: str
    dtype: np.dtype
    count: int
    start: int
    length: int

    @property
    def nbytes(self) -> int:
        """Bytes of all `count` elements."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Description:
    """A tensor before its bytes are read; `offset` and `strides` count elements of `dtype`."""

    storage: Storage
    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(eq=False)
class Array:
    """A numpy array whose bytes are in the pickle itself; BUILD fills it in."""

    dtype: np.dtype | None = None
    shape: tuple[int, ...] = ()
    fortran: bool = False
    data: bytes = b""
    foreign: bool = False  # an array of objects or texts, of which nothing is kept


@dataclass(eq=False)
class DType:
    """A numpy dtype; BUILD sets its byte order."""

    name: str
    order: str = "<"

    @property
    def numpy(self) -> np.dtype:
        """The dtype as numpy's own class."""
        return np.dtype(self.order + self.name)


@dataclass(frozen=True, eq=False)
class Global:
    """A name that a pickle may mention (pickle_names.KNOWN)."""

    name: str


class Ordered(dict):
    """A collections.OrderedDict: unlike a plain dict it may get attributes, which are ignored."""


def build(target: Any, state: Any) -> None:
    """Set a value's attributes: byte order of a DType, shape and bytes of an Array; others are ignored."""
    if isinstance(target, DType):
        if not (isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "=", "|")) or any(state[2:5]):
            raise Refused("has a numpy dtype that is no plain number's")
        target.order = ">" if state[1] == ">" else "<"
    elif isinstance(target, Array):
        match state:
            case (int(), _, Marker(), bool(), _):
                target.foreign = True
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
    """Set items of a dict, as a pickle does: items [key, value, key, value, ...]."""
    if isinstance(target, Marker):
        return
    if not isinstance(target, dict) or len(items) % 2:
        raise Refused("sets items of what is no dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, (Marker, Global)):
            name = key.kind if isinstance(key, Marker) else key.name
            key = next(each for n in itertools.count() if (each := f"{name}[{n}]") not in target)
        if not (_plain(key) or (isinstance(key, tuple) and len(key) <= limits.RANK and all(map(_plain, key)))):
            raise Refused(f"has a dictionary key of type {type(key).__name__}")
        if key in target:
            raise Refused(f"has the key {str(key)[:200]!a} twice")
        target[key] = value


def tensor(arguments: tuple, dtype: np.dtype | None = None) -> Description:
    """_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata])."""
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


def _old_tensor(arguments: tuple) -> Description:
    """_rebuild_tensor(storage, offset, size, stride), of PyTorch before 0.4."""
    if len(arguments) != 4:
        raise Refused("describes a tensor in a way that PyTorch does not")
    return tensor((*arguments, False, None))


def _typed_tensor(arguments: tuple) -> Description:
    """_rebuild_tensor_v3: as v2 with a dtype before the metadata, of a storage that counts bytes."""
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


def _parameter(arguments: tuple) -> Description:
    """_rebuild_parameter(data, requires_grad, hooks[, state]): the tensor `data`."""
    if not arguments or not isinstance(arguments[0], Description):
        raise Refused("has a parameter that is no tensor")
    return arguments[0]


def _ordered_dict(arguments: tuple) -> Ordered:
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


def number(arguments: tuple) -> DType | Marker:
    """numpy.dtype("f8", False, True); a Marker for that of objects, texts and dates."""
    match arguments:
        case (str(name), *_) if re.fullmatch(r"[iu][1248]|f[248]|b1", name):
            return DType(name)
        case (str(name), *_) if re.fullmatch(r"[OSUVMm]\d*", name):
            return Marker("numpy.dtype")
    raise Refused("has a numpy dtype that is no plain number's")


def array(arguments: tuple) -> Array:
    """numpy's _reconstruct(ndarray, (0,), b"b"), whose values BUILD sets."""
    match arguments:
        case (Global(name="numpy.ndarray"), (0,), bytes()):
            return Array()
    raise Refused("has a numpy array of a class that is not numpy's own")


def _scalar(arguments: tuple) -> Any:
    """numpy's scalar(dtype, bytes)."""
    match arguments:
        case (Marker(), _):
            return Marker("numpy.generic")
        case (DType() as dtype, bytes(data)) if len(data) == dtype.numpy.itemsize:
            return np.frombuffer(data, dtype.numpy)[0].item()
    raise Refused("has a numpy scalar that is no plain number")


def _integers(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) <= limits.RANK
        and all(type(n) is int and abs(n) < 1 << 63 for n in value)
    )


def _plain(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool, bytes)


# What stands in for each function that a pickle may call.
CALLS: dict[str, Callable[[tuple], Any]] = {
    "torch._utils._rebuild_tensor": _old_tensor,
    "torch._utils._rebuild_tensor_v2": tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "collections.OrderedDict": _ordered_dict,
    "torch.Size": size,
    "_codecs.encode": encode,
    **{
        full: {"scalar": _scalar, "_reconstruct": array, "dtype": number}[name]
        for full, name in NUMPY.items()
        if name != "ndarray"
    },
}
