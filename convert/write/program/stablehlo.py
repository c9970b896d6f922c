"""StableHLO files of jax.export, one for CPU, CUDA and TPU: a network with its preprocessing, written and opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import UserError

from ...layout import Json
from .interface import Interface
from .jax_arrays import JaxArrays
from .network import LARGEST, Forward, on_cpu
from .preprocess import as_network_takes

PLATFORMS = ("cpu", "cuda", "tpu")  # for which one file is lowered


def write_stablehlo(forward: Forward, interface: Interface, path: Path) -> Json:
    """Write a file of jax.export. Raises UserError on more weights than it can hold."""
    import jax
    import jax.numpy as jnp
    from jax import export

    with on_cpu("float64"):  # sizes and weights of pixels need 64 bits; the network stays at 32
        shape = export.symbolic_shape(", ".join(map(str, interface.axes)))
        given = jax.ShapeDtypeStruct(shape, jnp.uint8 if interface.preprocess else jnp.float32)
        return write_function(_whole(forward, interface), [given], path, forward.nbytes)


def write_function(function: Callable[..., Any], given: Sequence[Any], path: Path, nbytes: int) -> Json:
    """Write a function of arrays."""
    import jax
    from jax import export

    if nbytes > LARGEST:
        size = f"{nbytes / 1e9:.1f} GB of weights are more than a file of StableHLO holds"
        raise UserError(path.name, f"{size} ({LARGEST / 1e9:.1f} GB)", "write X.onnx, with weights in a file beside it")
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*given)
    path.write_bytes(exported.serialize())
    return {
        "platforms": list(PLATFORMS),
        "calling_convention": exported.calling_convention_version,
        "jax": f"{jax.__version__} or newer; jax itself promises this for half a year, and of older ones nothing",
    }


def _whole(forward: Forward, interface: Interface) -> Callable[[Any], Any]:
    """What a program computes of its argument."""

    def program(given: Any) -> Any:
        xp, c = JaxArrays(), interface.preprocess
        return forward(given if c is None else as_network_takes(xp, given, c))

    return program


def open_stablehlo(path: Path) -> Callable[..., np.ndarray]:
    """A file of jax.export as a function of its arguments, run by jax on the CPU."""
    import jax
    from jax import export

    exported = export.deserialize(bytearray(path.read_bytes()))

    def run(*given: np.ndarray) -> np.ndarray:
        def program(*given: Any) -> Any:  # compiled for this call alone: that holds the weights once more
            return exported.call(*given)

        with on_cpu(), _without_cache():
            return np.asarray(jax.jit(program)(*given))

    return run


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
