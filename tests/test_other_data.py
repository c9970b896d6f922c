"""Evaluation on other data than a network was trained on: runs and weight files, folders, arrays, classes by name."""

import contextlib
import csv
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import precision_recall_fscore_support

import vit_jax
from convert import __main__ as convert
from vit_jax import runs
from vit_jax.commands import evaluate
from vit_jax.config.outputs import Outputs
from vit_jax.data.images.config import ImageData
from vit_jax.data.images.open import open_other_images
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import UserError

PREPROCESS = Preprocess((8, 8), 1, "crop", 0, "bilinear", 255, (0.3,), (0.4,))


def classes(names) -> Outputs:
    return Outputs("class", tuple(names))


def digit_images() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    return np.rint(digits.images * (255 / 16)).astype(np.uint8), digits.target


def folder(place, name: str, rows, called=str):
    """A folder of class folders with these digits as images."""
    images, labels = digit_images()
    for i in rows:
        file = place / name / called(labels[i]) / f"{i:04}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i]).save(file)
    return f"folder:{place / name}"


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory, digits_run, quick_compilation):
    """A folder with a trained run of the digits, and its weights in two other layouts."""
    here = tmp_path_factory.mktemp("other")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(here)
        shutil.copytree(digits_run, here / "runs" / "digits")
        for target in ("hf --to huggingface", "named.pt --to timm"):
            patch.setattr("sys.argv", ["convert", "runs/digits", *target.split()])
            assert convert.main() == 0
        yield here


@pytest.fixture(autouse=True)
def inside_place(place, monkeypatch):
    monkeypatch.chdir(place)


@pytest.mark.parametrize("what", ["runs/digits", "hf", "named.pt"])
def test_a_run_and_its_weights_in_any_layout_have_the_metrics_that_their_answers_have(what, tmp_path, capsys):
    """Counted by hand from what `predict` answers for the same files."""
    source = folder(tmp_path, "some", range(0, 400, 7))
    out = tmp_path / "out.csv"
    flags = ["--csv", str(out), "--batch", "50", "--bootstrap", "300"]
    assert evaluate.command([what, "--data.source", source, *flags]) == 0
    said = capsys.readouterr().out
    assert f"all of {source}: 58 examples" in said.splitlines()[0]
    table = list(csv.reader(out.open(newline="")))
    assert table[0] == ["file", "true", "predicted", "probability"] and len(table) == 59
    net = vit_jax.load(what)
    for (file, true, predicted, probability), ((name, p),) in zip(
        table[1:], net.predict([r[0] for r in table[1:]]), strict=True
    ):
        assert f"/{true}/" in file and predicted == name and float(probability) == pytest.approx(p, abs=2e-6)
    right = np.mean([true == predicted for _, true, predicted, _ in table[1:]])
    low, high = re.search(rf"  accuracy           {right:.4f}  (\S+) to (\S+)", said).groups()
    drawn = np.random.default_rng(1).binomial(58, right, 10000) / 58  # which images are drawn does not matter
    assert np.abs(np.quantile(drawn, [0.025, 0.975]) - [float(low), float(high)]).max() <= 1.5 / 58
    step, result = vit_jax.evaluate(what, source=source)
    assert result.metrics["accuracy"] == pytest.approx(right) and step == net.step


def test_classes_are_matched_by_name_and_macro_averages_are_over_those_that_the_data_has(tmp_path, capsys):
    _, labels = digit_images()
    rows = np.flatnonzero((labels == 7) | (labels == 2) | (labels == 3))[:90]
    source = folder(tmp_path, "three", rows)
    assert evaluate.command(["digits", "--data.source", source]) == 0
    assert (
        "note: its images are of 3 of the network's 10 classes; macro averages are over these"
        in capsys.readouterr().out
    )
    _, result = vit_jax.evaluate("digits", source=source)
    truth = np.concatenate([labels[rows][labels[rows] == k] for k in (2, 3, 7)])
    values = precision_recall_fscore_support(
        truth, result.predicted, labels=[2, 3, 7], average="macro", zero_division=0
    )
    assert result.metrics["f1_macro"] == pytest.approx(values[2]) and result.confusion.sum(1).nonzero()[0].tolist() == [
        2,
        3,
        7,
    ]


