"""Outputs that are inputs, or files of a run: one sentence, also with --force, and all files as they were."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.hostile.test_target import SAID, model
from vit_jax import runs
from vit_jax.commands import evaluate, predict, share
from vit_jax.errors import UserError
from vit_jax.extras import sheet
from vit_jax.extras.report import command as report
from vit_jax.files.atomic import write_bytes
from vit_jax.files.destination import check_folder, check_output
from vit_jax.files.output import write_csv
from vit_jax.presets.table import preset
from vit_jax.reports import compare

COMMANDS = {
    "predict": predict.command,
    "evaluate": evaluate.command,
    "join": share.command,
    "sheet": sheet.command,
    "compare": compare.command,
    "report": report.command,
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A run on a folder of images, a folder of weights of another library, and images to predict; links to them."""
    monkeypatch.chdir(tmp_path)
    run = preset("digits").run
    run = replace(run, model=replace(run.model, classes=2), data=replace(run.data, source="folder:data"))
    preprocess = {"image": [8, 8], "channels": 1, "fit": "crop", "size": 0, "interpolation": "bilinear"}
    preprocess |= {"background": 255, "mean": [0.3], "std": [0.4]}
    runs.Run("runs/r").create(runs.record_of(run, "digits", data=None, class_names=["a", "b"], preprocess=preprocess))
    for name in ("data/a/0.png", "data/b/0.png", "images/0.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(name)
    Path("runs/r/plots").mkdir()
    for name in ("runs/r/plots/curves.png", "runs/r/metrics.jsonl", "hf/config.json", "hf/model.safetensors"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("{}")
    os.symlink("../images/0.png", "hf/link.png")
    os.link("images/0.png", "hard.png")
    os.link("runs/r/config.json", "hard.csv")
    return tmp_path


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
@pytest.mark.parametrize(
    "words",
    ["predict hf images --csv {}.csv", "predict hf images --attention {}.png", "evaluate r --csv {}.csv",
     "evaluate r --probabilities {}.csv", "join a.csv --to {}.csv", "sheet digits {}.png",
     "compare r r --out {}.png", "report r --out {}.html", "convert w.safetensors {}.pt"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["pipe", "link", "-"])
def test_what_is_no_file_is_not_replaced_by_one(place, words, name, convert):
    """As root /dev/null itself would be; and - is no name of a file that anybody means."""
    command, *rest = words.format(name).split()
    suffix = Path(rest[-1]).suffix
    if name == "-":
        rest[-1] = "-"
    os.mkfifo(f"pipe{suffix}")
    os.symlink(f"pipe{suffix}", f"link{suffix}")
    says = r"is a device or a pipe, and no file|is stdout for other|the (figure|sheet) is a PNG|is not a page"
    if command == "convert":
        model(place / "w.safetensors")
        code, _, error = convert(*rest, "--force", *SAID)
        assert code == 2 and re.search(says, error)
    else:
        with pytest.raises(UserError, match=says):
            COMMANDS[command]([*rest, "--force"])
    assert Path(f"pipe{suffix}").is_fifo() and not Path("-").exists()


def content(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "line",
    [
        "predict runs/r images --force --csv runs/r/config.json",
        "predict runs/r images --force --csv runs/r/CONFIG.json",  # the same where letter case is no difference
        "predict runs/r images --force --csv hard.csv",
        "predict runs/r images --csv runs/r/plots/new.csv",
        "predict runs/r images --csv runs/r/summary.json",
        "predict runs/r images --force --attention images/0.png",
        "predict runs/r images --force --attention hf/link.png",
        "predict runs/r images --force --attention hard.png",
        "predict runs/r images/0.png --force --features runs/r/tokenizer/x.npz",
        "predict runs/r images --csv a.png --attention ./a.png",
        "predict hf/model.safetensors images --force --csv hf/config.json",
        "evaluate runs/r --force --csv data/a/0.png",
        "evaluate runs/r --force --csv runs/r/metrics.jsonl",
        "evaluate runs/r --force --report runs/r",
        "evaluate runs/r --force --report runs/r/plots",
        "evaluate runs/r --force --report data/a",
        "evaluate runs/r --report data/c",
        "evaluate runs/r --data.source folder:images --force --csv images/0.png",
        "evaluate runs/r --share 1/2 --force --outputs runs/r/plots/x.npz",
        "join a.csv b.csv --force --to runs/r/plots/x.csv",
        "sheet digits data/b/0.png --data.source folder:data --force",
        "sheet digits runs/r/plots/curves.png --force",
        "compare runs/r --force --out runs/r/config.json",
        "report runs/r --force --out runs/r/metrics.jsonl",
        "report runs/r runs/s --force --out runs/r/report.html",
        "report s --force --out runs/r/report.html",
    ],
)
def test_no_output_is_an_input_or_a_file_of_a_run(place, line):
    before, (command, *arguments) = content(place), line.split()
    with pytest.raises(UserError) as told:
        COMMANDS[command](arguments)
    said = str(told.value)
    assert said.endswith(("choose another name", "choose another folder")) and "--force" not in said, said
    assert content(place) == before


@pytest.mark.parametrize(
    "line",
    ["verify a b --json runs/r/plots/v.json", "verify a b --json v --markdown ./v", "w.npz runs/r/plots/x.npz"],
)
def test_neither_is_that_of_a_conversion(place, line, convert):
    model(place / "w.npz")
    before = content(place)
    code, _, error = convert(*line.split(), *(SAID if line[0] == "w" else ()))
    assert code == 2 and "choose another name" in error
    assert content(place) == before


def test_other_files_may_be_written_beside_inputs_and_again(place):
    for name in ("runs/r/mine.csv", "data/mine.csv", "images/mine.csv", "mine.png"):
        for force in (False, True):
            check_output("csv", name, force, ["data", "images", "runs/r"])
            Path(name).write_text("mine")
    check_folder("report", "runs/r/report", False, ["data", "runs/r"])
    check_output("out", "runs/r/report.html", True, own=[Path("runs/r/report.html")])
    assert Path("mine.png").read_text() == "mine"


@pytest.mark.parametrize("link", [False, True])
def test_what_is_called_as_the_unfinished_file_stays(tmp_path, link):
    """A stranger's run might have such a link to any file."""
    (tmp_path / "mine").write_text("mine")
    for name in ("a.csv.tmp", "a.csv.1.tmp"):
        (tmp_path / name).symlink_to("mine") if link else (tmp_path / name).write_text("mine")
    write_bytes(tmp_path / "a.csv", b"first")
    write_csv(tmp_path / "a.csv", ["a"], [["b"]])
    assert (tmp_path / "a.csv").read_text() == "a\nb\n"
    names = {"mine", "a.csv", "a.csv.tmp", "a.csv.1.tmp"}
    assert {path.name for path in tmp_path.iterdir()} == names and (tmp_path / "a.csv.tmp").read_text() == "mine"
