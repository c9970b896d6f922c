"""Errors of a user or a machine: one sentence with the remedy, exit code 2, nothing written, overwritten or lost."""

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax import errors, runs
from vit_jax.commands import evaluate, predict
from vit_jax.commands import train as train_command
from vit_jax.files import terminal
from vit_jax.files.atomic import write_json
from vit_jax.files.digests import text_digest

TINY = shlex.split(
    "digits --model.width 16 --model.depth 1 --model.heads 2 --model.hidden 32 --optim.schedule constant "
    "--optim.lr 0.01 --optim.weight-decay 0 --loss.label-smoothing 0 --batch 64 --ema 0.9"
)


@pytest.fixture(scope="module", autouse=True)
def place(working_folder, digits_run):
    """A folder with a finished run in it."""
    shutil.copytree(digits_run, working_folder / "runs" / "digits")
    return working_folder


def files(folder: Path) -> dict:
    """All that is in a folder: {name: (bytes, time of the last change)}."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


@pytest.fixture
def refused(place, capsys):
    """`refused("train digits --batch 0", "batch is 0", "positive")`.

    Asserts exit code 2, that nothing was written, and one sentence that contains all these words.
    """

    def check(command, *says: str) -> str:
        door, *arguments = shlex.split(command) if isinstance(command, str) else [str(part) for part in command]
        body = {"train": train_command.command, "evaluate": evaluate.command, "predict": predict.command}[door]
        before = files(place)
        capsys.readouterr()
        code = terminal.run_command(lambda: body(arguments))
        error = capsys.readouterr().err
        assert code == errors.USER, error
        assert files(place) == before
        assert "Traceback" not in error
        assert re.fullmatch(r"vit-jax: error: [^\n]+\n", error), error
        assert not error.rstrip().endswith("."), "a sentence of ours has no full stop"
        for text in says:
            assert text in error, error
        return error

    return check


# ------------------------------------------------------------------- presets, fields and values


@pytest.mark.parametrize(
    "command, says",
    {
        "train digit": ["there is no preset 'digit'", "nearest: digits"],
        "train digits mnist": ["the preset 'mnist' is not the first argument", "one preset only"],
        "train digits --model.dept 3": ["there is no field --model.dept;", "nearest: model.depth"],
        "train digits --patch_size=3": ["there is no field --patch_size;", "here it is model.patch"],
        "train digits --model.patch 3": ["model.image 8x8 is not divisible by patch 3x3", "an image of 6x6, or"],
        "train digits --data.trim 9": ["data.trim is 9x9, and model.image is 8x8"],
        "train --resume digits --seeds 2": ["seeds is 2", "leave one of them out"],
        "train digits --folds 2 --seeds 2": ["folds is 2 and seeds is 2"],
        "train digits --folds 2 --data.folds 3": ["folds is 2, and data.folds"],
        "train numbers --folds 2": ["folds is 2, and the task translate has none"],
        "train digits --data.group patient": ["data.group is for a table"],
        "train digits --data.source labels.csv": ["data.source labels.csv: there is no such file"],
        "train digits --data.source csv:": ["names no file"],
        "evaluate runs": ["runs: no run here"],
        "evaluate digits --split tset": ["there is no split 'tset'", "train, validation, test"],
        "predict digits": ["inputs: none given"],
        "predict nothing runs/digits/config.json": ["nothing: no such file, folder or run"],
        "predict digits nothing.png": ["nothing.png: there is no such image or folder"],
        "predict digits runs/digits/config.json": ["runs/digits/config.json: not a JPEG, PNG"],
        "predict digits runs/digits/digests": ["runs/digits/digests: there are no images in this folder", ".png"],
        "predict digits nothing.png --top 0": ["top is 0", "1 or more"],
        "predict digits nothing.png --csv runs": ["csv runs: is a folder"],
        "predict digits nothing.png --csv no/where.csv": ["csv no/where.csv: its folder does not exist"],
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_commands(command, says, refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as it is where a program was started without one
    refused(command, *says)


# ----------------------------------------------------------------------------------------- data


def picture(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)).save(path)


@pytest.fixture
def images(tmp_path) -> Path:
    """train, val and test with 24, 8 and 8 images of two classes."""
    for i, (split, name, count) in enumerate(
        (s, c, n) for s, n in (("train", 12), ("val", 4), ("test", 4)) for c in ("cat", "dog")
    ):
        for j in range(count):
            picture(tmp_path / "images" / split / name / f"{j}.png", 100 * i + j)
    return tmp_path / "images"


def on(source, *arguments) -> list:
    """A training command on a source of data."""
    fields = shlex.split("--model.classes 0 --batch 8 --epochs 1 --name fresh")
    return ["train", *TINY, "--data.source", source, *fields, *arguments]


@pytest.mark.parametrize(
    "source, says",
    [
        ("cifar10", ["data.source cifar10: is not prepared in", "data.download is false"]),
        ("folder:", ["data.source folder: names no folder", "give folder:PATH, or folder:. for"]),
        ("folder:~no-such-user/x", ["no such folder"]),
        ("nowhere.npz", ["data.source nowhere.npz: no such file"]),
    ],
)
def test_no_such_data(source, says, refused, tmp_path):
    refused(on(source, "--data.dir", tmp_path, "--data.no-download"), *says)


def damage(images: Path) -> None:
    """One image cut off, one that is none."""
    cut = images / "train" / "cat" / "3.png"
    cut.write_bytes(cut.read_bytes()[:-60])
    (images / "val" / "dog" / "1.png").write_text("no image")


@pytest.mark.parametrize("batch", [1, 64])
def test_unreadable_images_are_left_out_of_predictions_when_told_so(batch, images, refused, capsys, tmp_path):
    damage(images)
    out = tmp_path / "out.csv"
    flags = ["--batch", batch, "--top", 1, "--csv", out, "--force"]
    out.write_text("a table of before")
    refused(["predict", "digits", images, *flags], "3.png: cannot be decoded", "such images out with `data.skip_unr")
    names = [row.split(",")[0] for row in out.read_text().splitlines()]
    begun = sorted(map(str, images.rglob("*.png")))  # what is answered before is kept
    begun = begun[: begun.index(str(images / "train" / "cat" / "3.png"))]
    assert names == (["file", *begun] if batch == 1 else ["a table of before"])
    (images / "val" / "a.heic").touch()
    flags = ["--skip-unreadable", *flags]
    assert predict.command([str(each) for each in ("digits", images, *flags)]) == 0
    said = capsys.readouterr()
    bad = [str(images / "train/cat/3.png"), str(images / "val/dog/1.png")]
    assert f"2 unreadable images left out: {', '.join(bad)}" in said.err and "1 .heic (such as" in said.err
    good = [str(path) for path in sorted(images.rglob("*.png")) if str(path) not in bad]
    assert [row.split(",")[0] for row in out.read_text().splitlines()[1:]] == good
    refused(["predict", "digits", bad[1], "--skip-unreadable"], f"error: {bad[1]}: not a JPEG, PNG")
    refused(["predict", "digits", *bad, "--skip-unreadable"], f"none of the 2 images can be read: {bad[0]}: cannot be")
    refused(["predict", "digits", bad[1], "--data.target-language", "de"], "digits holds a ViT, which reads no sent")
    (images / "val" / "a.heic").unlink()
    refused(
        ["evaluate", "digits", "--probe", "knn", "--data.source", f"folder:{images}"], "out with `data.skip_unreadable"
    )


# ------------------------------------------------------------------------------ folders of runs


def test_a_folder_that_is_no_run(place, refused):
    (place / "runs" / "notes").mkdir(exist_ok=True)
    (place / "runs" / "notes" / "todo.txt").write_text("mine")
    refused("train digits --name notes", "runs/notes: exists and is not a run", "choose another `name")
    refused("evaluate runs/notes", "runs/notes: no run here")
    refused("predict runs/notes runs/notes/todo.txt", "runs/notes: holds no weights")


@pytest.mark.parametrize("place_of_trouble", ["a file", "below a file", "a long name"])
def test_a_place_that_cannot_hold_a_run(place_of_trouble, place, refused):
    (place / "file").write_text("mine")
    folder = {
        "a file": ["--dir", "file"],
        "below a file": ["--dir", "file/below"],
        "a long name": ["--name", "x" * 300],
    }[place_of_trouble]
    says = (
        ["name is 'xxx", "at most 200 bytes"]
        if place_of_trouble == "a long name"
        else ["a file is where a folder is needed", "choose another `dir"]
    )
    refused(["train", *TINY, *folder], *says)


@pytest.mark.parametrize("way", ["--max-steps 1", "--seeds 2", "--dry-run"])
def test_a_place_that_may_not_be_written_is_refused_first(way, refused, monkeypatch, tmp_path):
    """Simulated, as above."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and access(path, mode))
    refused(["train", *TINY, *way.split(), "--dir", tmp_path / "new"], f"{tmp_path.name}: no permission to write here")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, ()) for name in ("../../x", "/tmp/x", "..", ".", "a/b", "a\\b", "-x", "a\nb", "\x1b[31m", "y" * 201)),
        *(("../../x", more) for more in (("--seeds", 2), ("--dry-run",))),
    ],
)
def test_a_name_is_that_of_one_folder_inside_dir(name, more, refused, place):
    inside = sorted(place.parent.rglob("*"))
    refused(["train", *TINY, f"--name={name}", *more], "name is ", "give the name of one folder", "`dir` says where")
    assert sorted(place.parent.rglob("*")) == inside


