"""What a variant is, as a digest: the code and the values that its functions reach, whatever it is called.

A comment, a line break or another title changes nothing; a depth, a loss, a rate, a budget or an image does. What
belongs to a library counts by its name alone, so that its next version changes nothing either. Numbers with fractions,
such as what a teacher said, differ in their last digits from machine to machine: they are compared by their mean and
standard deviation (`alike`), and only their shape is in the digest.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from flax import nnx

LIBRARIES = {"vit_jax", "convert", "torch_ref"}
Sketch = list[list[float]]  # (mean, standard deviation) of each array of floating-point numbers


def digest(*things: Any) -> tuple[str, Sketch]:
    """(the digest of functions and values, the sketch of their floating-point arrays)."""
    writer = _Writer()
    for thing in things:
        writer.write(thing)
    return writer.hash.hexdigest()[:16], writer.sketch


def alike(a: Sketch, b: Sketch) -> bool:
    """Whether arrays are the same but for a tenth of their spread."""
    if len(a) != len(b):
        return False
    return all(
        abs(mean - other) <= 0.1 * max(spread, wide) + 1e-6 and abs(spread - wide) <= 0.1 * max(spread, wide)
        for (mean, spread), (other, wide) in zip(a, b, strict=True)
    )


class _Writer:
    """Feeds a hash with things, each function, class and array once."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.sketch: Sketch = []
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []  # alive, so that no other object gets the id of one

    def add(self, *words: Any) -> None:
        for word in words:
            self.hash.update(f"{word}\n".encode())

    def write(self, value: Any) -> None:
        value = inspect.unwrap(value) if callable(value) else value
        if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
            self.add(repr(value.item() if isinstance(value, np.generic) else value))
        elif id(value) in self.seen:
            self.add("again", self.seen[id(value)])
        else:
            self.seen[id(value)] = len(self.seen)
            self.kept.append(value)
            self._write_object(value)

    def _write_object(self, value: Any) -> None:
        if isinstance(value, np.ndarray | jax.Array):
            self._write_array(value)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                self.add("key", key)
                self.write(each)
        elif isinstance(value, list | tuple | set | frozenset):
            self.add(type(value).__name__, len(value))
            for each in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
                self.write(each)
        elif isinstance(value, functools.partial):
            self.write([value.func, value.args, value.keywords])
        elif isinstance(value, MethodType):
            self.write([value.__func__, value.__self__])
        elif isinstance(value, FunctionType | type):
            self.add(value.__qualname__.rpartition(".")[2] if is_own(value) else f"{value.__module__}.{value.__name__}")
            if is_own(value):
                (self._write_function if isinstance(value, FunctionType) else self._write_class)(value)
        elif dataclasses.is_dataclass(value):
            self._write_fields(value)
        elif isinstance(value, nnx.Module):
            self.add(type(value).__name__)
            self.write({str(path): leaf[...] for path, leaf in nnx.to_flat_state(nnx.state(value, nnx.Param))})
        else:
            self.add(type(value).__qualname__, getattr(value, "__name__", ""))

    def _write_array(self, value: Any) -> None:
        x = np.asarray(value)
        self.add(x.dtype, x.shape)
        if np.issubdtype(x.dtype, np.floating):
            x = x.astype(np.float64)
            self.sketch.append([float(f"{part:.4g}") for part in ((x.mean(), x.std()) if x.size else (0, 0))])
        elif x.dtype != object:
            self.hash.update(np.ascontiguousarray(x).data)

    def _write_fields(self, value: Any) -> None:
        """The fields that are not as by default: new ones of a later version, which are, change nothing."""
        self.add(type(value).__name__)
        for field in dataclasses.fields(value):
            its = getattr(value, field.name)
            if field.default is dataclasses.MISSING or (its is not field.default and not _equal(its, field.default)):
                self.add(field.name)
                self.write(its)

    def _write_class(self, value: type) -> None:
        for base in value.__bases__:
            self.write(base)
        for name, member in sorted(vars(value).items()):
            if is_own(member) if isinstance(member, FunctionType) else not name.startswith("_"):
                self.add(name)
                self.write(member)

    def _write_function(self, function: FunctionType) -> None:
        """Its code without comments, its defaults, and what the names in it stand for."""
        node = code_of(function.__code__)
        self.add(ast.unparse(node) if node else function.__code__.co_code.hex())
        self.write([function.__defaults__, function.__kwdefaults__])
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        found = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_set(cell)}}
        for root, attributes in chains(node) if node else ():
            if root in found and root not in bound(node) and not isinstance(found[root], ModuleType):
                value = found[root]
                for attribute in attributes:
                    if not dataclasses.is_dataclass(value) or isinstance(value, type):
                        break
                    value = getattr(value, attribute)  # of a run only what is read, such as preset.run.model
                self.add(root)
                self.write(value)


def is_own(value: Any) -> bool:
    """Whether a function or class was written beside the variant: in a notebook, or in a file of no library."""
    module = value.__module__ or ""
    if module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = (sys.prefix, sys.base_prefix)
    return bool(file) and module.partition(".")[0] not in LIBRARIES and not (
        file.startswith(installed) or "site-packages" in file
    )  # fmt: skip


def code_of(code: CodeType) -> ast.AST | None:
    """The function or lambda of some compiled code, in the file or cell in which it stands."""
    lines = linecache.getlines(code.co_filename)
    places = [(row, column) for row, _, column, _ in code.co_positions() if row and column is not None]
    found: list[tuple[int, ast.AST]] = []
    for node in ast.walk(_parsed("".join(lines))):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            if code.co_firstlineno in (node.lineno, *(each.lineno for each in node.decorator_list)):
                return node
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>":
            body = node.body
            begin, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
            if node.lineno == code.co_firstlineno and all(begin <= place <= end for place in places if place[1]):
                found.append(((end[0] - begin[0]) * 1000 + end[1] - begin[1], node))
    return min(found, key=lambda each: each[0])[1] if found else None


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> ast.AST:
    return ast.parse(text)


def chains(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """(name, attributes) of each name in some code, with what is read of it: a.b.c is (a, [b, c])."""
    attributes: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        attributes.insert(0, inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield inner.id, attributes
    for child in ast.iter_child_nodes(node) if inner is node or not isinstance(inner, ast.Name) else ():
        yield from chains(child)


def bound(node: ast.AST | None) -> set[str]:
    """The names that some code gives a value itself, as arguments and by assignments."""
    inside = list(ast.walk(node)) if node else []
    arguments = {each.arg for each in inside if isinstance(each, ast.arg)}
    return arguments | {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and not isinstance(a, np.ndarray | jax.Array) and bool(a == b)
