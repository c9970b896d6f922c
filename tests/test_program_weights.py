"""Smaller ONNX programs: linear maps that tools find, float16, int8, what is measured of them, and what is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("jax2onnx", reason="jax2onnx cannot be imported, so no program is written")

import onnx
import onnx_ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import vit_jax
from convert.write.program.linears import inner_products, name_products, products
from tests.test_export import NORMAL, network
from vit_jax.errors import UserError
from vit_jax.models.resnet_config import ResNetConfig
from vit_jax.models.vit_config import ViTConfig

slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("quick_compilation")
VIT = ViTConfig(image=8, channels=1, patch=4, classes=5, width=16, depth=1, heads=2, hidden=32)
RNG = np.random.default_rng(0)
W, C = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=4).astype(np.float32)


def node(kind, inputs, **attributes):
    return helper.make_node(kind, inputs, ["y"], name=kind, **attributes)


GRAPHS = {  # {case: (nodes, initializers, shape of x, the kinds of nodes that are left)}
    "gemm without a bias": ([node("Gemm", ["x", "w"])], {"w": W}, (2, 3), ["MatMul"]),
    "gemm whose bias is an empty zero": (
        [node("Gemm", ["x", "w", "c"], beta=0.0)], {"w": W, "c": np.float32(0)}, (2, 3), ["MatMul"]
    ),
    "gemm with a bias": ([node("Gemm", ["x", "w", "c"])], {"w": W, "c": C}, (2, 3), ["MatMul", "Add"]),
    "gemm of transposed weights": ([node("Gemm", ["x", "w"], transB=1)], {"w": W.T.copy()}, (2, 3), ["MatMul"]),
    "gemm of transposed images": ([node("Gemm", ["x", "w"], transA=1)], {"w": W}, (3, 2), ["Gemm"]),
    "gemm that scales": ([node("Gemm", ["x", "w"], alpha=0.5)], {"w": W}, (2, 3), ["Gemm"]),
    "linear einsum": ([node("Einsum", ["x", "w"], equation="btd,dv->btv")], {"w": W}, (2, 5, 3), ["MatMul"]),
    "einsum of a tied head": (
        [node("Einsum", ["x", "w"], equation="bd,vd->bv")], {"w": W.T.copy()}, (2, 3), ["MatMul"],
    ),
    "einsum that is no linear map": (
        [node("Einsum", ["x", "w"], equation="bd,dv->vb")], {"w": W}, (2, 3), ["Einsum"]
    ),
    "weights that nodes compute": (
        [helper.make_node("Transpose", ["v"], ["w"], perm=[1, 0]), node("MatMul", ["x", "w"])],
        {"v": W.T.copy()}, (2, 3), ["MatMul"],
    ),
    "a constant that would grow": (
        [helper.make_node("Expand", ["v", "n"], ["w"]), node("MatMul", ["x", "w"])],
        {"v": W[:1], "n": np.array([3, 4])}, (2, 3), ["Expand", "MatMul"],
    ),
}  # fmt: skip


def model_of(nodes, arrays, shape):
    out = {(3, 2): (2, 4), (2, 5, 3): (2, 5, 4)}.get(shape, (2, 4) if nodes[-1].op_type != "Einsum" else (None, None))
    made = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", shape), ("y", out)))
    graph = helper.make_graph(nodes, "graph", [x], [y], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(("nodes", "arrays", "shape", "left"), GRAPHS.values(), ids=GRAPHS)
def test_linear_maps_become_products_with_weights_that_compute_the_same(nodes, arrays, shape, left):
    model = onnx_ir.from_proto(model_of(nodes, arrays, shape))
    name_products(model)
    assert [each.op_type for each in model.graph] == left
    x, after = RNG.normal(size=shape).astype(np.float32), onnx_ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    found = [run(each.SerializeToString(), {"x": x}) for each in (model_of(nodes, arrays, shape), after)]
    np.testing.assert_allclose(*found, rtol=1e-6)


def run(model, given):
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, given)[0]


def written(config, path, **options):
    channels = getattr(config, "channels", 3)
    vit_jax.export(network(config), path, fields={k: [0.5] * channels for k in NORMAL}, takes="images", **options)
    return path


CONFIGS = {
    "vit": (VIT, 8),
    "convolutions in its stem, whose kernels are cut": (ViTConfig(**{**vars(VIT), "patch": 4, "stem": (4, 8)}), 10),
    "attention pool": (ViTConfig(**{**vars(VIT), "pool": "map"}), 14),
    "resnet, whose kernels are turned": (ResNetConfig(image=16, classes=3, stages=(1, 1, 1, 1), width=4, hidden=4), 18),
}


QUICK = ("vit", "convolutions in its stem, whose kernels are cut")


@pytest.mark.parametrize(
    ("config", "count"),
    [pytest.param(*case, marks=[slow] * (name not in QUICK), id=name) for name, case in CONFIGS.items()],
)
def test_all_products_with_weights_of_a_network_are_found(config, count, tmp_path):
    model = onnx_ir.load(written(config, tmp_path / "x.onnx"))
    kinds = [each.op_type for each in model.graph]
    assert "Gemm" not in kinds
    assert len(products(model)) == count, (len(products(model)), kinds)
    kernels = sum(len(each.shape) > 1 and max(each.shape[:-1]) > 1 for each in model.graph.initializers.values())
    assert len(inner_products(model)) == count - 2, kernels


@pytest.mark.parametrize("takes", ["pixels", pytest.param("images", marks=slow)])
def test_onnxruntimes_own_tools_make_our_files_smaller(takes, tmp_path):
    from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

    path, small = tmp_path / "x.onnx", tmp_path / "small.onnx"
    config = ViTConfig(**{**vars(VIT), "width": 64, "hidden": 128})
    vit_jax.export(network(config), path, fields={k: [0.5] for k in NORMAL}, takes=takes)
    pixels = RNG.integers(0, 256, (16, 8, 8, 1), np.uint8)
    given = {takes: pixels if takes == "pixels" else (pixels / 255).astype(np.float32)}

    class Reader(CalibrationDataReader):
        parts = iter([given])

        def get_next(self):
            return next(self.parts, None)

    expected = run(path, given)
    whole = {"reduce_range": True}  # without it products saturate on processors that lack VNNI
    matmuls = {"op_types_to_quantize": ["MatMul"], "per_channel": True}
    for tool in (
        lambda: quantize_dynamic(path, small, **whole),
        lambda: quantize_static(path, small, Reader(), **matmuls, **whole),
    ):
        tool()
        assert small.stat().st_size < path.stat().st_size
        found = run(small, given)
        assert 0 < np.abs(found - expected).max() < 0.2 * np.abs(expected).max()


@pytest.fixture
def as_int8(digits_run, tmp_path, convert):
    """The files of the digits as int8 and as float32."""
    for weights in ("float32", "int8"):
        assert convert(digits_run, tmp_path / f"{weights}.onnx", "--weights", weights)[0] == 0
    return tmp_path


def test_int8_multiplies_inner_layers_alone_and_states_what_that_changes(as_int8, digits_run):
    model = onnx.load(as_int8 / "int8.onnx")
    makers = {name: each for each in model.graph.node for name in each.output}
    arrays = {array.name: array for array in model.graph.initializer}
    kinds = {name: array.data_type for name, array in arrays.items()}
    # Of 7 bits: CPUs without VNNI add two products in 16 bits, which those of 8 would overflow.
    whole = [numpy_helper.to_array(arrays[name]) for name, kind in kinds.items() if kind == TensorProto.INT8]
    assert max(int(np.abs(x.astype(int)).max()) for x in whole) == 64
    of_int8 = []
    for each in model.graph.node:
        if each.op_type == "MatMul" and not each.name.startswith("preprocess"):
            left, right = (makers.get(name) for name in each.input)
            of_int8.append(
                bool(right) and right.op_type == "DequantizeLinear" and kinds[right.input[0]] == TensorProto.INT8
            )
            assert of_int8[-1] == (left is not None and left.op_type == "DequantizeLinear")
    assert not of_int8[0] and not of_int8[-1]
    assert sum(of_int8) == 6  # query, key, value, out, and two of the mlp: not Q K' and P V
    images = vit_jax.load(digits_run).task.open_data(vit_jax.load(digits_run).run).splits["validation"]
    pixels, labels = images.take(np.arange(len(images))), images.labels
    float32, int8 = (run(as_int8 / f"{name}.onnx", {"pixels": pixels}) for name in ("float32", "int8"))
    stated = json.loads((as_int8 / "int8.onnx.json").read_text())["weights"]
    measured = stated["measured"]
    assert stated["stored"] == "int8" and measured["images"] == len(images)
    assert measured["bytes"] == [(as_int8 / f"{name}.onnx").stat().st_size for name in ("float32", "int8")]
    assert measured["agreement"] == (float32.argmax(1) == int8.argmax(1)).mean() > 0.9
    assert np.allclose(measured["metrics"]["accuracy"], [(x.argmax(1) == labels).mean() for x in (float32, int8)])
    chances = [np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (float32, int8)]
    assert np.isclose(measured["largest_change"], np.abs(chances[0] - chances[1]).max(), atol=1e-5)
    alone = np.concatenate([run(as_int8 / "int8.onnx", {"pixels": each[None]}) for each in pixels[:8]])
    np.testing.assert_allclose(alone, int8[:8], atol=1e-5)  # ranges are static: no image counts for another


def test_float16_halves_matrices_alone_and_needs_no_data(tmp_path, capsys):
    config = ViTConfig(**{**vars(VIT), "width": 64, "hidden": 256})
    sizes = [written(config, tmp_path / f"{w}.onnx", weights=w).stat().st_size for w in ("float32", "float16")]
    assert sizes[1] < 0.65 * sizes[0]
    assert "not measured on data: " in " ".join(capsys.readouterr().err.split())
    arrays = {each.name: each for each in onnx.load(tmp_path / "float16.onnx").graph.initializer}
    for each in arrays.values():
        if each.data_type == TensorProto.FLOAT:
            assert sum(n > 1 for n in each.dims) < 2
        elif each.data_type == TensorProto.FLOAT16:  # not [1, D] either, such as a token
            assert sum(n > 1 for n in each.dims) > 1
    x = RNG.normal(size=(4, 8, 8, 1)).astype(np.float32)
    found = [run(tmp_path / f"{w}.onnx", {"images": x}) for w in ("float32", "float16")]
    assert 0 < np.abs(found[0] - found[1]).max() < 5e-3 * np.abs(found[0]).max()


def test_weights_beyond_float16_are_refused(tmp_path):
    model = network(VIT)
    model.head.kernel.set_value(model.head.kernel[...] + 1e5)
    with pytest.raises(UserError, match=r"a weight is beyond the range of float16.*write float32"):
        vit_jax.export(model, tmp_path / "x.onnx", fields={k: [0.5] for k in NORMAL}, weights="float16")
    assert not [*tmp_path.iterdir()]


def images_of(path, channels, names):
    pixels, labels = RNG.integers(0, 256, (40, 8, 8, channels), np.uint8), np.arange(40) % len(names)
    np.savez(path, train_images=pixels, train_labels=labels, class_names=np.array(names))
    return path


DIGITS = [str(i) for i in range(10)]
REFUSED = {  # {case: (of the run, to a file, flags, what is said)}
    "no data": (False, "x.onnx", ["--weights", "int8"], "holds weights alone, so there are no images to calibrate by"),
    "other classes": (False, "x.onnx", ["--weights", "int8", "--calibrate", "letters.npz"], "data.source letters.npz"),
    "other channels": (
        False, "x.onnx", ["--weights", "int8", "--calibrate", "colours.npz"], "its images have 3 channels, and",
    ),
    "other data than the run's": (
        True, "x.onnx", ["--weights", "int8", "--calibrate", "grey.npz"], "is not the data that",
    ),
    "not of StableHLO": (True, "x.stablehlo", ["--weights", "int8"], "weights int8: x.stablehlo is no X.onnx"),
    "no such kind": (True, "x.onnx", ["--weights", "int4"], "give float32, float16, int8"),
    "nothing to calibrate": (True, "x.onnx", ["--calibrate", "grey.npz"], "nothing is calibrated of float32"),
}  # fmt: skip


@pytest.mark.parametrize(("of_run", "to", "flags", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_calibrated_is_refused_in_one_sentence(
    of_run, to, flags, says, digits_run, tmp_path, monkeypatch, convert
):
    monkeypatch.chdir(tmp_path)
    (
        images_of("letters.npz", 1, list("abcdefghijkl")),
        images_of("colours.npz", 3, DIGITS),
        images_of("grey.npz", 1, DIGITS),
    )
    source = str(digits_run)
    if not of_run:
        vit_jax.export(digits_run, source := "weights.safetensors")
    before = sorted(tmp_path.rglob("*"))
    code, _, error = convert(source, to, *flags)
    assert code == 2 and says in " ".join(error.split()), error
    assert sorted(tmp_path.rglob("*")) == before


def test_weights_of_no_run_are_calibrated_by_images_that_are_named(digits_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vit_jax.export(digits_run, "weights.safetensors")
    images_of("grey.npz", 1, DIGITS)
    vit_jax.export("weights.safetensors", "x.onnx", weights="int8", calibrate="grey.npz")
    measured = json.loads((tmp_path / "x.onnx.json").read_text())["weights"]["measured"]
    assert measured["images"] == 20 and measured["of"] == "20 other images of train"