@pytest.mark.parametrize("way", ["--max-steps 1", "--seeds 2", "--dry-run"])
@pytest.mark.parametrize("extra, words", [("wandb", ["--wandb", "project"])])
def test_an_extra_is_looked_for_before_anything_is_written(extra, words, way, refused, place, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, extra, None)
    refused(
        ["train", *TINY, *words, *way.split(), "--dir", tmp_path / "new"],
        f"{extra} is set but not installed: {errors.install(extra)}",
    )
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_run_that_cannot_begin_leaves_nothing(there, refused, place, monkeypatch, tmp_path):
    """W&B asks for a key when it starts; a folder of the user with a file of his own stays as it was."""
    fake = ModuleType("wandb")
    fake.__spec__ = ModuleSpec("wandb", None)
    fake.init = lambda **_: (_ for _ in ()).throw(RuntimeError("No API key configured"))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    folder = tmp_path / "new" / "run"
    if there:
        folder.mkdir(parents=True)
        (folder / ".lock").write_bytes(b"")
    words = ["train", *TINY, "--wandb", "project", "--dir", folder.parent, "--name", "run"]
    refused(words, "wandb 'project': cannot start (No API key configured); run `wandb login`")
    assert [path.name for path in tmp_path.iterdir()] == (["new"] if there else [])
    assert not there or [path.name for path in folder.iterdir()] == []


