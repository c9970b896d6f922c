"""Programs that take pixels of any size: what they make of them is Pillow's to the bit, and what they answer predict's.

Faults that other programs have were measured beforehand; each is planted here, and has to be seen.
"""

import json
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from flax import nnx
from PIL import Image

import vit_jax
from convert.write.program import preprocess
from convert.write.program.interface import as_run_prepares
from convert.write.program.stablehlo import open_stablehlo
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import CheckFailed, UserError
from vit_jax.models.vit_config import ViTConfig

slow = pytest.mark.slow
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EDGES = [(1, 1), (1, 300), (300, 1), (2, 1000), (600, 20), (20, 600), (32, 32), (33, 32), (64, 128)]
FITS = {"stretch": ("stretch", 0), "crop": ("crop", 0), "crop of larger": ("crop", 40), "pad": ("pad", 0)}


class Numpy:
    """The library of arrays that is numpy: see convert/write/program/preprocess.py."""

    def __getattr__(self, name):
        return getattr(np, name)

    def constant(self, value, dtype):
        return np.array(value, dtype)

    def length(self, x, axis):
        return np.int64(x.shape[axis])

    def indices(self, x, axis):
        return self.arange(x.shape[axis])

    def arange(self, count):
        return np.arange(count, dtype="float64")

    def added_up(self, scale, axis):
        sums = np.add.accumulate(np.array([scale * 0.5, *[scale] * (max(axis.start, 0) + axis.made - 1)]))
        return sums[np.maximum(np.arange(axis.made) + axis.start, 0)]

    def cond(self, test, yes, no):
        return yes() if test else no()


def prepares(kernel, fit="stretch", image=(32, 32), channels=3, trim=(0, 0)):
    fit, size = FITS[fit]
    return Preprocess(image, channels, fit, size, kernel, 200, MEAN[:channels], STD[:channels], trim=trim)


def drawn(count, most, seed=0):
    """(height, width) of so many images: as often small as large, of any aspect."""
    sides = np.exp(np.random.default_rng(seed).uniform(0, np.log(most), (count, 2))).round().astype(int)
    return [tuple(map(int, each)) for each in sides]


def noise(size, channels=3, batch=1):
    return np.random.default_rng(sum(size)).integers(0, 256, (batch, *size, channels), np.uint8)


def by_pillow(c, pixels):
    return np.stack([c.apply(Image.fromarray(each[..., 0] if c.channels == 1 else each)) for each in pixels])


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("kernel", ["bicubic", "bilinear", "nearest"])
def test_the_formula_is_pillows_to_the_bit(kernel, fit):
    for size in EDGES + drawn(20, 400):
        for c in (prepares(kernel, fit), prepares(kernel, fit, (14, 45), 1, trim=(3, 1))):
            pixels = noise(size, c.channels)
            assert np.array_equal(preprocess.fit(Numpy(), pixels, c), by_pillow(c, pixels)), size


@slow
@pytest.mark.parametrize("side", [224, 32])
@pytest.mark.parametrize("kernel", ["bicubic", "bilinear"])
@pytest.mark.parametrize("library", ["ONNX Runtime", "jax"])
def test_two_hundred_sizes_are_pillows_to_the_bit_in_each_runtime(library, kernel, side):
    of_fit = {fit: (prepares(kernel, fit, (side, side)), {}) for fit in FITS}
    run = {fit: (in_onnx_runtime if library == "ONNX Runtime" else in_jax)(c) for fit, (c, _) in of_fit.items()}
    for i, size in enumerate(EDGES + drawn(191 if library == "ONNX Runtime" else 31, 1200)):
        fit = [*FITS][i % len(FITS)]
        pixels = noise(size)
        assert np.array_equal(run[fit](pixels), by_pillow(of_fit[fit][0], pixels)), (fit, size)


def in_onnx_runtime(c):
    """`fit` of any pixels, as a graph that ONNX Runtime runs."""
    ort, ir = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx_ir")
    from convert.write.program.onnx_arrays import Array, OnnxArrays

    shape, xp = ir.Shape(["batch", "height", "width", c.channels]), OnnxArrays("preprocess")
    pixels = ir.Value(name="pixels", shape=shape, type=ir.TensorType(ir.DataType.UINT8))
    made = preprocess.fit(xp, Array(xp, pixels, "uint8"), c).value
    made.shape = ir.Shape(["batch", *c.image, c.channels])
    graph = ir.Graph([pixels], [made], nodes=xp.nodes, opset_imports={"": 18}, name="fit")
    model = ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, {"pixels": given})[0]


