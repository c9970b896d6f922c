"""How an ONNX program holds its weights: float32, float16 that is read as float32, or int8 that is multiplied as int8.

In int8 each product with weights but the first and the last multiplies integers: static ranges of the activations, by
the least and the largest value over images of the training part, and a scale for each column of the weights. All else
stays float32: LayerNorm, softmax, GELU, Q K' and P V.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax.errors import UserError

from .linears import inner_products, products
from .network import LARGEST
from .onnx_file import save

if TYPE_CHECKING:
    import onnx_ir as ir

AT_A_TIME = 16  # images of a batch of calibration


def store_float16(model: ir.Model, title: str) -> None:
    """Store matrices and tables in float16, and read them as float32, in place; vectors stay as they are."""
    import onnx_ir as ir

    for value in list(model.graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or sum(n > 1 for n in tensor.shape.numpy()) < 2:
            continue
        with np.errstate(over="ignore"):
            half = tensor.numpy().astype(np.float16)
        if not np.isfinite(half).all():
            raise UserError(title, "a weight is beyond the range of float16, 65,504", "write float32")
        cast = ir.node("Cast", [value], {"to": ir.DataType.FLOAT}, name=f"{value.name}_as_float32")
        wide = cast.outputs[0]
        wide.name, wide.type, wide.shape = f"{value.name}_float32", value.type, value.shape
        value.replace_all_uses_with(wide)
        cast.replace_input_with(0, value)
        value.const_value, value.type = ir.tensor(half, name=value.name), ir.TensorType(ir.DataType.FLOAT16)
        model.graph.insert_before(model.graph[0], cast)


def compute_int8(model: ir.Model, images: np.ndarray, title: str) -> ir.Model:
    """A model that multiplies in int8: images float32 [n, H, W, C]."""
    from onnxruntime.quantization import QuantType, quantize_static

    from vit_jax.files.terminal import without_logs

    nodes = inner_products(model)
    if not nodes:
        what = f"of its {len(products(model))} layers the first and the last stay float32, and there is no other"
        raise UserError(title, what, "give `weights float16`")
    for number, node in enumerate(nodes):
        node.name = f"int8_{number}"
    (takes,) = model.graph.inputs
    with tempfile.TemporaryDirectory() as folder, without_logs():  # of ONNX Runtime's tools
        given, made = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        save(model, given)
        large = sum(file.stat().st_size for file in Path(folder).iterdir()) > LARGEST
        quantize_static(
            given,
            made,
            _reader(takes.name or "", images),
            op_types_to_quantize=sorted({node.op_type for node in nodes}),
            nodes_to_quantize=[node.name for node in nodes],
            per_channel=True,
            # Activations of 8 bits times weights of 7: two such products fit the 16 bits in which CPUs without VNNI add
            # them, where weights of 8 bits would give other, saturated, sums.
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,
            use_external_data_format=large,
            extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
        )
        return _loaded(made)


def _loaded(path: Path) -> ir.Model:
    """A model in memory, of whose file nothing is read later."""
    import onnx_ir as ir
    from onnx_ir import external_data

    model = ir.load(path)
    external_data.load_to_model(model)
    return model


def _reader(name: str, images: np.ndarray) -> Any:
    """What quantize_static reads images from."""
    from onnxruntime.quantization import CalibrationDataReader

    parts = (images[i : i + AT_A_TIME] for i in range(0, len(images), AT_A_TIME))

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            part = next(parts, None)
            return None if part is None else {name: part}

    return Reader()
