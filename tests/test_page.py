"""Pages that run a network in a browser: against predict and occlusion by hand, in Chromium where it is installed."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.test_run_report_browser import driver  # noqa: F401
from tests.test_transformers_js import build
from vit_jax.errors import UserError

# `npm install --ignore-scripts --prefix .venv onnxruntime-web` puts it there.
MODULES = Path(os.environ.get("NODE_MODULES") or Path(sys.prefix, "node_modules"))
NAMES = ["ant", "<script>window.broken = 1</script>", "{{wasm}}"]
NETWORKS = {  # {what: (fields of the network, what is stated beside it)}
    "grey": ({"channels": 1}, {"fit": "crop", "size": 12, "mean": 0.3, "std": 0.2}),
    "sets": ({"registers": 2, "pool": "mean"}, {"fit": "pad", "target": "set", "background": 90}),
    "float16": ({}, {}),
    "int8": ({}, {}),
}
WEIGHTS = {"float16": "float16", "int8": "int8"}
# How far the answers of a page may be from those of predict, as a share of the largest, and how far they have to be.
APART = {"float16": (2e-3, 1e-6), "int8": (0.2, 1e-4)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{what: (the page, the network as `load` opens it)} of NETWORKS."""
    pytest.importorskip("jax2onnx")
    if not (MODULES / "onnxruntime-web").exists():
        pytest.skip("onnxruntime-web is not here: npm install --ignore-scripts --prefix .venv onnxruntime-web")
    place, out = tmp_path_factory.mktemp("pages"), {}
    for what, (fields, stated) in NETWORKS.items():
        model = build(**fields)
        model.head.kernel[...] = model.head.kernel[...] + np.random.default_rng(0).normal(0, 0.3, (16, 3))
        stated = {"mean": [0.5, 0.4, 0.3], "std": [0.25, 0.2, 0.3]} | stated
        vit_jax.export(model, place / f"{what}.safetensors", class_names=NAMES, fields=stated)
        options = {"onnxruntime_web": MODULES, "weights": WEIGHTS.get(what, "float32")}
        if options["weights"] == "int8":
            pixels = np.random.default_rng(2).integers(0, 256, (40, 8, 12, 3), np.uint8)
            np.savez(place / "images.npz", train_images=pixels, train_labels=np.arange(40) % 3, class_names=NAMES)
            options["calibrate"] = str(place / "images.npz")
        vit_jax.export(place / f"{what}.safetensors", place / f"{what}.html", **options)
        out[what] = place / f"{what}.html", vit_jax.load(place / f"{what}.safetensors")
    return out


class Page:
    """A page in the browser."""

    def __init__(self, driver, path):  # noqa: F811
        self.driver = driver
        driver.get("about:blank")
        driver.get_log("performance"), driver.get_log("browser")
        driver.get(path.as_uri())
        assert self.settled() == "ready", self.status

    def js(self, script):
        return self.driver.execute_script(f"return {script}")

    def settled(self, state="document.documentElement.dataset.state"):
        """The state of the page once it waits for the user, for at most a minute."""
        for _ in range(600):
            if (found := self.js(state)) in ("ready", "explained", "failed"):
                return found
            time.sleep(0.1)
        return found

    @property
    def status(self):
        return self.js("document.getElementById('status').textContent")

    def give(self, path):
        """The state after a picture was chosen."""
        self.js("document.documentElement.dataset.state = 'given'")
        self.driver.find_element("css selector", "#file").send_keys(str(path))
        return self.settled()


