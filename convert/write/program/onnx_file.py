"""ONNX files: a network traced by jax2onnx, its nodes rewritten, and those of its preprocessing put in front.

Dimensions: B batch, h and w height and width of images as given, H and W as the network takes them, C channels.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...containers.source import DATA
from ...layout import Json
from .interface import BATCH, IMAGES, PIXELS, Interface, as_texts
from .linears import name_products
from .network import LARGEST, Forward, on_cpu
from .onnx_arrays import Array, OnnxArrays
from .preprocess import as_network_takes

if TYPE_CHECKING:
    import onnx_ir as ir


def write_onnx(forward: Forward, interface: Interface, path: Path) -> Json:
    """Write an ONNX file; weights beyond LARGEST go into a file beside it."""
    return finish(trace(forward, interface), interface, path)


def finish(model: ir.Model, interface: Interface, path: Path) -> Json:
    """Write the model of a network of float32 [B, H, W, C] as a file with this interface."""
    from onnx.helper import find_min_ir_version_for, make_opsetid

    if interface.preprocess:
        take_pixels(model, interface)
    take_empty_batches(model)
    model.ir_version = find_min_ir_version_for([make_opsetid("", interface.opset)])
    needs = {"opset": interface.opset, "ir_version": model.ir_version}
    model.metadata_props.update(as_texts({**interface.stated, **needs}))
    save(model, path)
    return needs


def save(model: ir.Model, path: Path) -> None:
    """Write a model; weights beyond LARGEST go into a file beside it."""
    import onnx_ir

    arrays = [value.const_value for value in model.graph.initializers.values()]
    large = sum(array.nbytes for array in arrays if array is not None) > LARGEST
    with _silence():
        onnx_ir.save(model, path, external_data=f"{path.name}{DATA}" if large else None)


def trace(forward: Forward, interface: Interface) -> ir.Model:
    """The network as a model whose input is IMAGES, float32 [B, H, W, C], with a free B; its linear maps are MatMul."""
    if interface.opset not in forward.traced:
        inputs = {IMAGES: (BATCH, *forward.shape)}
        forward.traced[interface.opset] = trace_function(forward, inputs, [interface.output], interface.opset)
    return forward.traced[interface.opset].clone()


def trace_function(function: Callable[..., Any], inputs: Mapping[str, Any], outputs: list[str], opset: int) -> ir.Model:
    """A function of arrays as a model; its linear maps are MatMul."""
    import jax
    import jax2onnx

    # Where a function of jax is compiled inside another, jax2onnx fails on jax 0.12; the trace then holds no such call.
    with _silence(), _restore_jax(), on_cpu(), jax.disable_jit():
        model = jax2onnx.to_onnx(
            function,
            inputs=[*inputs.values()],
            input_names=[*inputs],
            output_names=outputs,
            model_name="network",
            opset=opset,
            return_mode="ir",
        )
    name_products(model)
    return model


def take_empty_batches(model: ir.Model) -> None:
    """Compute on one image at least, and leave it out again: ONNX Runtime would end by SIGFPE on an empty batch."""
    (old,), (outputs,) = model.graph.inputs, model.graph.outputs
    assert old.name and old.dtype and old.shape
    name, dtype, rank = old.name, old.dtype.numpy().name, len(old.shape)
    old.name = f"{name}_at_least_one"
    given, first, last = _value(name, old.shape, old.dtype), OnnxArrays("batch"), OnnxArrays("outputs")
    batch = first.length(Array(first, given, dtype), 0)
    missing = first.maximum(1 - batch, first.constant(0, "int64"))
    padding = missing * first.constant([*[0] * rank, 1, *[0] * (rank - 1)], "int64")  # before each axis, after each
    _put_first(model, given, first.node("Pad", Array(first, given, dtype), padding, dtype=dtype), first.nodes)

    ends, zero = last.expand_dims(Array(last, batch.value, "int64"), 0), last.constant([0], "int64")
    made = last.node("Slice", Array(last, outputs, "float32"), zero, ends, zero, dtype="float32").value
    made.name, outputs.name, made.shape = outputs.name, f"{outputs.name}_of_all", outputs.shape
    model.graph.extend(last.nodes)
    model.graph.outputs[0] = made


def take_pixels(model: ir.Model, interface: Interface) -> None:
    """Take pixels, uint8 [B, h, w, C] of any size, and make them the images that a model takes."""
    import onnx_ir as ir

    assert interface.preprocess is not None
    pixels, xp = _value(PIXELS, ir.Shape(interface.axes), ir.DataType.UINT8), OnnxArrays("preprocess")
    images = as_network_takes(xp, Array(xp, pixels, "uint8"), interface.preprocess)
    images.value.name, model.graph.inputs[0].name = IMAGES, f"{IMAGES}_given"
    _put_first(model, pixels, images, xp.nodes)


def _value(name: str, shape: ir.Shape | None, dtype: ir.DataType) -> ir.Value:
    import onnx_ir as ir

    return ir.Value(name=name, shape=shape, type=ir.TensorType(dtype))


def _put_first(model: ir.Model, given: ir.Value, made: Array, nodes: list[ir.Node]) -> None:
    """Let a model take `given`, of which nodes make what it took before."""
    old = model.graph.inputs[0]
    made.value.shape = old.shape
    old.replace_all_uses_with(made.value)
    model.graph.inputs[0] = given
    model.graph.insert_before(model.graph[0], nodes)


def open_onnx(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """An ONNX file as a function of its argument, run by ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (takes,) = session.get_inputs()
    return lambda given: np.asarray(session.run(None, {takes.name: given})[0])


def open_named(path: Path) -> Callable[..., np.ndarray]:
    """An ONNX file with several arguments as a function of these, in their order."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *given: np.asarray(session.run(None, dict(zip(names, given, strict=True)))[0])


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
    from vit_jax.files.terminal import without_logs

    with (
        without_logs(logging.CRITICAL),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