def in_jax(c):
    """`fit` of any pixels, exported once with free sizes."""
    import jax
    from jax import export

    from convert.write.program.jax_arrays import JaxArrays

    with jax.enable_x64(True):
        given = jax.ShapeDtypeStruct(export.symbolic_shape(f"b, h, w, {c.channels}"), "uint8")
        exported = export.export(jax.jit(lambda x: preprocess.fit(JaxArrays(), x, c)))(given)
    return lambda pixels: np.asarray(exported.call(pixels))


@pytest.mark.parametrize("kernel", ["bicubic", "bilinear", "nearest"])
def test_nodes_of_onnx_compute_the_formula(kernel):
    for fit in FITS:
        c = prepares(kernel, fit, trim=(2, 0))
        run = in_onnx_runtime(c)
        for size in EDGES + drawn(8, 300):
            assert np.array_equal(run(noise(size)), by_pillow(c, noise(size))), (fit, size)
        for empty in ((0, 5), (5, 0)):
            with pytest.raises(Exception, match="Integer division by zero"):
                run(np.zeros((1, *empty, 3), np.uint8))


# ------------------------------------------------------------------------------------------ faults


def keys(a):
    """Keys' cubic kernel, which is Pillow's with a = -0.5 and the default of ONNX and torch with -0.75."""

    def kernel(xp, x):
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    return kernel


def edges_repeated(xp, indices, length, axis, kernel):
    """exclude_outside=0: pixels beyond an edge count as those at it, and weights are not made to sum to 1 without."""
    beyond = int(3 * max(1, length / axis.resized)) + 1
    wide = preprocess_weights(xp, np.arange(-beyond, length + beyond) + 0.0, length, axis, kernel)
    inside = wide[:, beyond:-beyond].copy()
    inside[:, 0] += wide[:, :beyond].sum(1)
    inside[:, -1] += wide[:, -beyond:].sum(1)
    return inside


def asymmetric(xp, indices, length, axis, kernel):
    """coordinate_transformation_mode=asymmetric: no half of a pixel."""
    return preprocess_weights(xp, indices + 0.5 - 0.5 * length / axis.resized, length, axis, kernel)


def align_corners(xp, indices, length, axis, kernel):
    """The first and the last pixel stay where they are."""
    scale = (length - 1) / max(axis.resized - 1, 1) / (length / axis.resized)
    return preprocess_weights(xp, (indices + 0.5 * scale) / max(scale, 1e-9) - 0.5, length, axis, kernel)


def without_antialias(xp, indices, length, axis, kernel):
    """The kernel is not stretched where an image becomes smaller, as OpenVINO and TensorRT have it."""
    x = np.abs(indices - (np.arange(axis.made) + axis.start + 0.5)[:, None] * length / axis.resized + 0.5)
    x = preprocess.KERNELS[kernel](xp, x)
    return x / x.sum(1, keepdims=True)


def coarse(xp, indices, length, axis, kernel):
    """Weights of float16 in place of 22 bits."""
    return preprocess_weights(xp, indices, length, axis, kernel).astype("float16").astype("float64")


preprocess_weights = preprocess.weights
FAULTS = {
    "a of -0.75": lambda patch: patch.setitem(preprocess.KERNELS, "bicubic", keys(-0.75)),
    "edges repeated": lambda patch: patch.setattr(preprocess, "weights", edges_repeated),
    "asymmetric": lambda patch: patch.setattr(preprocess, "weights", asymmetric),
    "corners aligned": lambda patch: patch.setattr(preprocess, "weights", align_corners),
    "no antialias": lambda patch: patch.setattr(preprocess, "weights", without_antialias),
    "coarse weights": lambda patch: patch.setattr(preprocess, "weights", coarse),
    "rounded once": lambda patch: patch.setattr(preprocess, "horizontal_pass", lambda xp, x, w: x @ w.T),
    "rounded down": lambda patch: patch.setattr(preprocess, "grey_levels", lambda xp, x: np.clip(np.floor(x), 0, 255)),
    "not clipped": lambda patch: patch.setattr(preprocess, "grey_levels", lambda xp, x: np.floor(x + 0.5)),
    "passes in the other order": lambda patch: patch.setattr(Numpy, "cond", lambda xp, test, yes, no: no()),
    "crop of transformers": lambda patch: patch.setattr(Numpy, "round", lambda xp, x: np.floor(x), raising=False),
    "colours reversed": lambda patch: patch.setattr(
        preprocess, "normalise", lambda xp, x, c: normalise(xp, x[..., ::-1], c)
    ),
    "no mean": lambda patch: patch.setattr(
        preprocess, "normalise", lambda xp, x, c: normalise(xp, x, c) + np.float32(c.mean[0])
    ),
    "halves for mean and std": lambda patch: patch.setattr(
        preprocess, "normalise", lambda xp, x, c: (x.astype("float32") / 255 - 0.5) / 0.5
    ),
}  # fmt: skip
normalise = preprocess.normalise


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_that_other_programs_have_is_seen(fault, monkeypatch):
    sizes = [(101, 83), (83, 40), (333, 51), (20, 21), (35, 32)]

    def apart():
        pairs = [(prepares("bicubic", fit), noise(size)) for fit in ("stretch", "crop") for size in sizes]
        made = (np.abs(preprocess.as_network_takes(Numpy(), x, c) - as_run_prepares(c, x)).max() for c, x in pairs)
        return max(made)

    assert apart() < 1e-6
    FAULTS[fault](monkeypatch)
    assert apart() > 0.01  # one grey level is 0.017