def covered(net, path):
    """The fall of each logit when a patch of a picture is 0 after the normalisation: [cells, K]."""
    image = net.preprocess.apply(Image.open(path)).astype(np.float64) / 255
    image = (image - net.preprocess.mean) / net.preprocess.std
    several = [image.copy() for _ in range(7)]
    for cell in range(6):
        row, column = divmod(cell, 3)
        several[cell + 1][4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 0
    logits = np.asarray(net.model(np.stack(several).astype(np.float32)))
    return logits[0] - logits[1:]


@pytest.mark.slow
@pytest.mark.parametrize("what", NETWORKS)
def test_a_page_opened_as_a_file_answers_and_explains_as_predict_does(what, pages, driver, tmp_path):  # noqa: F811
    page, (path, net) = None, pages[what]
    rng = np.random.default_rng(1)
    page = Page(driver, path)
    for i, size in enumerate([(8, 12), (70, 31), (33, 120), (1, 9), (200, 7)]):
        colours = (3,) if i != 2 else ()
        file = tmp_path / f"{i}.{'jpg' if i == 1 else 'png'}"
        Image.fromarray(rng.integers(0, 256 - 40 * i, (*size, *colours), np.uint8)).save(file)
        assert page.give(file) == "explained", page.status
        found = page.js("[Array.from(answer.logits), answer.cells.map((each) => Array.from(each))]")
        logits = net.logits(str(file))
        most, least = APART.get(what, (1e-5, 0))
        np.testing.assert_allclose(found[0], logits, rtol=0, atol=most * np.abs(logits).max())
        np.testing.assert_allclose(found[1], covered(net, file), rtol=0, atol=2 * most * np.abs(logits).max())
        assert np.abs(found[0] - logits).max() >= least * np.abs(logits).max()
    if what in WEIGHTS:
        assert f"{what} weights:" in page.js("document.body.textContent")
        return
    told = page.js("document.getElementById('answer').textContent")
    labels = {"grey": [NAMES[logits.argmax()]], "sets": [NAMES[k] for k in np.argsort(-logits) if logits[k] > 0]}[what]
    assert told == (", ".join(labels) or "none of the labels")
    page.js("document.querySelector('#answers li:nth-child(2) button').click()")
    second = NAMES[np.argsort(-logits)[1]]
    assert f"“{second}”" in page.js("document.getElementById('why').textContent")
    (tmp_path / "no.png").write_text("no picture")
    assert page.give(tmp_path / "no.png") == "failed" and page.status.startswith("no.png is no picture")
    assert page.js("window.broken") is None
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert {url.partition(":")[0] for url in asked} <= {"file", "blob", "chrome", "about", "data"}
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_page_holds_its_parts_and_lets_nothing_else_in(pages):
    path, _ = pages["grey"]
    text = path.read_text(encoding="utf-8")
    assert (
        "default-src 'none'" in text
        and "unsafe-inline" not in text
        and "unsafe-eval" not in text.replace("wasm-unsafe-eval", "")
    )
    assert text.count("<script") == 6 and "{{policy}}" not in text and "src=" not in text
    assert [file.name for file in path.parent.glob("grey.html*")] == ["grey.html"]


REFUSED = {
    "no runtime": (
        {},
        {},
        {},
        "runs the network by onnxruntime-web, .*run `npm install .*give `onnxruntime_web node_modules`$",
    ),
    "not there": ({}, {}, {"onnxruntime_web": "nowhere"}, "there is no ort.wasm.bundle.min.mjs"),
    "of weights": ({}, {}, {"path": "x.onnx", "onnxruntime_web": "y"}, "x.onnx does not contain it; give X.html"),
    "images": ({}, {}, {"takes": "images"}, "x.html takes pictures"),
    "numbers": ({"classes": 1}, {"target": "number"}, {"onnxruntime_web": ""}, "gives numbers, and a page shows"),
    "features": ({"classes": 0}, {}, {"onnxruntime_web": ""}, "gives features, and a page shows"),
    "two channels": ({"channels": 2}, {}, {"onnxruntime_web": ""}, "takes 2 channels"),
    "unprepared": ({}, None, {"onnxruntime_web": ""}, "does not state the mean and std"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_page_can_show_is_refused_in_one_sentence(case, tmp_path):
    pytest.importorskip("jax2onnx")
    network, stated, options, says = REFUSED[case]
    if options.get("onnxruntime_web") == "":
        for name in ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"):
            (tmp_path / name).touch()
        options = {"onnxruntime_web": str(tmp_path)}
    before, fields = sorted(tmp_path.iterdir()), {} if stated is None else {"mean": 0.5, "std": 0.25, **stated}
    path, options = tmp_path / options.get("path", "x.html"), {k: v for k, v in options.items() if k != "path"}
    with pytest.raises(UserError, match=says) as told:
        vit_jax.export(build(**network), path, fields=fields, **options)
    assert len(str(told.value).splitlines()) == 1 and sorted(tmp_path.iterdir()) == before
