"""The pickle format as PyTorch's files use it: a closed-world reader, and a writer.

The reader calls nothing. It builds plain values, descriptions of tensors, and markers for values of a few known
classes; a pickle that names anything else is refused. (Format: the comments of CPython's pickletools.)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.errors import UserError

from .source import OPCODES, RANK, Marker

REMEDY = "re-save it with torch.save(model.state_dict(), PATH)"

DTYPES: dict[str, Any] = {
    "Float": np.float32, "Double": np.float64, "Half": np.float16, "BFloat16": ml_dtypes.bfloat16, "Long": np.int64,
    "Int": np.int32, "Short": np.int16, "Char": np.int8, "Byte": np.uint8, "Bool": np.bool_,
}  # fmt: skip
STORAGES = {f"torch.{name}Storage": np.dtype(d) for name, d in DTYPES.items()} | {"torch.storage.UntypedStorage": np.dtype(np.uint8)}
TORCH_DTYPES = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int64": np.int64,
    "int32": np.int32, "int16": np.int16, "int8": np.int8, "uint8": np.uint8, "bool": np.bool_,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip
REBUILD = {f"torch._utils._rebuild_{kind}" for kind in ("tensor_v2", "tensor_v3", "parameter", "parameter_with_state")}
NUMPY = {f"{module}.{name}": name for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy") for name in ("scalar", "_reconstruct", "ndarray", "dtype")}
# What a training checkpoint may hold beside its weights: a Marker stands for each.
INERT = {
    "argparse.Namespace", "collections.Counter", "collections.defaultdict", "builtins.set", "__builtin__.set", "__builtin__.bytes",
    "torch.device", "pathlib.PosixPath", "pathlib.WindowsPath",
}  # fmt: skip
TORCH_MARKS = {f"torch.{name}" for name in (*TORCH_DTYPES, "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "complex32", "complex64", "complex128")}
KNOWN = {*STORAGES, *REBUILD, *NUMPY, *INERT, *TORCH_MARKS, "collections.OrderedDict", "torch.Size", "_codecs.encode"}
# What is not read, and why: pattern of the global's name, what to say of it.
REFUSED = (
    (r"torch\._utils\._rebuild_qtensor", "it holds a quantized tensor; dequantize the model first"),
    (r"torch\._utils\._rebuild_sparse.*", "it holds a sparse tensor; call to_dense() first"),
    (r"torch\._utils\._rebuild_meta_tensor.*", "it holds a tensor on the meta device, which has no values; save the model with its weights"),
    (r"torch\._utils\._rebuild_nested.*", "it holds a nested tensor; save dense ones"),
    (r"torch\.Complex.*Storage", "it holds a complex tensor, which no network here has; save real ones"),
    (r"torch\.Q\w+Storage", "it holds a quantized tensor; dequantize the model first"),
    (r"(__builtin__|builtins)\.getattr", "older OneCycleLR schedulers save that; save the model's state_dict() alone"),
    (r"torch\.nn\..*|torchvision\.models\..*|timm\..*|transformers\..*|.*ViT|.*VisionTransformer", "a whole model is saved as code; save model.state_dict() alone"),
)


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


@dataclass(frozen=True)
class Pickle:
    """What a pickle holds, where it ends, and the storages {key: Storage} that it names."""

    value: Any
    end: int
    storages: dict[str, Storage]


def read(data: bytes, path: str, start: int = 0) -> Pickle:
    """The pickle that begins at `start`.

    Its value is made of dict, list, tuple, str, int, float, bool, None and bytes, of Description, Array, Global and
    Marker; nothing is called. Raises UserError on a name off the list, on what is cut off or damaged, and beyond the limits.
    """
    reader = _Reader(data, start, path)
    try:
        return Pickle(reader.load(), reader.at, reader.storages)
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise reader.refused("is cut off or damaged", "get the file again") from error


def _integers(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) <= RANK and all(type(n) is int and abs(n) < 1 << 63 for n in value)


class _Reader:
    """One pickle: a stack, the stacks below its marks, and a memo."""

    def __init__(self, data: bytes, at: int, path: str):
        self.data, self.at, self.path = data, at, path
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.copied = 0  # items that REDUCE has copied: a memoised list may be copied many times

    def refused(self, what: str, remedy: str = REMEDY) -> UserError:
        return UserError(f"{self.path}: the pickle {what} (byte {self.at}); {remedy}")

    def load(self) -> Any:
        if self.take(1) != b"\x80" or not 2 <= self.take(1)[0] <= 5:
            raise self.refused("is not of protocol 2 to 5")
        for _ in range(OPCODES):
            code = self.data[self.at]
            self.at += 1
            if code == STOP:
                if self.below or len(self.stack) != 1:
                    raise self.refused("leaves values on its stack")
                return self.stack[0]
            operation = OPERATIONS.get(code)
            if operation is None:
                raise self.refused(f"has the opcode {bytes([code])!r}, which no model's file needs")
            operation(self)
        raise self.refused(f"has more than {OPCODES} opcodes")

    # ---------------------------------------------------------------- bytes

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise self.refused("is cut off", "get the file again")
        taken = self.data[self.at : self.at + size]
        self.at += size
        return taken

    def unpack(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at, self.at + 512) if b"\n" in self.data[self.at : self.at + 512] else -1
        if end < 0:
            raise self.refused("is cut off in a name", "get the file again")
        text = self.data[self.at : end].decode("ascii", "backslashreplace")
        self.at = end + 1
        return text

    # ---------------------------------------------------------------- stack

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def marked(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def integer(self, size: int) -> None:
        if size > 255:  # no honest number; and Python prints none of more than 4300 digits
            raise self.refused(f"has an integer of {size} bytes")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def name(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "?"
        if full not in KNOWN or (isinstance(name, str) and "." in name):
            other = "that is neither weights nor a known value beside them; save model.state_dict() alone"
            reason = next((why for pattern, why in REFUSED if re.fullmatch(pattern, full)), other)
            raise UserError(f"{self.path}: the pickle names {full[:200]!a}: {reason}")
        self.push(Marker(full) if full in TORCH_MARKS else Global(full))

    def append(self, target: Any, items: list[Any]) -> None:
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Marker):
            raise self.refused("appends to what is no list")

    def put(self, target: Any, items: list[Any]) -> None:
        if isinstance(target, Marker):
            return
        if not isinstance(target, dict) or len(items) % 2:
            raise self.refused("sets items of what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not (_plain(key) or (isinstance(key, tuple) and all(map(_plain, key)))):
                raise self.refused(f"has a dictionary key of type {type(key).__name__}")
            if key in target:
                raise self.refused(f"has the key {str(key)[:200]!a} twice")
            target[key] = value

    # ---------------------------------------------------------------- what other readers would call

    def persistent(self) -> None:
        """("storage", storage class, key, location, elements[, legacy view])."""
        match self.stack.pop():
            case ("storage", Global(name=name), str(key), str(), int(count), *rest) if name in STORAGES and type(count) is int and count >= 0:
                dtype = STORAGES[name]
            case _:
                raise self.refused("has a persistent id that is none of PyTorch's storages")
        start, length = 0, count
        match rest:
            case [] | [None]:
                pass
            case [(str(), int(start), int(length))] if type(start) is type(length) is int and 0 <= start <= start + length <= count:
                pass
            case _:
                raise self.refused("has a storage view out of its storage")
        storage = Storage(key, dtype, count, start, length)
        first = self.storages.setdefault(key, storage)
        if (first.dtype, first.count) != (dtype, count):
            raise self.refused(f"describes the storage {key[:100]!a} in two ways")
        self.push(storage)

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, DType):
            if not (isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "=", "|")) or any(state[2:5]):
                raise self.refused("has a numpy dtype that is no plain number's")
            target.order = ">" if state[1] == ">" else "<"
        elif isinstance(target, Array):
            match state:
                case (int(), shape, DType() as dtype, bool(fortran), bytes(data)) if _integers(shape) and min(shape, default=0) >= 0 and target.dtype is None:
                    if int(np.prod(shape, dtype=object)) * dtype.numpy.itemsize != len(data):
                        raise self.refused(f"has a numpy array {list(shape)} of {len(data)} bytes", "get the file again")
                    target.shape, target.dtype, target.fortran, target.data = shape, dtype.numpy, fortran, data
                case _:
                    raise self.refused("has a numpy array that is none of plain numbers")
        elif not isinstance(target, (Ordered, Description, Marker)):
            raise self.refused("sets attributes of what has none")

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise self.refused("calls what is no known name")
        self.push(self.made(function.name, arguments))

    def made(self, name: str, arguments: tuple) -> Any:
        """What stands for the result of a call."""
        if name in INERT:
            return Marker(name)
        made = CALLS.get(name)
        if made is None:
            raise self.refused(f"calls {name}, which is no function here")
        return made(self, arguments)

    def tensor(self, arguments: tuple, dtype: np.dtype | None = None) -> Description:
        """_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata]); v3 has a dtype before that."""
        match arguments:
            case (Storage() as storage, int(offset), shape, strides, bool(), _, *rest) if _integers(shape) and _integers(strides) and _integers((offset,)):
                pass
            case _:
                raise self.refused("describes a tensor in a way that PyTorch does not")
        if len(shape) != len(strides):
            raise self.refused(f"describes a tensor {list(shape)} with {len(strides)} strides")
        metadata = rest[-1] if rest else None
        if metadata:
            words = " and ".join(str(k) for k in metadata) if isinstance(metadata, dict) else "unknown"
            raise self.refused(f"has a tensor that is a view with the metadata {words[:100]!a}", "save a clone() of it with resolve_conj() and resolve_neg()")
        return Description(storage, dtype or storage.dtype, offset, shape, strides)

    def typed_tensor(self, arguments: tuple) -> Description:
        """_rebuild_tensor_v3: the dtype is an argument, the storage bytes."""
        match arguments:
            case (Storage() as storage, _, _, _, _, _, Marker() as mark, *rest) if storage.dtype.itemsize == 1:
                known = TORCH_DTYPES.get(mark.kind.removeprefix("torch."))
            case _:
                raise self.refused("describes a tensor in a way that PyTorch does not")
        if known is None:
            raise self.refused(f"has a tensor of {mark.kind}, which no network here has", "save it in float32, float16 or bfloat16")
        return self.tensor((*arguments[:6], *rest), np.dtype(known))

    def parameter(self, arguments: tuple) -> Description:
        if not arguments or not isinstance(arguments[0], Description):
            raise self.refused("has a parameter that is no tensor")
        return arguments[0]

    def ordered(self, arguments: tuple) -> Ordered:
        made = Ordered()
        if arguments:  # Python 2 gives the items as a list of pairs
            match arguments:
                case (list(pairs),) if all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
                    self.charge(len(pairs))
                    self.put(made, [item for pair in pairs for item in pair])
                case _:
                    raise self.refused("has an OrderedDict of unknown form")
        return made

    def size(self, arguments: tuple) -> tuple[int, ...]:
        if len(arguments) != 1 or not _integers(arguments[0]):
            raise self.refused("has a torch.Size that is no shape")
        return arguments[0]

    def encode(self, arguments: tuple) -> bytes:
        match arguments:
            case (str(text), "latin1") if text.isascii() or max(text) <= "\xff":
                self.charge(len(text) // 16)
                return text.encode("latin1")
        raise self.refused("encodes text in a way that bytes are not")

    def charge(self, items: int) -> None:
        self.copied += items
        if self.copied > OPCODES:
            raise self.refused("copies one value too often")

    def dtype(self, arguments: tuple) -> DType:
        match arguments:
            case (str(name), *_) if re.fullmatch(r"[iu][1248]|f[248]|b1", name):
                return DType(name)
        raise self.refused("has a numpy dtype that is no plain number's")

    def array(self, arguments: tuple) -> Array:
        match arguments:
            case (Global(name="numpy.ndarray"), (0,), bytes()):
                return Array()
        raise self.refused("has a numpy array of a class that is not numpy's own")

    def scalar(self, arguments: tuple) -> Any:
        match arguments:
            case (DType() as dtype, bytes(data)) if len(data) == dtype.numpy.itemsize:
                return np.frombuffer(data, dtype.numpy)[0].item()
        raise self.refused("has a numpy scalar that is no plain number")


def _plain(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool, bytes)


CALLS: dict[str, Callable[[_Reader, tuple], Any]] = {
    "torch._utils._rebuild_tensor_v2": _Reader.tensor,
    "torch._utils._rebuild_tensor_v3": _Reader.typed_tensor,
    "torch._utils._rebuild_parameter": _Reader.parameter,
    "torch._utils._rebuild_parameter_with_state": _Reader.parameter,
    "collections.OrderedDict": _Reader.ordered,
    "torch.Size": _Reader.size,
    "_codecs.encode": _Reader.encode,
    **{full: {"scalar": _Reader.scalar, "_reconstruct": _Reader.array, "dtype": _Reader.dtype}[name] for full, name in NUMPY.items() if name != "ndarray"},
}

STOP = ord(".")


def _tuple(size: int) -> Callable[[_Reader], None]:
    def operation(r: _Reader) -> None:
        if len(r.stack) < size:
            raise IndexError
        r.stack[-size:] = [tuple(r.stack[-size:])]

    return operation


def _text(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.take(r.unpack(form)).decode())  # strictly: half a surrogate pair cannot be printed


def _number(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.unpack(form))


def _value(make: Callable[[], Any]) -> Callable[[_Reader], None]:
    return lambda r: r.push(make())


def _popped(operate: Callable[[_Reader, Any], None]) -> Callable[[_Reader], None]:
    return lambda r: operate(r, r.stack.pop())


def _global(r: _Reader) -> None:
    module, name = r.line(), r.line()
    r.name(module, name)


def _stack_global(r: _Reader) -> None:
    name, module = r.stack.pop(), r.stack.pop()
    r.name(module, name)


def _memoize(r: _Reader, key: int) -> None:
    r.memo[key] = r.stack[-1]


def _setitem(r: _Reader) -> None:
    value, key = r.stack.pop(), r.stack.pop()
    r.put(r.stack[-1], [key, value])


def _appends(r: _Reader) -> None:
    items = r.marked()
    r.append(r.stack[-1], items)


def _setitems(r: _Reader) -> None:
    items = r.marked()
    r.put(r.stack[-1], items)


def _dictionary(r: _Reader) -> None:
    items, made = r.marked(), {}  # type: ignore[var-annotated]
    r.put(made, items)
    r.push(made)


def _new_object_ex(r: _Reader) -> None:
    keywords = r.stack.pop()
    r.reduce()
    if keywords and not isinstance(r.stack[-1], Marker):
        raise r.refused("gives keywords to what takes none")


OPERATIONS: dict[int, Callable[[_Reader], None]] = {
    ord(code): operation
    for code, operation in {
        "N": _value(lambda: None), "\x88": _value(lambda: True), "\x89": _value(lambda: False),
        "]": _value(list), "}": _value(dict), ")": _value(tuple), "\x8f": _value(lambda: Marker("builtins.set")),
        "J": _number("<i"), "K": _number("<B"), "M": _number("<H"), "G": _number(">d"),
        "\x8a": lambda r: r.integer(r.unpack("<B")), "\x8b": lambda r: r.integer(r.unpack("<I")),
        "X": _text("<I"), "\x8c": _text("<B"), "\x8d": _text("<Q"), "U": _text("<B"), "T": _text("<I"),
        "B": lambda r: r.push(r.take(r.unpack("<I"))), "C": lambda r: r.push(r.take(r.unpack("<B"))), "\x8e": lambda r: r.push(r.take(r.unpack("<Q"))),
        "(": _Reader.mark, "0": lambda r: r.stack.pop(), "1": lambda r: r.marked(), "2": lambda r: r.push(r.stack[-1]),
        "t": lambda r: r.push(tuple(r.marked())), "l": lambda r: r.push(r.marked()), "d": _dictionary,
        "\x85": _tuple(1), "\x86": _tuple(2), "\x87": _tuple(3),
        "a": _popped(lambda r, item: r.append(r.stack[-1], [item])), "e": _appends, "\x90": _appends, "s": _setitem, "u": _setitems,
        "q": lambda r: _memoize(r, r.unpack("<B")), "r": lambda r: _memoize(r, r.unpack("<I")), "\x94": lambda r: _memoize(r, len(r.memo)),
        "h": lambda r: r.push(r.memo[r.unpack("<B")]), "j": lambda r: r.push(r.memo[r.unpack("<I")]),
        "c": _global, "\x93": _stack_global, "Q": _Reader.persistent,
        "R": _Reader.reduce, "\x81": _Reader.reduce, "\x92": _new_object_ex, "b": _Reader.build,
        "\x95": lambda r: r.unpack("<Q"),
    }.items()
}  # fmt: skip