def test_advice_to_install_can_be_followed_where_it_is_given(monkeypatch, tmp_path):
    root = Path(errors.__file__).resolve().parents[1]
    assert errors.install("wandb") == f"pip install '{root}[wandb]'"
    monkeypatch.chdir(root)
    assert errors.install("wandb") == "pip install '.[wandb]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "vit_jax" / "errors.py"))
    assert errors.install("wandb") == "pip install 'vit-jax[wandb]'"


def test_a_platform_that_jax_does_not_find(door, tmp_path):
    done = door("train", "digits", JAX_PLATFORMS="cuda")
    assert done.returncode == 2 and done.stderr == (
        "vit-jax: error: JAX_PLATFORMS is 'cuda': jax finds no such device here; unset it, or set it to cpu\n"
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("raised", [AssertionError(), RuntimeError("Unable to initialize backend 'nonsense'")])
def test_a_platform_that_does_not_start(raised, refused, monkeypatch):
    def devices():
        raise raised

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    for command in ("train digits --name fresh", "train digits --dry-run", "evaluate digits"):
        refused(command, "JAX_PLATFORMS is 'nonsense': jax finds no such device here")


def test_another_run_can_start_from_the_weights_of_one_that_may_not_change(refused, capsys):
    advice = "--init digits --name NEW --data.source digits"
    refused(
        "train --resume digits --epochs 40 --optim.lr 0.5",
        "optim.lr 0.01 -> 0.5",
        f"with {advice} in place of --resume digits",
    )
    assert train_command.command([*advice.split(), "--epochs", "40", "--dry-run"]) == errors.DONE
    assert "dry run  40 epochs" in capsys.readouterr().out


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS], ids=["no permission", "read-only"])
def test_no_write_permission(number, place, refused, monkeypatch, tmp_path):
    """Simulated: the tests may run as root, whom nothing is forbidden."""
    make, access = Path.mkdir, os.access

    def mkdir(self, *arguments, **options):
        if "fresh" in str(self):
            raise OSError(number, "no", str(self))
        make(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    refused(["train", *TINY, "--name", "fresh"], "runs/fresh: no permission to write", "choose another path")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path) and access(path, mode))
    refused(
        ["predict", "digits", "nothing.png", "--csv", tmp_path / "out.csv"],
        "out.csv: its folder does not exist or cannot be written",
    )


