"""What a container is to the rest: named tensors that are read one by one, and what else the file says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.errors import UserError

Shape = tuple[int, ...]

# Limits on files from strangers. All are checked against headers, before anything is allocated.
HEADER, TENSORS, RANK, NAME, NESTING, OPCODES = 16 << 20, 50_000, 8, 512, 8, 1_000_000
TENSOR_BYTES, RATIO, FREE_BYTES = (
    16 << 30,
    20,
    256 << 20,
)  # of one tensor; of a compressed member, above this many bytes
CARRIED_SUFFIX = ".carried.safetensors"  # of a file beside another: tensors that no network of ours has
PROVENANCE, CERTIFICATE = (
    "provenance.json",
    ".certificate.json",
)  # what a conversion leaves: in a folder, beside a target
DIGESTED = ".safetensors"  # a file that holds its own provenance, and a digest of every tensor that its reader checks


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: what its header says, and how to get its values.

    `read()` gives an array of its own memory, in C order and native byte order, by positional reads; it raises
    UserError where the bytes are damaged or the file has changed.
    """

    name: str
    dtype: np.dtype
    shape: Shape
    read: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


@dataclass(frozen=True)
class Marker:
    """What stands in a tree for a value of a known class that is no tensor: an argparse.Namespace, a set."""

    kind: str


@dataclass
class Source:
    """An opened file or folder of tensors.

    `tree` is what lies in the file: {name: Tensor}, nested where the container nests (torch, msgpack), with plain
    Python values (numbers, strings, lists) and Markers beside tensors. `metadata` is what the container itself notes (safetensors'
    __metadata__). `skipped` names what was passed over: "args (argparse.Namespace)". `tied` lists names that are one
    storage. `files` are all the files that it consists of (shards and their index; empty: `path` alone or, of a
    folder, everything in it), `size` their bytes.
    """

    path: str
    container: str  # safetensors, torch, npz, msgpack, orbax
    tree: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    tied: list[tuple[str, ...]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    size: int = 0
    close: Callable[[], None] = lambda: None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Spec:
    """What a writer is told of a tensor before its bytes."""

    dtype: np.dtype
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


Path = tuple[str | int, ...]  # where a value lies in a nested tree; (name,) in a flat one

# A writer: write(path, tree, arrays, metadata). `tree` is what the file is to hold, nested where the container nests: a Spec
# where a tensor goes, plain values elsewhere. `arrays` are (path in the tree, C-ordered array) pairs in any order, each to be
# let go of before the next is taken. `metadata` goes where the container has a place for it (safetensors), else nowhere; what it
# holds after the last array is what is written, and its values keep their lengths.
Writer = Callable[[str, Mapping[Any, Any], Iterator[tuple[Path, np.ndarray]], Mapping[str, str]], None]

FLOATS = {np.dtype(d) for d in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)}


def raw(array: np.ndarray, spec: Spec) -> np.ndarray:
    """An array's bytes as a file has them, uint8 [nbytes]: C order, native byte order; no copy where it lies so already."""
    if (array.dtype.newbyteorder("="), array.shape) != (spec.dtype, spec.shape):
        raise ValueError(f"an array {array.shape} of {array.dtype} came where {spec} was announced")
    return np.asarray(array, dtype=spec.dtype, order="C").reshape(-1).view(np.uint8)


def leaves(tree: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a nested tree under joined names; values that are no tensors are left out."""
    out: dict[str, Tensor] = {}
    for key, value in tree.items():
        if isinstance(value, Tensor):
            out[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            out |= leaves(value, separator, f"{prefix}{key}{separator}")
    return out


def check_names(names: Iterable[str], path: str) -> None:
    """Raise UserError on names that no honest file has: not ASCII, with control characters, empty, too long, too many."""
    names = list(names)
    if len(names) > TENSORS:
        raise UserError(f"{path}: {len(names)} tensors are more than {TENSORS}; this is no model's file")
    for name in names:
        if not isinstance(name, str) or not name:
            raise UserError(
                f"{path}: a tensor is named {name!r}, which is not a name; re-save the file from its library"
            )
        if bad := [ch for ch in name if not " " <= ch <= "~"]:
            raise UserError(
                f"{path}: the name {name!a} holds U+{ord(bad[0]):04X}, which no model's names do; re-save the file from its library"
            )
        if len(name) > NAME:
            raise UserError(
                f"{path}: a name of {len(name)} characters is longer than {NAME}; re-save the file from its library"
            )


def check_shape(name: str, dtype: np.dtype, shape: Shape, path: str) -> None:
    """Raise UserError on a rank or a size that is not to be allocated."""
    if len(shape) > RANK:
        raise UserError(f"{path}: {name} has {len(shape)} axes, more than {RANK}; this is no model's file")
    size = int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
    if any(not 0 <= n <= TENSOR_BYTES for n in shape) or size > TENSOR_BYTES:
        raise UserError(
            f"{path}: {name} {list(shape)} would take {size} bytes, more than {TENSOR_BYTES}; the file's header is wrong"
        )
