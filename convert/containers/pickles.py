"""A reader of the pickle format, as PyTorch's files use it, that runs no code.

It makes plain values, descriptions of tensors, and markers for values of all other classes, of which only the name is
kept. It refuses a pickle with names that only an attack needs. Format: the comments of CPython's pickletools.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vit_jax.errors import UserError

from . import limits
from .pickle_calls import CALLS, Global, Refused, Storage, build, put
from .pickle_names import DOTTED, INERT, KNOWN, REFUSED, STORAGES, TORCH_MARKS
from .source import Marker


@dataclass(frozen=True)
class Pickle:
    """A pickle's value, the offset of its end, and the storages {key: Storage} that it names."""

    value: Any
    end: int
    storages: dict[str, Storage]


def read_pickle(data: bytes, path: str, start: int = 0) -> Pickle:
    """Read a pickle; nothing is called. Its value consists of dict, list, tuple, str, int, float, bool, None and bytes,
    and of Description, Array, Global and Marker.
    """
    reader = _Reader(data, start)
    try:
        return Pickle(reader.load(), reader.at, reader.storages)
    except Refused as error:
        what, remedy = error.what, error.remedy
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        what, remedy = "is cut off or damaged", "get the file again"
    raise UserError(path, f"the pickle {what} (at byte {reader.at})", remedy)


class _Reader:
    """Reads one pickle: a stack, the stacks below its marks, and a memo."""

    def __init__(self, data: bytes, at: int):
        self.data, self.at = data, at
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.copied = 0  # items of arguments of all calls

    def load(self) -> Any:
        if self.take(1) != b"\x80" or not 2 <= self.take(1)[0] <= 5:
            raise Refused("is not of protocol 2 to 5")
        for _ in range(limits.OPCODES):
            code = self.data[self.at]
            self.at += 1
            if code == STOP:
                if self.below or len(self.stack) != 1:
                    raise Refused("leaves values on its stack")
                return self.stack[0]
            operation = OPERATIONS.get(code)
            if operation is None:
                raise Refused(f"has the opcode {bytes([code])!r}, which no model's file needs")
            operation(self)
        raise Refused(f"has more than {limits.OPCODES} opcodes")

    # ---------------------------------------------------------------- bytes

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise Refused("is cut off", "get the file again")
        taken = self.data[self.at : self.at + size]
        self.at += size
        return taken

    def unpack(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.at, self.at + 512)
        if end < 0:
            raise Refused("is cut off in a name", "get the file again")
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
        if size > 255:  # no weights need it, and Python refuses to print more than 4300 digits
            raise Refused(f"has an integer of {size} bytes")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def name(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise Refused("names what is no text")
        full = f"{module}.{name}"
        if full not in KNOWN or "." in name:
            refused = [reason for pattern, reason in REFUSED if re.fullmatch(pattern, full)]
            for why, remedy in [*refused, *([DOTTED] if "." in name else [])]:
                raise Refused(f"names {full[:200]!a}, {why}", remedy)
        self.push(Marker(full) if full in TORCH_MARKS else Global(full))

    def append(self, target: Any, items: list[Any]) -> None:
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Marker):
            raise Refused("appends to what is no list")

    # ---------------------------------------------------------------- persistent ids, attributes, calls

    def persistent(self) -> None:
        """("storage", storage class, key, location, elements[, view]), or a class ("module", class, file, source)."""
        match self.stack.pop():
            case ("module", Global() as known, *_):
                return self.push(known)
            case ("storage", Global(name=name), str(key), str(), int(count), *rest) if (
                name in STORAGES and type(count) is int and count >= 0
            ):
                dtype = STORAGES[name]
            case _:
                raise Refused("has a persistent id that is none of PyTorch's storages")
        start, length = 0, count
        match rest:
            case [] | [None]:
                pass
            case [(str(), int(start), int(length))] if (
                type(start) is type(length) is int and 0 <= start <= start + length <= count
            ):
                pass
            case _:
                raise Refused("has a storage view out of its storage")
        storage = Storage(key, dtype, count, start, length)
        first = self.storages.setdefault(key, storage)
        if (first.dtype, first.count) != (dtype, count):
            raise Refused(f"describes the storage {key[:100]!a} in two ways")
        self.push(storage)

    def build(self) -> None:
        state = self.stack.pop()
        build(self.stack[-1], state)

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, (Global, Marker)) or not isinstance(arguments, tuple):
            raise Refused("calls what is no name")
        self.copied += len(arguments) + sum(
            len(each) // (16 if isinstance(each, str) else 1) for each in arguments if isinstance(each, (list, str))
        )
        if self.copied > limits.OPCODES:  # one long list or string may be an argument many times
            raise Refused("copies one value too often")
        if isinstance(function, Marker):  # what a foreign function gave
            self.push(function)
        elif function.name in INERT or function.name not in KNOWN:
            self.push(Marker(function.name))
        elif function.name in CALLS:
            self.push(CALLS[function.name](arguments))
        else:
            raise Refused(f"calls {function.name}, which is no function here")


