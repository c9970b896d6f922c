"""Runs on tables of labels: trained, measured on other tables by name, used on all images of one, and on folds."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

import vit_jax
from vit_jax.data.images.config import ImageData
from vit_jax.data.images.open import open_images
from vit_jax.errors import UserError
from vit_jax.runs.several import members

pytestmark = pytest.mark.usefixtures("quick_compilation")
TINY = [f"--model.{size}" for size in ("width=16", "depth=1", "heads=2", "hidden=32", "classes=0")]
TINY += ["--epochs=1", "--batch=16", "--optim.schedule=constant"]


@pytest.fixture(scope="module")
def folder(working_folder):
    """64 images of 16 patients in im/, and tables of them."""
    (working_folder / "im").mkdir()
    rng = np.random.default_rng(0)
    lines = {"set": ["image,patient,b,a"], "class": ["image,dx"], "number": ["image,n"]}
    for i in range(64):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(working_folder / f"im/{i}.png")
        lines["set"].append(f"{i},p{i // 4},{i % 2},{'' if i % 5 == 0 else i // 4 % 2}")
        lines["class"].append(f"{i},{['zebra', 'ant', 'bee'][i % 3]}")
        lines["number"].append(f"{i},{i / 2 + 100}")
    for name, rows in lines.items():
        (working_folder / f"{name}.csv").write_text("\n".join(rows))
    return working_folder


def train(inside, folder, *flags):
    ended = inside("train", "digits", *TINY, *flags, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_set_is_trained_and_other_tables_are_measured_by_name_and_predicted_in_their_order(inside, folder):
    source, other = "csv:set.csv:im", "csv:others.csv:im"
    flags = ("--name=set", "--data.source", source, "--data.labels", "b", "a", "--data.group=patient")
    said = train(inside, folder, *flags)
    assert "64 images by column image; a set of labels an image by 2 columns of 0 and 1; 16 groups" in said
    there = sum(i // 4 % 2 for i in range(64) if i % 5)
    assert f"b 32, a {there}" in said and "unknown cells, which are not learned from: 13" in said
    (folder / "others.csv").write_text("file,a,age,b\n9,1,30,0\n4.png,0,40,1\n7,,50,1\n")
    done = inside("evaluate", "runs/set", "--data.source", other, "--csv", "out.csv", "--force", cwd=folder)
    assert done.returncode == 0 and "3 examples" in done.stdout, done.stderr
    with open(folder / "out.csv") as file:
        rows = [row for row in csv.DictReader(file)]
    truth = {(row["file"].rpartition("/")[2], row["label"]): row["true"] for row in rows}
    wanted = {("9.png", "a"): "1", ("9.png", "b"): "0", ("4.png", "a"): "0", ("4.png", "b"): "1"}
    assert wanted.items() <= truth.items() and truth[("7.png", "b")] == "1" and truth[("7.png", "a")] not in ("0", "1")
    answers = vit_jax.predict(folder / "runs/set", f"csv:{folder}/others.csv:{folder}/im")
    assert [str(path).rpartition("/")[2] for path, _ in answers] == ["9.png", "4.png", "7.png"]
    printed = inside("predict", "runs/set", other, cwd=folder).stdout.splitlines()
    assert len(printed) == 3
    refused = inside("evaluate", "runs/set", "--probe=knn", cwd=folder)
    assert refused.returncode == 2 and "this network was trained on labels; give `data.source" in refused.stderr
    probed = inside("evaluate", "runs/set", "--probe=knn", "--data.source=csv:class.csv:im", cwd=folder)
    assert probed.returncode == 0 and "one class an image by column dx" in probed.stdout, probed.stderr
    (folder / "strange.csv").write_text("file,a,x\n9,1,0\n")
    refused = inside("evaluate", "runs/set", "--data.source", "csv:strange.csv:im", cwd=folder)
    assert refused.returncode == 2 and "which columns are the labels?" in refused.stderr


def test_one_of_several_classes_is_matched_by_name_where_others_are_absent(inside, folder):
    flags = ("--name=class", "--data.source=csv:class.csv:im")
    train(inside, folder, *flags)
    rows = [f"{i},{'zebra' if i % 2 else 'bee'},x" for i in range(6)]
    (folder / "two.csv").write_text("\n".join(["image,kind,note", *rows]))
    found = vit_jax.evaluate(
        folder / "runs/class", source=f"csv:{folder}/two.csv:{folder}/im", table={"labels": "kind"}
    )[1]
    run = vit_jax.load(folder / "runs/class")
    assert run.outputs.names == ("ant", "bee", "zebra") and found.confusion.sum(1).tolist() == [0, 3, 3]
    with pytest.raises(UserError, match=r"table has 'label'; nearest: labels"):
        vit_jax.evaluate(folder / "runs/class", source=f"csv:{folder}/two.csv:{folder}/im", table={"label": "kind"})
    with pytest.raises(UserError, match=r"data.labels is of another table than the run's own"):
        vit_jax.evaluate(folder / "runs/class", table={"labels": ("kind",)})
    # The table of the finished run changes, and its command is repeated.
    table = (folder / "class.csv").read_text()
    (folder / "class.csv").write_text(table.replace("0,zebra", "0,ant"))
    for again in (["digits", *TINY, *flags], ["--resume=runs/class"]):
        refused = inside("train", *again, cwd=folder)
        assert refused.returncode == 2 and "this run is finished" not in refused.stdout
        assert "data.source csv:class.csv:im has changed since that run ended: " in refused.stderr
    (folder / "class.csv").write_text(table)
    assert "this run is finished" in train(inside, folder, *flags)
    for field, value, said in (("data.target", "set", "'class' -> 'set'"), ("model.heads", 3, "2 -> 3")):
        refused = inside("train", "--resume=runs/class", f"--{field}={value}", cwd=folder)
        assert refused.returncode == 2 and f"holds another run, which differs in {field} {said}; " in refused.stderr
        with pytest.raises(UserError, match=f"holds another run, which differs in {field} {said}; "):
            vit_jax.train(resume=folder / "runs/class", fields={field: value})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, r"leaves test empty: they are one group \(patient\): leave data.group out"),
        ({"folds": 3}, r"there is 1 of the groups \(patient\): leave it out"),
    ],
)
def test_one_group_cannot_be_divided(folder, fields, said):
    lines = [f"{i},p,{'ab'[i % 2]}" for i in range(20)]
    (folder / "alone.csv").write_text("\n".join(["image,patient,dx", *lines]))
    data = ImageData(source=f"csv:{folder}/alone.csv:{folder}/im", group="patient", **fields)
    with pytest.raises(UserError, match=said):
        open_images(data, 8, 1)


def test_folds_are_trained_one_by_one_and_summed_up(inside, folder):
    flags = ["--name=cv", "--folds=2", "--data.source=csv:number.csv:im", "--data.target=number"]
    said = train(inside, folder, *flags)
    assert "2 folds, mean and standard deviation" in said
    group = folder / "runs/cv"
    assert [path.name for path in members(group)] == ["fold-0", "fold-1"]
    summary = json.loads((group / "summary.json").read_text())
    values = summary["metrics"]["test.last.rmse"]["values"]
    each = [json.loads((path / "summary.json").read_text())["test"]["last"]["rmse"] for path in members(group)]
    assert summary["folds"] == [0, 1] and values == each and len({*values}) == 2
    sizes = [json.loads((path / "config.json").read_text())["data"]["sizes"] for path in members(group)]
    assert sizes[0] == sizes[1] and sizes[0]["test"] == 32
    again = train(inside, folder, *flags)
    assert again.count("this run is finished") == 2 and "2 folds, mean" in again
    refused = inside("train", "digits", *TINY, *flags[2:], "--name=cv", "--seeds=2", cwd=folder)
    assert refused.returncode == 2 and "holds a run per fold, not one per seed" in refused.stderr
    assert "cv      2" in inside("compare", "runs/cv", cwd=folder).stdout
    refused = inside("train", "digits", *TINY, "--init=runs/cv", cwd=folder)
    assert "one for each fold" in refused.stderr
