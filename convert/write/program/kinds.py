"""The kinds of programs: X.onnx for ONNX Runtime and others, X.stablehlo for `jax.export.deserialize`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from vit_jax.errors import UserError, install

from ...layout import Json
from .interface import Interface
from .network import Forward
from .onnx_file import open_onnx, write_onnx
from .stablehlo import open_stablehlo, write_stablehlo


@dataclass(frozen=True)
class Kind:
    """A kind of program: how it is called, the libraries that write it, and the extra that installs these.

    `write(forward, interface, path)` writes a file (and one beside it, where it is large); it returns what a runtime
    needs to run it, and states that in the file where it holds statements. `open(path)` gives the function in the file.
    """

    title: str
    runs: str  # where it runs
    extra: str
    libraries: tuple[str, ...]
    write: Callable[[Forward, Interface, Path], Json]
    open: Callable[[Path], Callable[[np.ndarray], np.ndarray]]
    least_batch: int  # images that it computes at a time

    def versions(self) -> dict[str, str]:
        """The versions of the libraries that take part."""
        return {name: metadata.version(name) for name in ("jax", *self.libraries)}


KINDS = {  # by suffix
    ".onnx": Kind(
        "ONNX", "in ONNX Runtime and others", "onnx", ("jax2onnx", "onnx_ir", "onnxruntime"), write_onnx, open_onnx, 0
    ),
    ".stablehlo": Kind(
        "StableHLO",
        "in jax.export.deserialize, on CPU, CUDA and TPU",
        "stablehlo",
        ("flatbuffers",),
        write_stablehlo,
        open_stablehlo,
        1,
    ),
}


def kind_of(path: str) -> Kind:
    """The kind of a program, by the suffix of its name."""
    kind = KINDS[os.path.splitext(path)[1].lower()]
    if missing := [name for name in kind.libraries if importlib.util.find_spec(name) is None]:
        needs = f"{kind.title} is written with {', '.join(missing)}, not installed here"
        raise UserError(path, needs, f"run `{install(kind.extra)}`")
    return kind
