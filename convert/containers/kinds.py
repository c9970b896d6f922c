"""Which container a file is, by its first bytes or else its suffix; and the module that reads and writes it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from importlib import import_module

from vit_jax.errors import UserError

from . import limits, unread
from .positional import PositionalFile
from .source import Source, Writer
from .zips import zip_members

READERS = {"safetensors": "safetensors", "torch": "torch_file", "npz": "npz", "msgpack": "msgpack"}
SUFFIXES = {
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
    ".bin": "torch",
    ".ckpt": "torch",
    ".npz": "npz",
    ".msgpack": "msgpack",
}
WRITTEN = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".msgpack")
PROGRAMS = (
    ".onnx",
    ".stablehlo",
    ".html",
)  # files that hold the network too: they are written (write/program/), not read
HEAD = 512  # bytes that are enough to recognise a file


def open_file(path: str) -> Source:
    """Open one file."""
    module = import_module(f".{READERS[container(path)]}", __package__)
    opened: Source = module.open_file(path)
    return opened


def container(path: str) -> str:
    """The container of a file, by its first bytes."""
    check_file(path)
    file = PositionalFile(path)
    try:
        head = file.read(0, min(HEAD, file.size))
    finally:
        file.close()
    if not head:
        raise UserError(path, "is empty (0 bytes)", "get the file again")
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= min(limits.HEADER, os.path.getsize(path)):
        return "safetensors"
    suffix = SUFFIXES.get(os.path.splitext(path)[1].lower())
    if known := unread.other([os.path.basename(path)]):
        _, kind = known
        raise UserError(path, f"is {kind.what}", kind.remedy.format(os.path.dirname(path) or "."))
    for start, what, remedy in unread.FIRST_BYTES:
        if head.startswith(start):
            raise UserError(path, f"is {what}", remedy)
    if head[257:262] == b"ustar":
        raise UserError(
            path, "is a tar archive", "unpack it or, if PyTorch before 0.1.10 wrote it, re-save it with a newer one"
        )
    if head.startswith(b"PK\x03\x04"):
        return "npz" if _numpy_archive(path) or suffix == "npz" else "torch"
    if head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "torch"  # a pickle
    if b"\0" not in head and head.lstrip()[:1] in (b"<", b"{", b"["):
        what = "web page or XML" if head.lstrip()[:1] == b"<" else "JSON text"
        raise UserError(path, f"is a {what}, not weights", "get the file itself")
    if 0x80 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF):
        return "msgpack"  # a map
    if suffix is None:
        raise UserError(
            path,
            f"is no file of weights of a known kind (its first bytes are {head[:8]!r})",
            "`python -m convert formats` lists the kinds",
        )
    return suffix  # its reader says what is wrong with the file


def _numpy_archive(path: str) -> bool:
    """Whether a zip file holds .npy members only."""
    file = PositionalFile(path)
    try:
        return all(name.endswith(".npy") for name in zip_members(file))
    finally:
        file.close()


def check_file(path: str) -> None:
    """Raise UserError unless the path is a regular file that may be read."""
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        of_run = os.path.join("runs", path)
        remedy = f"give {of_run}, the run of this name" if os.path.isdir(of_run) else "check the path"
        raise UserError(path, "no such file or folder", remedy) from error
    if not stat.S_ISREG(kind):
        raise UserError(path, "is neither a file nor a folder", "copy it into a file first")
    if not os.access(path, os.R_OK):
        raise UserError(path, "may not be read by you", "change that with chmod")


def is_program(path: str) -> bool:
    """Whether a name is that of a program, by its suffix."""
    return os.path.splitext(path)[1].lower() in PROGRAMS


def writer(path: str) -> tuple[str, Writer]:
    """The container that is written under a file name, by its suffix -> (container, a key of READERS; its writer)."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in WRITTEN:
        found = f"{suffix} is not the suffix of a container" if suffix else "the name has no suffix"
        raise UserError(path, found, f"end the name with one of {', '.join((*WRITTEN, *PROGRAMS))}")
    name = SUFFIXES[suffix]
    write: Callable[..., None] = import_module(f".{READERS[name]}", __package__).write
    return name, write