def test_splits_of_other_data(tmp_path, capsys):
    folder(tmp_path / "two", "val", range(30))
    source = folder(tmp_path / "two", "test", range(30, 70)).removesuffix("/test")
    folder(tmp_path / "late", "validation", range(20))
    late = f"folder:{tmp_path / 'late'}"
    for arguments, first in (
        (source, "test of"),
        (f"{source} --split validation", "validation of"),
        (late, "validation of"),
    ):
        assert evaluate.command(["digits", "--data.source", *arguments.split()]) == 0
        assert first in capsys.readouterr().out.splitlines()[0]
    with pytest.raises(UserError, match=r"there is no split 'train'; .* has validation, test; choose one of them"):
        vit_jax.evaluate("digits", "train", source=source)
    flat = folder(tmp_path, "flat", range(20))
    with pytest.raises(UserError, match="has no splits; leave `split` out to take all its images"):
        vit_jax.evaluate("digits", "test", source=flat)


def test_a_copy_of_the_run_s_own_data_keeps_the_run_s_splits(tmp_path, capsys):
    """Else most of what is measured would have been trained on."""
    images, labels = digit_images()
    np.savez(tmp_path / "copy.npz", images=images, labels=labels)
    np.savez(tmp_path / "more.npz", images=images[:-1], labels=labels[:-1])
    assert evaluate.command(["digits", "--data.source", str(tmp_path / "copy.npz")]) == 0
    said = capsys.readouterr().out
    assert "359 examples" in said and "this is the data that the run was trained on, with the run's splits" in said
    own, copy = (vit_jax.evaluate("digits", **how)[1] for how in ({}, {"source": str(tmp_path / "copy.npz")}))
    assert own.metrics == copy.metrics
    assert len(vit_jax.evaluate("digits", source=str(tmp_path / "more.npz"))[1].predicted) == 1796
    with pytest.raises(UserError, match="no split 'longer'; this run's data has train, validation, test"):
        vit_jax.evaluate("digits", "longer", source=str(tmp_path / "copy.npz"))


def opened(tmp_path, names, network, wanted=""):
    for name in names:
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "set" / name / "x.png")
    return open_other_images(ImageData(source=f"folder:{tmp_path / 'set'}"), wanted, PREPROCESS, classes(network))


def test_labels_are_those_of_the_network(tmp_path):
    other = opened(tmp_path, ["dog", "ant"], ["cat", "dog", "eel", "ant"])
    assert other.split.labels.tolist() == [3, 1] and other.total == 2
    assert [other.split.name(i).split("/")[-2] for i in (0, 1)] == ["ant", "dog"]
    assert other.split.take(np.array([0])).shape == (1, 8, 8, 1)


@pytest.mark.parametrize(
    ("names", "network", "labels", "said"),
    [
        (["dog", "ant"], ["0", "1"], [0, 1], "the network's classes are only numbers: the data's are matched by order"),
        (["10", "2"], [str(k) for k in range(11)], [10, 2], "2 of the network's 11 classes"),  # by number, not by place
    ],
)
def test_classes_without_names(names, network, labels, said, tmp_path):
    other = opened(tmp_path, names, network)
    assert other.split.labels.tolist() == labels and said in " ".join(other.remarks)


def test_arrays_without_class_names_are_matched_by_number(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 8, 8), np.uint8), labels=[0, 2, 2, 1])
    data = ImageData(source=str(tmp_path / "a.npz"))
    other = open_other_images(data, "", PREPROCESS, classes(["cat", "dog", "eel", "ant"]))
    assert other.split.labels.tolist() == [0, 2, 2, 1] and "their numbers are taken" in other.remarks[0]
    with pytest.raises(UserError, match="the network has no class '0', '1', '2'; its 2 are 'cat', 'dog'"):
        open_other_images(data, "", PREPROCESS, classes(["cat", "dog"]))


@pytest.mark.parametrize(
    ("names", "network", "says"),
    [
        (["dgo", "cat"], ["cat", "dog"], "the network has no class 'dgo'; nearest: dog"),
        (["a", "b", "cat"], ["cat", "dog"], "no class 'a', 'b'; its 2 are 'cat', 'dog': rename"),
        ([f"x{i}" for i in range(8)], ["cat"], "'x4' and 3 more"),
        (["ant", "dog"], ["0", "1", "2"], "no class 'ant', 'dog'; its 3 are '0', '1', '2'"),  # which of the three?
        (["dog"], ["dog", "cat", "dog"], "several classes of the network are called 'dog'"),
        (["do\x1b[2Jg"], ["cat", "dog"], r"no class 'do\\x1b\[2Jg'"),
        ([], ["cat"], "no such folder"),
    ],
)
def test_classes_that_the_network_does_not_have(names, network, says, tmp_path):
    with pytest.raises(UserError, match=says) as told:
        opened(tmp_path, names, network)
    assert str(told.value).isprintable()