STOP = ord(".")


def _tuple(size: int) -> Callable[[_Reader], None]:
    def operation(r: _Reader) -> None:
        if len(r.stack) < size:
            raise IndexError
        r.stack[-size:] = [tuple(r.stack[-size:])]

    return operation


def _text(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.take(r.unpack(form)).decode())  # strict: half a surrogate pair could not be printed


def _number(form: str) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.unpack(form))


def _value(make: Callable[[], Any]) -> Callable[[_Reader], None]:
    return lambda r: r.push(make())


def _pop_operand(operate: Callable[[_Reader, Any], None]) -> Callable[[_Reader], None]:
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
    put(r.stack[-1], [key, value])


def _appends(r: _Reader) -> None:
    items = r.marked()
    r.append(r.stack[-1], items)


def _setitems(r: _Reader) -> None:
    items = r.marked()
    put(r.stack[-1], items)


def _dictionary(r: _Reader) -> None:
    items, made = r.marked(), {}  # type: ignore[var-annotated]
    put(made, items)
    r.push(made)


def _new_object_ex(r: _Reader) -> None:
    keywords = r.stack.pop()
    r.reduce()
    if keywords and not isinstance(r.stack[-1], Marker):
        raise Refused("gives keywords to what takes none")


OPERATIONS: dict[int, Callable[[_Reader], None]] = {
    ord(code): operation
    for code, operation in {
        "N": _value(lambda: None),
        "\x88": _value(lambda: True),
        "\x89": _value(lambda: False),
        "]": _value(list),
        "}": _value(dict),
        ")": _value(tuple),
        "\x8f": _value(lambda: Marker("builtins.set")),
        "J": _number("<i"),
        "K": _number("<B"),
        "M": _number("<H"),
        "G": _number(">d"),
        "\x8a": lambda r: r.integer(r.unpack("<B")),
        "\x8b": lambda r: r.integer(r.unpack("<I")),
        "X": _text("<I"),
        "\x8c": _text("<B"),
        "\x8d": _text("<Q"),
        "U": _text("<B"),
        "T": _text("<I"),
        "B": lambda r: r.push(r.take(r.unpack("<I"))),
        "C": lambda r: r.push(r.take(r.unpack("<B"))),
        "\x8e": lambda r: r.push(r.take(r.unpack("<Q"))),
        "(": _Reader.mark,
        "0": lambda r: r.stack.pop(),
        "1": lambda r: r.marked(),
        "2": lambda r: r.push(r.stack[-1]),
        "t": lambda r: r.push(tuple(r.marked())),
        "l": lambda r: r.push(r.marked()),
        "d": _dictionary,
        "\x85": _tuple(1),
        "\x86": _tuple(2),
        "\x87": _tuple(3),
        "a": _pop_operand(lambda r, item: r.append(r.stack[-1], [item])),
        "e": _appends,
        "\x90": _appends,
        "s": _setitem,
        "u": _setitems,
        "q": lambda r: _memoize(r, r.unpack("<B")),
        "r": lambda r: _memoize(r, r.unpack("<I")),
        "\x94": lambda r: _memoize(r, len(r.memo)),
        "h": lambda r: r.push(r.memo[r.unpack("<B")]),
        "j": lambda r: r.push(r.memo[r.unpack("<I")]),
        "c": _global,
        "\x93": _stack_global,
        "Q": _Reader.persistent,
        "R": _Reader.reduce,
        "\x81": _Reader.reduce,
        "\x92": _new_object_ex,
        "b": _Reader.build,
        "\x95": lambda r: r.unpack("<Q"),
    }.items()
}