# ---------------------------------------------------------------------------------- whole programs


VIT = ViTConfig(image=16, channels=3, patch=4, classes=3, width=16, depth=1, heads=2, hidden=32, init_std=0.3)
STATED = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "background": 90}
NAMES = ["ant", "bee", "cat"]


@pytest.fixture(scope="module")
def network(quick_compilation):
    return vit_jax.ViT(VIT, rngs=nnx.Rngs(0))


def exported(network, path, **more):
    """A program of the network, and the network with its preprocessing as vit_jax loads it."""
    fields = STATED | more.pop("fields", {})
    weights = path.with_suffix(".safetensors")
    vit_jax.export(network, weights, fields=fields, class_names=NAMES)
    vit_jax.export(weights, path, **more)
    return vit_jax.load(weights)


def onnx_session(path):
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session, lambda pixels: session.run(None, {session.get_inputs()[0].name: pixels})[0]


def check_answers(run, net, sizes=((16, 16), (37, 90), (90, 17), (1, 40), (40, 1), (1, 1))):
    for size in sizes:
        pixels = noise(size, batch=2)
        assert run(pixels) == pytest.approx(net.logits(list(pixels)), abs=1e-5), size


@pytest.mark.parametrize(
    "fit, kind, activation",
    [
        ("stretch", "set", "sigmoid"),
        pytest.param("crop", "class", "softmax", marks=slow),
        pytest.param("pad", "number", "none", marks=slow),
    ],
)
def test_a_program_of_stablehlo_answers_as_predict_does_and_states_how(network, tmp_path, fit, kind, activation):
    net = exported(network, tmp_path / "x.stablehlo", fields={"fit": fit, "target": kind})
    check_answers(open_stablehlo(tmp_path / "x.stablehlo"), net, [(37, 90), (40, 1)])
    described = json.loads((tmp_path / "x.stablehlo.json").read_text())
    assert described["input"]["shape"] == ["batch", "height", "width", 3]
    assert described["jax"].endswith("of older ones nothing")
    stated = described["stated"]
    assert (stated["kind"], stated["labels"], stated["activation"]) == (kind, NAMES, activation)
    assert stated.get("thresholds") == ([0.5] * 3 if kind == "set" else None) and stated["least_batch"] == 1


@pytest.fixture(scope="module")
def in_onnx(network, tmp_path_factory):
    pytest.importorskip("jax2onnx")
    path = tmp_path_factory.mktemp("onnx") / "x.onnx"
    return path, exported(network, path, fields={"fit": "crop", "size": 20})


def test_a_program_of_onnx_answers_as_predict_does_and_states_how(in_onnx):
    path, net = in_onnx
    session, run = onnx_session(path)
    check_answers(run, net)
    stated = session.get_modelmeta().custom_metadata_map
    assert json.loads(stated["labels"]) == NAMES and stated["kind"] == "class" and stated["activation"] == "softmax"
    assert json.loads(stated["preprocess"]) == net.preprocess.to_dict() and stated["resized_as"].startswith("Pillow 13")
    assert (stated["opset"], stated["ir_version"], stated["calibration_temperature"]) == ("20", "9", "1.0")
    assert "CMYK" in stated["outside"] and "EXIF" in stated["outside"] and "65535" in stated["outside"]


def test_an_empty_batch_gives_no_answers_and_an_empty_image_an_error(in_onnx):
    """Before, an empty batch ended the process (SIGFPE)."""
    session, run = onnx_session(in_onnx[0])
    assert run(np.zeros((0, 30, 20, 3), np.uint8)).shape == (0, 3)
    assert session.get_modelmeta().custom_metadata_map["least_batch"] == "0"
    for size in ((0, 5), (5, 0)):
        with pytest.raises(Exception, match="preprocess"):
            run(np.zeros((1, *size, 3), np.uint8))