def test_a_folder_of_one_class_is_measured_with_what_lies_in_folders_of_it(tmp_path, capsys):
    (tmp_path / "one").mkdir()
    shutil.copytree(
        tmp_path / folder(tmp_path, "set", range(10)).rpartition("/")[2] / "7", tmp_path / "one" / "7" / "in"
    )
    (tmp_path / "one" / "7" / "a.heic").touch()
    assert evaluate.command(["digits", "--data.source", f"folder:{tmp_path / 'one'}"]) == 0
    out = capsys.readouterr().out
    assert ": 1 examples" in out and "note: 1 image lies in folders of their class's folder" in out
    assert "note: 1 file is left out, not being images that are read: 1 .heic" in out


def test_what_else_is_refused(tmp_path):
    (tmp_path / "flat").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "flat" / "x.png")
    with pytest.raises(UserError, match="holds no class folders"):
        vit_jax.evaluate("digits", source=f"folder:{tmp_path / 'flat'}")
    with pytest.raises(
        UserError, match=r"hf: no run here, and weights alone.*; name the data .* as in `data.source folder:PATH`"
    ):
        vit_jax.evaluate("hf")
    with pytest.raises(UserError, match="there are no `which` and `ema` to choose; leave them out"):
        vit_jax.evaluate("hf", which="last", source="digits")
    broken = folder(tmp_path, "broken", range(3))
    next((tmp_path / "broken").rglob("*.png")).write_bytes(b"no image")
    with pytest.raises(
        UserError, match=r"\.png: not a JPEG.*; convert or remove it, or leave such images out with `data.skip_"
    ):
        evaluate.command(["digits", "--data.source", broken])
    out = tmp_path / "there.csv"
    out.write_text("mine")
    with pytest.raises(UserError, match="exists already; add `force"):
        evaluate.command(["digits", "--csv", str(out)])
    assert out.read_text() == "mine"
    with pytest.raises(UserError, match="takes 2 channels, which image files do not have; give an"):
        two = Preprocess((8, 8), 2, "crop", 0, "bilinear", 255, (0.3,) * 2, (0.4,) * 2)
        open_other_images(ImageData(source=folder(tmp_path, "two", range(2))), "", two, classes("0123456789"))
    np.savez(tmp_path / "two.npz", images=np.full((3, 8, 8, 2), 7, np.uint8), labels=[0, 1, 1])
    other = open_other_images(ImageData(source=str(tmp_path / "two.npz")), "", two, classes("ab"))
    assert (other.split.take(np.arange(3)) == 7).all() and other.split.take(np.arange(3)).shape == (3, 8, 8, 2)


def test_unreadable_images_are_left_out_when_told_so(tmp_path, capsys):
    there = folder(tmp_path, "set", range(40))
    bad = sorted((tmp_path / "set").rglob("*.png"))[7]
    bad.write_bytes(b"no image")
    assert evaluate.command(["digits", "--data.source", there, "--skip-unreadable"]) == 0
    out = capsys.readouterr().out
    assert "39 examples" in out and f"note: 1 unreadable image left out: {bad}" in out
    bad.unlink()
    assert vit_jax.evaluate("digits", source=there)[1].metrics == pytest.approx(
        {name: float(value) for name, value in re.findall(r"^  (\w+) +([0-9.]+)$", out, re.MULTILINE)}, abs=1e-4
    )
    assert vit_jax.evaluate("digits", "validation", skip_unreadable=True)[1].metrics["accuracy"] > 0.5
    for path in (tmp_path / "set").rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(UserError, match="none of its 39 images can be read"):
        vit_jax.evaluate("digits", source=there, skip_unreadable=True)


