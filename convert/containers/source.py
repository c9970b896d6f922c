"""What every container has in common: a Source to read (named lazy tensors) and a Writer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np

from vit_jax.config.trees import flatten
from vit_jax.errors import UserError

from . import limits

Shape = tuple[int, ...]
Step = int | Literal["best", "last"] | None  # of a folder of checkpoints; None: what the folder's kind has by default

CARRIED_SUFFIX = ".carried.safetensors"  # a file next to the weights: tensors that are no parameters of the network
PROVENANCE = "provenance.json"  # written into a target folder
CERTIFICATE = ".certificate.json"  # suffix of the file written next to a target
STATE_DICT = "the state dict"  # what a Source of one in memory has as its path
DATA = ".data"  # suffix of the file next to a program that is too large for one file: its weights
DIGESTED = ".safetensors"  # suffix of files that hold their own provenance and a digest of every tensor

# By container, what joins the parts of a name: the keys of nested dictionaries (torch, msgpack), or modules.
SEPARATORS = {"safetensors": ".", "torch": ".", "orbax": ".", "npz": "/", "msgpack": "/"}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: dtype and shape from its header, and `read()` for its values.

    `read()` returns a new array in C order and native byte order. It raises UserError where the bytes are damaged or
    the file has changed since it was opened.
    """

    name: str
    dtype: np.dtype
    shape: Shape
    read: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(map(int, self.shape)) * self.dtype.itemsize


@dataclass(frozen=True)
class Marker:
    """Stands in a tree for a value of a known class that is not read: an argparse.Namespace, a set."""

    kind: str


@dataclass
class Source:
    """An opened file or folder of tensors.

    `tree` is the content: {name: Tensor}, nested where the container nests (torch, msgpack, orbax), with plain Python
    values (numbers, strings, lists) and Markers among the tensors. `metadata` is that of the container itself
    (safetensors' __metadata__). `skipped` describes values that were not read: "args (argparse.Namespace)". `tied`
    lists names that share one storage. `files` are the files that it consists of (shards and their index; empty:
    `path` alone or, of a folder, everything in it), `size` their bytes. Of a run, `step` is the step that was opened,
    `chosen` says which that is, `preferred` is the key of the weights that are taken where the user names none, and
    `record` is its config.json, whose file may be damaged, as a checkpoint has recorded it, `decided` the same with
    what validation has decided of the preferred weights, and `beside` reads what it keeps of a tokenizer, {path in its
    folder: content}. Of tensors in memory `side` are the JSON files that would lie beside them, {name: content}; else
    it is None.
    """

    path: str
    container: str  # a key of SEPARATORS
    tree: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    tied: list[tuple[str, ...]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    size: int = 0
    close: Callable[[], None] = lambda: None
    step: int | None = None
    chosen: str = ""
    preferred: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    decided: dict[str, Any] = field(default_factory=dict)
    beside: Callable[[], dict[str, bytes]] = dict
    side: Mapping[str, Any] | None = None

    @property
    def separator(self) -> str:
        """What joins the parts of its names."""
        return SEPARATORS[self.container]

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Spec:
    """Dtype and shape of a tensor to be written, known before its values."""

    dtype: np.dtype
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(map(int, self.shape)) * self.dtype.itemsize


TreePath = tuple[str | int, ...]  # the keys to a value in a nested tree; (name,) in a flat one

# write(path, tree, arrays, metadata). `tree` is the file's content, nested where the container nests: a Spec for every
# tensor, plain values elsewhere. `arrays` are (TreePath, C-ordered array) pairs in any order; each array is released
# before the next is taken. `metadata` is written where the container has a place for it (safetensors), with the values
# that it has after the last array; their lengths must not change.
Writer = Callable[[str, Mapping[Any, Any], Iterator[tuple[TreePath, np.ndarray]], Mapping[str, str]], None]

FLOATS = {np.dtype(d) for d in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)}
INTEGERS = {np.dtype(d) for d in (np.int32, np.int64)}


def raw(array: np.ndarray, spec: Spec) -> np.ndarray:
    """An array's bytes in C order and native byte order, copied only if needed -> uint8 [nbytes]."""
    if (array.dtype.newbyteorder("="), array.shape) != (spec.dtype, spec.shape):
        raise ValueError(f"an array {array.shape} of {array.dtype} came where {spec} was announced")
    return np.asarray(array, dtype=spec.dtype, order="C").reshape(-1).view(np.uint8)


def leaves(tree: Mapping[str, Any], separator: str = ".") -> dict[str, Tensor]:
    """The tensors of a nested tree -> {keys joined by the separator: Tensor}."""
    entries = flatten(tree, separator, strict=False)
    return {name: value for name, value in entries.items() if isinstance(value, Tensor)}


def check_names(names: Iterable[str], path: str) -> None:
    """Raise UserError on names that are no strings, not printable ASCII, empty or too long, and on too many names."""
    names = list(names)
    check_amount(names, path)
    for name in names:
        if not isinstance(name, str) or not name:
            raise UserError(
                path, f"a tensor is named {name!r}, which is not a name", "re-save the file from its library"
            )
        if bad := [ch for ch in name if not " " <= ch <= "~"]:
            raise UserError(
                path,
                f"the name {name!a} holds U+{ord(bad[0]):04X}, which is not printable ASCII",
                "re-save the file from its library",
            )
        if len(name) > limits.NAME:
            raise UserError(
                path,
                f"a name of {len(name)} characters is longer than {limits.NAME}",
                "re-save the file from its library",
            )


def check_amount(names: Collection[Any], path: str) -> None:
    """Raise UserError on more names, or longer ones, than any network has: each is compared with all layouts."""
    if len(names) > limits.TENSORS:
        raise UserError(path, f"{len(names)} tensors are more than {limits.TENSORS}", "save the parameters alone")
    if (letters := sum(len(name) for name in names if isinstance(name, str))) > limits.LETTERS:
        raise UserError(
            path,
            f"the names of its {len(names)} tensors take {letters} characters, more than {limits.LETTERS}",
            "save the parameters alone",
        )


def check_shape(name: str, dtype: np.dtype, shape: Shape, path: str) -> None:
    """Raise UserError where a tensor has too many axes or bytes to be allocated."""
    if len(shape) > limits.RANK:
        raise UserError(path, f"{name} has {len(shape)} axes, more than {limits.RANK}", "re-save the file without it")
    size = math.prod(map(int, shape)) * dtype.itemsize
    if any(not 0 <= n <= limits.TENSOR_BYTES for n in shape) or size > limits.TENSOR_BYTES:
        raise UserError(
            path,
            f"{name} {list(shape)} would take {size} bytes, more than {limits.TENSOR_BYTES}, so the file's header is "
            "wrong",
            "get the file again",
        )
