"""Folders for transformers.js: against that library in Node where it is installed, and against predict."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from PIL import Image

import vit_jax
from convert.write.program.transformers_js import fitted
from vit_jax.errors import UserError
from vit_jax.models.transformer_config import TransformerConfig

# `npm install --ignore-scripts --prefix .venv @huggingface/transformers` puts it there.
MODULES = Path(os.environ.get("NODE_MODULES") or Path(sys.prefix, "node_modules"))
THEIRS = MODULES / "@huggingface/transformers/dist/transformers.node.mjs"
pytestmark = pytest.mark.usefixtures("quick_compilation")
NAMES = ["ant", "bee", "cat"]
NETWORKS = {  # {what: (fields of the network, how its pictures are prepared, size of a picture that is not resized)}
    "grey": ({"channels": 1}, {"fit": "stretch", "mean": 0.3, "std": 0.2}, (8, 12)),
    "cropped": ({"registers": 2, "pool": "mean"}, {"fit": "crop", "size": 12}, (12, 20)),
    "nearest": ({}, {"fit": "stretch", "interpolation": "nearest"}, (8, 12)),
}  # fmt: skip


def build(classes=3, **fields):
    """An untrained network."""
    sizes = {"image": (8, 12), "width": 16, "depth": 1, "heads": 2, "hidden": 32} | fields
    return vit_jax.build("vit-ti4", classes=classes, **sizes)


def made(what, place):
    """(the folder, the network as `load` opens it) of one of NETWORKS, whose logits are far apart."""
    pytest.importorskip("jax2onnx")
    fields, images, _ = NETWORKS[what]
    model = build(**fields)
    model.head.kernel[...] = model.head.kernel[...] + np.random.default_rng(0).normal(0, 0.3, (16, 3))
    vit_jax.export(model, place / f"{what}.safetensors", class_names=NAMES,
                   fields={"mean": [0.5, 0.4, 0.3], "std": [0.25, 0.2, 0.3]} | images)  # fmt: skip
    vit_jax.export(place / f"{what}.safetensors", place / what, to="transformers-js")
    return place / what, vit_jax.load(place / f"{what}.safetensors")


@pytest.fixture
def library():
    """transformers.js and Node, or the test is skipped."""
    if not THEIRS.exists() or not shutil.which("node"):
        pytest.skip(
            "transformers.js is not here: npm install --ignore-scripts --prefix .venv @huggingface/transformers"
        )


def node(tmp_path, script, *arguments):
    """What a script prints, as JSON; `lib` is transformers.js."""
    (tmp_path / "script.mjs").write_text(f"import * as lib from {json.dumps(str(THEIRS))};\n{script}")
    done = subprocess.run(["node", "script.mjs", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CLASSIFY = """
lib.env.allowRemoteModels = false; lib.env.localModelPath = process.argv[2] + '/';
const classify = await lib.pipeline('image-classification', process.argv[3]);
console.log(JSON.stringify(await Promise.all(process.argv.slice(4).map((p) => classify(p, {top_k: null})))));
"""
RESIZE = """
import fs from 'fs';
const [,, file, w, h, resample] = process.argv;
const image = await (await lib.RawImage.read(file)).resize(+w, +h, {resample: +resample});
console.log(JSON.stringify([...image.rgb().data]));
"""


@pytest.mark.parametrize("what", NETWORKS)
def test_pictures_that_need_no_resizing_get_the_answers_of_predict(what, library, tmp_path):
    """Also colours in a network of grey levels, by the library's own pipeline."""
    folder, net = made(what, tmp_path)
    rng, size = np.random.default_rng(1), NETWORKS[what][2]
    pictures = [Image.fromarray(rng.integers(*between, (*size, 3), np.uint8)) for between in ((0, 99), (0, 256))]
    pictures.append(Image.fromarray(rng.integers(99, 256, size, np.uint8)))  # grey
    for i, picture in enumerate(pictures):
        picture.save(tmp_path / f"{i}.png")
    found = node(tmp_path, CLASSIFY, str(folder.parent), folder.name, *(f"{i}.png" for i in range(3)))
    logits = net.logits([str(tmp_path / f"{i}.png") for i in range(3)]).astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    scores = [{each["label"]: each["score"] for each in one} for one in found]
    np.testing.assert_allclose([[one[name] for name in NAMES] for one in scores], expected, atol=1e-6)
    assert np.ptp(expected, 0).max() > 0.01  # they are not all alike


@pytest.mark.parametrize("interpolation, number", [("nearest", 0), ("bilinear", 2), ("bicubic", 3)])
@pytest.mark.parametrize("size", [(25, 37), (5, 9), (64, 17)])
def test_the_resizing_that_the_folder_measures_is_that_of_the_library(interpolation, number, size, library, tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "x.png")
    theirs = np.reshape(node(tmp_path, RESIZE, "x.png", "12", "8", str(number)), (8, 12, 3))
    preprocess = {"image": [8, 12], "fit": "stretch", "size": 0, "interpolation": interpolation}
    assert np.abs(fitted(picture, preprocess).astype(int) - theirs).max() <= 3  # sharp rounds its weights