def test_wide_pixels_are_measured_as_8_bits_by_the_range_of_the_data_or_of_the_run(
    tmp_path, capsys, rewrite_record, monkeypatch
):
    """Digits in 12 of 16 bits, v to 16 v: by the range 0 to 4080 exactly the digits in 8 bits."""
    plain = folder(tmp_path, "plain", range(40))
    wide = f"folder:{shutil.copytree(tmp_path / 'plain', tmp_path / 'wide')}"
    for path in (tmp_path / "wide").rglob("*.png"):
        Image.fromarray(np.asarray(Image.open(path)).astype(np.uint16) * 16).save(path)
    images, labels = digit_images()
    np.savez(tmp_path / "wide.npz", images=images[:40].astype(np.float32) * 16, labels=labels[:40])
    wanted = vit_jax.evaluate("digits", source=plain)[1]
    for source in (wide, str(tmp_path / "wide.npz")):
        result = vit_jax.evaluate("digits", source=source, data_range=(0, 4080))[1]
        assert result.metrics == pytest.approx(wanted.metrics)
    assert evaluate.command(["digits", "--data.source", wide]) == 0
    out = capsys.readouterr().out
    assert "40 images have more than 8 bits, read as 0 to 65535; the values go from 0 to 4080: to use all" in out
    assert "give `data.range 0 4095`" in out and f"accuracy           {wanted.metrics['accuracy']:.4f}" not in out
    with pytest.raises(UserError, match=r"data.range is \(4080.0, 0.0\): give two numbers, the second one greater"):
        evaluate.command(["digits", "--data.source", wide, "--data.range", "4080", "0"])
    with pytest.raises(UserError, match=r"data.range is of other images than the run's own: add `data.source"):
        evaluate.command(["digits", "--data.range", "0", "4080"])
    with pytest.raises(UserError, match=r"\.png: has pixels of 8 bits"):
        vit_jax.evaluate("digits", source=plain, data_range=(0, 4080))

    run = runs.Run(shutil.copytree("runs/digits", tmp_path / "run"))
    record = run.record()
    rewrite_record(run, preprocess={**record["preprocess"], "range": [0.0, 4080.0]})
    paths = sorted((tmp_path / "wide").rglob("*.png"))
    ours = vit_jax.predict(run.path, paths, top=10)
    assert [a for _, a in ours] == [
        a for _, a in vit_jax.predict("digits", sorted((tmp_path / "plain").rglob("*.png")), 10)
    ]
    assert vit_jax.evaluate(run.path, source=wide)[1].metrics == pytest.approx(wanted.metrics)
    network = vit_jax.load(run.path)
    for wider in (np.uint16, np.float64):
        np.testing.assert_array_equal(network.pixels(images[:40].astype(wider) * 16)[..., 0], images[:40])
    for target, kept in (("again --to vit-jax", True), ("timm.safetensors --to timm", False)):
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["convert", str(run.path), *f"{tmp_path}/{target}".split()])
        assert convert.main() == 0
        assert ("it does not state that pixels from 0 to 4080 become 0 to 255" in capsys.readouterr().out) != kept
    assert runs.Run(tmp_path / "again").record()["preprocess"]["range"] == [0, 4080]
    with pytest.raises(
        UserError, match=r"plain/.*\.png: has pixels of 8 bits, from 0 to 255; save it with more than 8"
    ):
        vit_jax.predict(run.path, [str(tmp_path / "plain")])
    capsys.readouterr()
    vit_jax.predict("digits", paths)
    assert (
        "note     40 images have more than 8 bits" in (told := capsys.readouterr().err) and "--data.range" not in told
    )
    assert "spread them over 0 to 65535" in told


def test_the_table_of_the_run_s_own_data(tmp_path):
    out = tmp_path / "own.csv"
    assert evaluate.command(["digits", "--split", "validation", "--csv", str(out), "--force"]) == 0
    rows = list(csv.DictReader(out.open(newline="")))
    _, labels = digit_images()
    assert len(rows) == 144 and all(row["true"] == str(labels[int(row["file"][7:-1])]) for row in rows)


def test_a_report_has_the_figures_of_training(tmp_path, capsys):
    assert evaluate.command(["digits", "--split", "validation", "--report", str(tmp_path / "r"), "--flip"]) == 0
    names = "classes.json, confusion.png, metrics.json, per-class.png, predictions.csv, reliability.png, sections.json"
    names += ", suspects.csv, suspects.png, wrong.png"
    said = capsys.readouterr().out
    assert "  tables, files and figures are of the plain images\n" in said
    assert said.endswith(f"  {tmp_path / 'r'} has {names}\n")
    told = json.loads((tmp_path / "r/metrics.json").read_text())
    assert told["measured"].startswith("digits at step ") and told["measured"].endswith(", validation")
    with open(tmp_path / "r/predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == told["examples"] == 144
    assert told["metrics"]["accuracy"] == sum(row["true"] == row["predicted"] for row in rows) / 144
    each = told["each"]["recall"]
    assert list(each) == [*"0123456789"] and np.mean([*each.values()]) == pytest.approx(told["metrics"]["recall_macro"])
    assert told["flipped"]["loss"] > told["metrics"]["loss"] and told["flipped"].keys() == told["metrics"].keys()