def test_outputs_that_exist(place, refused):
    for name in ("out.csv", "out.png"):
        (place / name).write_text("mine")
    refused("predict digits nothing.png --csv out.csv", "csv out.csv: exists already", "add `force True`")
    refused("predict digits nothing.png --attention out.png", "attention out.png: exists already", "add `force True`")
    (place / "results").mkdir()
    (place / "results/mine.txt").write_text("mine")
    refused("evaluate digits --report results", "report results: holds files already")
    refused("evaluate digits --report out.csv", "report out.csv: is no folder")
    refused("evaluate digits --report a/b/c", "report a/b/c: it cannot be made")


# ---------------------------------------------------------------------------- damaged checkpoints


@pytest.fixture
def copied(place):
    """A copy of the run, to be damaged."""
    shutil.rmtree(place / "copy", ignore_errors=True)
    shutil.copytree(place / "runs" / "digits", place / "copy")
    return runs.Run("copy")


def spoil(run: runs.Run, step: int) -> None:
    """Change one byte in every file of a step's weights."""
    for file in (p for p in (run.checkpoints / str(step) / "model").rglob("*") if p.is_file()):
        content = bytearray(file.read_bytes())
        if content:
            content[len(content) // 2] ^= 0x10
            file.write_bytes(content)


def test_every_checkpoint_damaged(copied, refused):
    for step in copied.complete_steps():
        spoil(copied, step)
    copied.summary_file.unlink()
    picture(Path("image.png"), 0)
    for command in ("evaluate copy", "predict copy image.png", "train --resume copy"):
        refused(command, "copy: no checkpoint is valid", "checkpoint 60: ", "checkpoint 40: ", "under another `name`")


def test_a_damaged_newest_checkpoint_is_passed_over_and_named(copied, capsys):
    newest, older = copied.complete_steps()
    spoil(copied, newest)
    assert evaluate.command(["copy", "--weights", "last"]) == 0
    shown = capsys.readouterr()
    assert f"copy at step {older}" in shown.out
    assert re.search(rf"skipped +checkpoint {newest}: ", shown.err)


def test_the_best_weights_damaged(copied, refused, capsys):
    newest, older = copied.complete_steps()
    digest = json.loads((copied.digests / f"{newest}.json").read_text())
    digest.pop("digest")
    digest["notes"]["best"] = {"step": older, "accuracy": 1.0, "weights": "raw"}
    write_json(copied.digests / f"{newest}.json", {**digest, "digest": text_digest(digest)})
    spoil(copied, older)
    says = ("copy: the best weights cannot be used", f"checkpoint {older}", "take the last with `which last`")
    refused("evaluate copy", *says)
    assert evaluate.command(["copy", "--weights", "last"]) == 0


def test_a_run_that_has_not_saved_yet(copied, refused):
    shutil.rmtree(copied.checkpoints)
    shutil.rmtree(copied.digests)
    refused("evaluate copy", "copy: nothing has been saved here yet", "first checkpoint")


# ------------------------------------------------------------------------------ out of memory


@pytest.mark.parametrize(
    "raised",
    [
        lambda: jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17592186044416 bytes."),
        lambda: MemoryError(),
        lambda: np.empty((1 << 50,), np.uint8),  # numpy's own
    ],
    ids=["XLA's", "Python's", "numpy's"],
)
def test_out_of_memory_says_what_to_lower(raised, refused, monkeypatch):
    def train(*_, **__):
        raise raised()

    monkeypatch.setattr("vit_jax.commands.train.steps_with", train)
    says = ("out of memory", "lower `batch", "with `accumulate`", "`compute_dtype bfloat16`")
    refused(["train", *TINY], *says)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_out_of_memory_for_real(place):
    """A batch that wants some 70 GB in a process that may have 8."""
    np.savez(place / "large.npz", images=np.zeros((3000, 64, 64, 3), np.uint8), labels=np.arange(3000) % 2)
    program = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from vit_jax.files.terminal import run_command
from vit_jax.commands.train import command
sys.exit(run_command(lambda: command(sys.argv[1:])))
"""
    more = "--model.image 64 --model.channels 3 --model.heads 8 --batch 2048 --data.test 0 --name large"
    words = [sys.executable, "-c", program, *map(str, on("large.npz", *more.split())[1:])]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    native = re.compile(r"allocate of <\d+> failed\.|E\d{4} .*rendezvous.*|")  # XLA's own lines, of its threads
    (said,) = (line for line in done.stderr.splitlines() if not native.fullmatch(line))
    assert re.fullmatch(r"vit-jax: error: out of memory: lower `batch`, .+", said)