def test_a_folder_states_how_far_its_answers_are_from_those_of_predict(tmp_path):
    folder, _ = made("cropped", tmp_path)
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {
        "README.md", "config.json", "preprocessor_config.json", "provenance.json", "onnx/model.onnx",
    }  # fmt: skip
    stated = json.loads((folder / "provenance.json").read_text())
    assert stated["input"]["shape"] == ["batch", 3, 8, 12] and stated["compared"]["difference"] < 1e-5
    rows = stated["resizing"]
    assert all(0 < row["probability"] <= 1 and row["levels"][0] > 10 for row in rows)
    readme = (folder / "README.md").read_text()
    assert all(f"| {row['probability']:.2g} | {row['same']} of {row['pictures']} |" in readme for row in rows)
    with pytest.raises(UserError, match="exists; choose another name"):
        vit_jax.export(build(), folder, to="transformers-js")


SMALLER = """
lib.env.allowRemoteModels = false; lib.env.localModelPath = process.argv[2] + '/';
const out = {};
for (const dtype of [undefined, 'fp32', 'fp16', 'q8']) {
  const classify = await lib.pipeline('image-classification', 'folder', dtype ? {dtype} : {});
  out[dtype ?? 'default'] = await Promise.all(process.argv.slice(3).map((p) => classify(p, {top_k: null})));
}
console.log(JSON.stringify(out));
"""


@pytest.mark.slow
def test_smaller_weights_are_those_of_a_program_by_the_names_of_the_library(digits_run, tmp_path, request):
    """By each of the library's dtypes; without one it takes the weights that were named first."""
    pytest.importorskip("jax2onnx")
    import onnxruntime as ort

    vit_jax.export(digits_run, tmp_path / "folder", to="transformers-js", weights=["int8", "float16"])
    stated = json.loads((tmp_path / "folder/provenance.json").read_text())["weights"]["measured"]
    sizes = {name: (tmp_path / "folder/onnx" / name).stat().st_size for name in
             ("model.onnx", "model_quantized.onnx", "model_fp16.onnx")}  # fmt: skip
    assert stated["int8"]["bytes"] == [sizes["model.onnx"], sizes["model_quantized.onnx"]]
    assert stated["float16"]["bytes"] == [sizes["model.onnx"], sizes["model_fp16.onnx"]]
    readme = (tmp_path / "folder/README.md").read_text()
    net = vit_jax.load(digits_run)
    images = net.task.open_data(net.run).splits["validation"].take(np.arange(12))
    for i, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(tmp_path / f"{i}.png")
    expected = {}
    for dtype, weights in (("fp32", "float32"), ("fp16", "float16"), ("q8", "int8")):
        vit_jax.export(digits_run, tmp_path / f"{weights}.onnx", weights=weights)
        logits = ort.InferenceSession(tmp_path / f"{weights}.onnx").run(None, {"pixels": images})[0].astype(np.float64)
        expected[dtype] = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        if weights != "float32":
            alone = json.loads((tmp_path / f"{weights}.onnx.json").read_text())["weights"]["measured"]
            assert stated[weights]["metrics"] == alone["metrics"]
            assert f"accuracy {alone['metrics']['accuracy'][0]:.4f} before" in readme
    assert np.abs(expected["q8"] - expected["fp32"]).max() > 1e-3
    request.getfixturevalue("library")
    found = node(tmp_path, SMALLER, str(tmp_path), *(f"{i}.png" for i in range(12)))
    for dtype, answers in found.items():
        scores = [{each["label"]: each["score"] for each in one} for one in answers]
        by_name = [[one[name] for name in net.class_names] for one in scores]
        np.testing.assert_allclose(by_name, expected["q8" if dtype == "default" else dtype], atol=1e-5)


REFUSED = {
    "unprepared": ({}, {}, {}, "state the mean and std of its images.*prepare them; give `fields mean=... std=...`"),
    "no head": ({"classes": 0}, {}, {}, "has no classes"),
    "sets": ({}, {"target": "set"}, {}, "its outputs are sets of labels.*; write X.onnx"),
    "numbers": ({"classes": 1}, {"target": "number"}, {}, "its outputs are numbers.*; write X.onnx"),
    "padded": ({}, {"fit": "pad"}, {}, "prepared by fit pad.*no setting for; write X.onnx"),
    "a crop of an oblong": ({}, {"fit": "crop", "size": 8}, {}, "fit crop, size 8 to images of 8x12"),
    "two channels": ({"channels": 2}, {}, {}, "have 2 channels"),
    "a file": ({}, {}, {"path": "x.pt"}, "x.pt: is the name of a file"),
    "another dtype": ({}, {}, {"dtype": "float16"}, "computes in float32"),
    "int8 of no data": ({}, {}, {"weights": ["float16", "int8"]}, "so there are no images to calibrate by"),
    "weights named twice": ({}, {}, {"weights": ["int8", "int8"]}, "^weights int8,int8: .*; give one of them"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_transformers_js_cannot_run_is_refused_in_one_sentence(case, tmp_path):
    pytest.importorskip("jax2onnx")
    network, images, options, says = REFUSED[case]
    fields = {} if case == "unprepared" else {"mean": 0.5, "std": 0.25, **images}
    path = tmp_path / options.pop("path", "new")
    with pytest.raises(UserError, match=says) as told:
        vit_jax.export(build(**network), path, to="transformers.js", fields=fields, **options)
    assert len(str(told.value).splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_network_of_texts_is_refused(tmp_path):
    pytest.importorskip("jax2onnx")
    sizes = {"width": 8, "heads": 2, "hidden": 16, "encoder_depth": 1, "decoder_depth": 1}
    config = TransformerConfig(**sizes, source_vocabulary=9, target_vocabulary=9, outputs=9)
    model = vit_jax.Transformer(config, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match=r"takes .* and a program is written of a network that takes images"):
        vit_jax.export(model, tmp_path / "new", to="transformers-js")
