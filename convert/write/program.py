"""Networks as programs, which hold their weights and run without this package: traced, written, and run again.

X.onnx is for ONNX Runtime and others; X.stablehlo is for `jax.export.deserialize` and holds the program for CPU, CUDA
and TPU. Both take a batch of any size. Frameworks are imported inside functions.

Dimensions: B batch, h and w image height and width, C channels, K outputs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError, install

from ..containers.source import DATA
from ..layout import Json

INPUT, BATCH = "images", "batch"  # the name of the argument, and of its first axis
PLATFORMS = ("cpu", "cuda", "tpu")  # for which one file of StableHLO is lowered
OPSET = 23  # of ONNX
LARGEST = (1 << 31) - (64 << 20)  # bytes of weights in one file: protobuf and flatbuffers hold less than 2 GiB in all


class Forward:
    """The forward pass of a network in float32: `forward(images)`, [B, h, w, C] to [B, K], to be traced."""

    def __init__(self, config: NetworkConfig, arrays: Mapping[str, np.ndarray]):
        from vit_jax.machine.backend import configure_jax

        configure_jax()
        import jax
        import jax.numpy as jnp

        from vit_jax.config.trees import unflatten
        from vit_jax.models.build import definition

        shape = config.pixels()
        assert shape is not None
        self.config, self.shape, self.nbytes = config, shape, sum(4 * array.size for array in arrays.values())
        with on_cpu():
            self.definition = definition(config)
            self.tree = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), unflatten(arrays))

    def __call__(self, images: Any) -> Any:
        from vit_jax.models.state import merge

        return merge(self.definition, self.tree)(images)

    def computed(self, images: np.ndarray, dtype: str = "float32") -> np.ndarray:
        """Its outputs for images, computed by jax in this dtype."""
        import jax

        from vit_jax.models.build import definition
        from vit_jax.models.state import merge

        with on_cpu(dtype):
            made = definition(self.config, np.dtype(dtype), np.dtype(dtype))
            tree = jax.tree.map(lambda x: x.astype(dtype), self.tree)
            return np.asarray(jax.jit(lambda tree, images: merge(made, tree)(images))(tree, images.astype(dtype)))


@dataclass(frozen=True)
class Kind:
    """A kind of program: how it is called, the libraries that write it, and the extra that installs these.

    `write(forward, outputs, path)` writes a file (and one beside it, where it is large), its outputs named; it returns
    what a user of the file has to know of the kind. `open(path)` gives the function that the file holds.
    """

    title: str
    runs: str  # where it runs
    extra: str
    libraries: tuple[str, ...]
    write: Callable[[Forward, str, Path], Json]
    open: Callable[[Path], Callable[[np.ndarray], np.ndarray]]

    def versions(self) -> dict[str, str]:
        """The versions of the libraries that take part."""
        return {name: metadata.version(name) for name in ("jax", *self.libraries)}


def kind_of(path: str) -> Kind:
    """The kind of a program, by the suffix of its name.

    Raises:
        UserError: where a library that writes it is missing.
    """
    kind = KINDS[os.path.splitext(path)[1].lower()]
    if missing := [name for name in kind.libraries if importlib.util.find_spec(name) is None]:
        needs = f"{kind.title} is written with {', '.join(missing)}, not installed here"
        raise UserError(path, needs, f"run `{install(kind.extra)}`")
    return kind


def _write_onnx(forward: Forward, outputs: str, path: Path) -> Json:
    """Write an ONNX file; weights beyond LARGEST go into a file beside it."""
    import jax
    import jax2onnx
    import onnx_ir

    # Where a function of jax is compiled inside another, jax2onnx fails on jax 0.12; the trace then holds no such call.
    with _silence(), _restore_jax(), on_cpu(), jax.disable_jit():
        model = jax2onnx.to_onnx(
            forward,
            inputs=[(BATCH, *forward.shape)],
            input_names=[INPUT],
            output_names=[outputs],
            model_name="network",
            opset=OPSET,
            return_mode="ir",
        )
    beside = f"{path.name}{DATA}" if forward.nbytes > LARGEST else None
    onnx_ir.save(model, path, external_data=beside)
    return {"opset": OPSET}


def _open_onnx(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """An ONNX file as a function, run by ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run(None, {INPUT: images})[0])


def _write_stablehlo(forward: Forward, outputs: str, path: Path) -> Json:
    """Write a file of jax.export. Raises UserError on more weights than it can hold."""
    import jax
    import jax.numpy as jnp
    from jax import export

    if forward.nbytes > LARGEST:
        size = f"{forward.nbytes / 1e9:.1f} GB of weights are more than a file of StableHLO holds"
        raise UserError(path.name, f"{size} ({LARGEST / 1e9:.1f} GB)", "write X.onnx, with weights in a file beside it")
    with on_cpu():
        (batch,) = export.symbolic_shape(BATCH)
        images = jax.ShapeDtypeStruct((batch, *forward.shape), jnp.float32)
        exported = export.export(jax.jit(forward), platforms=PLATFORMS)(images)
        path.write_bytes(exported.serialize())
    return {"platforms": list(PLATFORMS), "calling_convention": exported.calling_convention_version}


def open_stablehlo(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """A file of jax.export as a function, run by jax on the CPU."""
    import jax
    from jax import export

    exported = export.deserialize(bytearray(path.read_bytes()))

    def run(images: np.ndarray) -> np.ndarray:
        def program(images: Any) -> Any:  # compiled for this call alone: that holds the weights once more
            return exported.call(images)

        with on_cpu(), _without_cache():
            return np.asarray(jax.jit(program)(images))

    return run


KINDS = {  # by suffix
    ".onnx": Kind(
        "ONNX", "in ONNX Runtime and others", "onnx", ("jax2onnx", "onnx_ir", "onnxruntime"), _write_onnx, _open_onnx
    ),
    ".stablehlo": Kind(
        "StableHLO",
        "in jax.export.deserialize, on CPU, CUDA and TPU",
        "stablehlo",
        ("flatbuffers",),
        _write_stablehlo,
        open_stablehlo,
    ),
}


@contextlib.contextmanager
def on_cpu(dtype: str = "float32") -> Iterator[None]:
    """jax on the processor: other devices may round products to less than float32."""
    import jax

    with jax.enable_x64(dtype == "float64"), jax.default_device(jax.devices("cpu")[0]):
        yield


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    """Without adding what is compiled to the user's cache of compiled programs."""
    import jax

    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 1e9)
    try:
        yield
    finally:
        jax.config.update(name, before)


@contextlib.contextmanager
def _restore_jax() -> Iterator[None]:
    """With jax's own functions afterwards, of which jax2onnx replaces some for good, such as jax.numpy.cumsum."""
    import jax

    before = {module: dict(vars(module)) for module in (jax.numpy, jax.lax, jax.nn, jax.random, jax.image)}
    try:
        yield
    finally:
        for module, names in before.items():
            for name, value in names.items():
                if vars(module).get(name) is not value:
                    setattr(module, name, value)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without what jax2onnx prints: warnings, and tracebacks of attempts that it repeats in another way."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