@pytest.mark.parametrize("opset", [18, pytest.param(23, marks=slow)])
def test_the_opset_is_chosen(network, tmp_path, opset):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("jax2onnx")
    net = exported(network, tmp_path / "x.onnx", opset=opset)
    model = onnx.load(tmp_path / "x.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == opset
    check_answers(onnx_session(tmp_path / "x.onnx")[1], net)


def test_a_program_of_prepared_images_takes_these(network, tmp_path):
    net = exported(network, tmp_path / "x.stablehlo", takes="images")
    images = np.random.default_rng(0).standard_normal((2, 16, 16, 3), np.float32)
    found = open_stablehlo(tmp_path / "x.stablehlo")(images)
    assert found == pytest.approx(np.asarray(net.model(images)), abs=1e-5)
    assert "preprocess" not in json.loads((tmp_path / "x.stablehlo.json").read_text())["stated"]


@pytest.mark.parametrize(
    "options",
    [
        {"rotary": "mixed", "pool": "mean"},
        *(pytest.param({"rotary": rotary}, marks=slow) for rotary in ("axial", "none")),
    ],
)
def test_a_network_without_stored_positions_takes_prepared_images_of_any_size(tmp_path, options):
    """Before, jax.export refused lengths that are free: tables of angles were made by numpy."""
    config = replace(VIT, position="none", rotary_places="indices" if "pool" in options else "centres", **options)
    network = vit_jax.ViT(config, rngs=nnx.Rngs(0))
    vit_jax.export(network, tmp_path / "x.stablehlo", takes="images-of-any-size")
    shape = json.loads((tmp_path / "x.stablehlo.json").read_text())["input"]["shape"]
    run = open_stablehlo(tmp_path / "x.stablehlo")
    assert shape == ["batch", "4*rows", "4*columns", 3]
    for size in ((16, 16), (4, 36)):
        images = np.random.default_rng(0).standard_normal((2, *size, 3), np.float32)
        assert run(images) == pytest.approx(np.asarray(network(images)), abs=1e-5)


def test_a_program_that_prepares_pixels_otherwise_is_not_written(network, tmp_path, monkeypatch):
    monkeypatch.setattr(preprocess, "normalise", lambda xp, x, c: normalise(xp, x, c) * np.float32(1.01))
    with pytest.raises(CheckFailed, match="computes other outputs than ours"):
        exported(network, tmp_path / "x.stablehlo")
    assert not (tmp_path / "x.stablehlo").exists()


def test_what_a_program_cannot_be_is_said(network, tmp_path, convert):
    vit_jax.export(network, tmp_path / "bare.safetensors")
    refused = {
        ("x.stablehlo",): r"bare.safetensors: does not state the mean and std of its images, by which a program "
        r"prepares pixels; give `fields mean=.* or let it take images that are normalised already, with `takes im",
        ("x.stablehlo", "--takes", "png"): "takes png: .*; give pixels, images or images-of-any-size",
        ("x.stablehlo", "--opset", "18"): "opset 18: .*x.stablehlo is no ONNX",
        ("x.onnx", "--takes", "images-of-any-size"): r"x.onnx is of ONNX, and jax2onnx .*; write X.stablehlo",
        ("x.stablehlo", "--takes", "images-of-any-size"): "this network takes images of 16x16 alone",
        ("x.onnx", "--opset", "new"): "opset new: give a number from 18 to 23",
    }
    for (name, *flags), says in refused.items():
        code, _, error = convert(tmp_path / "bare.safetensors", tmp_path / name, *flags)
        assert code == 2 and re.search(says, error), error
        assert not (tmp_path / name).exists()
    with pytest.raises(UserError, match=r"normalised already, with `takes images`$"):
        vit_jax.export(network, tmp_path / "x.stablehlo")
    asked = {"takes": "images", "opset": 18, "weights": "int8", "calibrate": "x.npz", "onnxruntime_web": "x"}
    for (name, value), (path, to) in product(
        asked.items(), [("x.safetensors", "vit-jax"), ("x", "timm"), (None, "torch-ref")]
    ):
        with pytest.raises(UserError, match=rf"^{name} {value}: .* is no program"):
            vit_jax.export(network, path and tmp_path / path, to=to, **{name: value})
    assert {each.name for each in tmp_path.iterdir()} == {"bare.safetensors"}


@pytest.mark.parametrize("missing", ["onnxruntime", "jax2onnx"])
def test_a_missing_library_is_named_before_anything_is_read(network, tmp_path, monkeypatch, missing):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == missing else find(name, *a))
    with pytest.raises(UserError, match=rf"{missing}.*not installed here; run `.*onnx"):
        vit_jax.export(network, tmp_path / "x.onnx", fields=STATED)
