"""Sweeps: what values mean, which points are trained and go on, what is refused, and what is left of them."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import loopback_s3
from tests.test_flags import options
from vit_jax import runs
from vit_jax.commands import processes
from vit_jax.commands import sweep as command
from vit_jax.config.flags import flags
from vit_jax.errors import CheckFailed, UserError
from vit_jax.presets.table import preset
from vit_jax.reports import compare
from vit_jax.reports.group import sum_up
from vit_jax.runs import mirror
from vit_jax.runs.points import Point, budgets, survivors
from vit_jax.runs.several import members_of
from vit_jax.runs.values import flat, with_fields
from vit_jax.training import sweep as training

RUN = with_fields(preset("digits").run, {"epochs": 9, "model.depth": 1})
TINY = ["--model.width", "16", "--model.depth", "1", "--model.hidden", "16"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trained(monkeypatch):
    """The runs that were trained, by a stand-in: {name: result}; a run gets the result that `results` has, or 0.5."""
    done: list[str] = []

    def stand_in(run, **_):
        where = mirror.join(run.dir, run.name)
        done.append(where.partition("runs/")[2])
        with (folder := runs.Run(mirror.here(where))).writing():
            leave(folder, run, results.get(Path(where).name, 0.5))

    def leave(folder, run, result):
        if isinstance(result, UserError):
            raise result
        preprocess = {"image": [8, 8], "channels": 1, "fit": "crop", "size": 0, "interpolation": "bilinear"}
        preprocess |= {"background": 255, "mean": [0.3], "std": [0.4]}
        run = replace(run, model=replace(run.model, classes=10))
        record = runs.record_of(run, "digits", data={}, class_names=[str(k) for k in range(10)], preprocess=preprocess)
        folder.create(record)
        if isinstance(result, Exception):
            folder.ending_file.write_text(json.dumps({"status": f"diverged: {result}"}))
            raise result
        accuracy, loss = result if isinstance(result, tuple) else (result, 1.0)
        best = {"step": 9, "accuracy": accuracy, "loss": loss, "weights": "raw"}
        if run.data.sampling != "natural":
            best = {"balanced_accuracy" if name == "accuracy" else name: value for name, value in best.items()}
        row = {"kind": "eval", "split": "validation", "step": 9, "epoch": 9.0, "weights": "raw", "loss": loss}
        folder.metrics_file.write_text(
            json.dumps(row | {"accuracy": accuracy, "balanced_accuracy": accuracy / 2}) + "\n"
        )
        folder.write_summary({"status": "finished", "step": 9, "epoch": 9.0, "seconds": 1.0, "best": best}, {})

    results = {}
    monkeypatch.setattr(training, "train", stand_in)
    return done, results


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("optim.lr 1e-3,3e-3", [["1e-3"], ["3e-3"]]),
        ("optim.lr 1e-3", [["1e-3"]]),
        ("optim.name adamw,lion", [["adamw"], ["lion"]]),
        ("augment.flip true,false", [["true"], ["false"]]),
        ("model.patch 4,4x8", [["4"], ["4", "8"]]),
        ("model.patch 4x8", [["4", "8"]]),
        ("model.patch 4 8", [["4", "8"]]),
        ("augment.scale 0.5x1,0.08x1.0", [["0.5", "1"], ["0.08", "1.0"]]),
        ("model.stem none,8,8x16", [[], ["8"], ["8", "16"]]),
        ("optim.decay kernel,kernel+bias", [["kernel"], ["kernel", "bias"]]),
        ("optim.freeze blocks.[0,1].* patch.*", [["blocks.[0,1].*", "patch.*"]]),
        ("init a,b.npz", [["a,b.npz"]]),
        ("init a b", [["a"], ["b"]]),
    ],
)
def test_commas_separate_values_where_no_value_can_have_any(words, values):
    name, *texts = words.split()
    assert command.split_values(flags(options())[name], texts) == values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--optim.lr 1e-3", "no field has several values"),
        ("--optim.lr 1e-3,,1e-2", "--optim.lr 1e-3,,1e-2: has an empty value"),
        ("--optim.lr 1e-3, 1e-2", "has commas and spaces"),
        ("--model.patch 4 8,2", "has commas and spaces; write values as 4x8,8x4"),
        ("--optim.lr 1e-3,0.001", "--optim.lr: has a value twice"),
        ("--optim.lr 1e-3,fast", "--optim.lr fast: give a finite number"),
        ("--optim.lr 1e-3,-1", "optim.lr is -1.0: give a number above 0"),
        ("--lr 1e-3,1e-2", "there is no field --lr; here it is optim.lr"),
        ("--keep 1,2", "keep has 2 values, but it changes no result of a run"),
        ("--tune full,head", "--tune: is no field of a run"),
        ("--augment.flip true,maybe", "--augment.flip true,maybe: give true,false"),
        ("--model.heads 4,5", "model.width 64 is not divisible by heads 5"),
        ("--batch 32,9999", "point batch=9999: batch 9999 is larger than the training set of 1294"),
        ("--data.source digits nope.npz", "point source=nope.npz: data.source nope.npz: no such file"),
        ("--optim.lr 1,2 --init nope", "init nope: no such file"),
        ("--batch 32,64 --data.source a.npz,b.npz", "text follow as words: --data.source a.npz b.npz"),
        ("--seed 1,2 --seeds 2", "seed has 2 values and seeds is 2"),
        ("--optim.lr 1,2 --halving", "halving is True, but there are 2 points"),
        ("--optim.lr 1,2,3 --epochs 2 --halving", "halving is True, but there are 3 points of 2 epochs"),
        ("--optim.lr 1,2,3 --data.validation 0 --halving", "data.validation is 0, and halving chooses by validation"),
        ("--loss.name cross_entropy,squared", "loss.name is squared"),
        ("--epochs 1,3,9 --halving", "epochs has several values, and halving chooses them"),
        ("--optim.lr 1,2 --name a/b", "name is 'a/b'"),
        ("--optim.lr 1,2 --resume x", "resume: is of the command train"),
        ("--optim.lr 1,2 --seeds 60", "the sweep has 120 runs; give fewer values, or --points 120"),
        ("more --optim.lr 1,2", "the argument 'more' follows no --field"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_is_written(words, said):
    with pytest.raises(UserError) as error:
        command.command(["digits", *words.split()])
    assert said in str(error.value) and not os.listdir()


def test_points_are_the_runs_of_the_command_train_with_names_that_tell_them(capsys):
    words = [
        "digits",
        "--optim.lr",
        "1e-3,3e-5",
        "--model.patch",
        "4x8,2",
        "--augment.flip",
        "true,false",
        "--epochs=7",
    ]
    _, sweep = command.parse([*words, "--name", "x"])
    assert len(sweep.rungs[0]) == 8 and sweep.folder == Path("runs/x")
    point = sweep.rungs[0][4]
    assert point.name == "lr=3e-05,patch=4x8,flip=true"
    changed = {k: v for k, (v, _) in flat(point.run).items() if v != flat(preset("digits").run)[k][0]}
    assert changed == {"optim.lr": 3e-5, "model.patch": (4, 8), "augment.flip": True, "epochs": 7, "name": "x"}
    assert command.training.parse([*point.words])[1].run() == point.run
    assert command.command([*words, "--dry-run"]) == 0 and not os.listdir()
    assert "lr=3e-05,patch=" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("points", "epochs", "rungs"),
    [(3, 10, [3, 10]), (9, 10, [1, 3, 10]), (80, 9, [1, 3, 9]), (27, 100, [4, 11, 33, 100])],
)
def test_the_epochs_of_halving_grow_by_three_and_a_third_goes_on(points, epochs, rungs):
    assert budgets(points, epochs) == rungs
    left = points
    for _ in rungs[1:]:
        assert left >= 3 and survivors(left) == left // 3
        left = survivors(left)


def test_halving_trains_the_best_third_anew_and_a_point_that_fails_or_diverges_does_not_end_it(trained, capsys):
    done, results = trained
    rates = [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 7e-3, 8e-3, 9e-3]
    results |= {f"lr={rate!r},epochs=1": 0.1 * k for k, rate in enumerate(rates)}
    results |= {"lr=0.009,epochs=1": CheckFailed("the loss is nan"), "lr=0.008,epochs=1": UserError("no memory")}
    results |= {"lr=0.005,epochs=1": (0.6, 0.1)}  # as good as lr=0.007, with less loss
    results |= {"lr=0.006,epochs=3": 0.9}
    found = vit_jax.sweep(RUN, {"optim.lr": np.array(rates)}, halving=True)
    assert done[9:] == [
        f"run-sweep/lr={rate}" for rate in ("0.005,epochs=3", "0.006,epochs=3", "0.007,epochs=3", "0.006,epochs=9")
    ]
    assert found["best"] == "lr=0.006,epochs=9" and found["metric"] == "accuracy"
    ended = {point["name"]: point["ended"] for point in found["points"]}
    assert (
        ended["lr=0.009,epochs=1"] == "diverged: the loss is nan" and ended["lr=0.008,epochs=1"] == "failed: no memory"
    )
    assert json.loads(Path("runs/run-sweep/sweep.json").read_text())["points"] == found["points"]
    shown = capsys.readouterr().out
    assert "best       lr=0.006,epochs=9: validation accuracy 0.5000" in shown and "--optim.lr 0.006" in shown
    compare.command(["run-sweep"])
    shown = capsys.readouterr().out
    assert "lr=0.008,epochs=1 is left out: failed: no memory" in shown and "diverged" in shown
    with pytest.raises(UserError, match="is a sweep, whose runs are in it"):
        runs.find("run-sweep")


def test_the_same_sweep_goes_on_and_more_values_add_their_points(trained):
    done, results = trained
    results["lr=0.002"] = CheckFailed("the loss is nan")
    vit_jax.sweep(RUN, {"optim.lr": [1e-3, 2e-3]})
    assert len(done) == 2
    vit_jax.sweep(RUN, {"optim.lr": [1e-3, 2e-3, 4e-3]})
    assert done[2:] == ["run-sweep/lr=0.004"]
    runs.Run("runs/run-sweep/lr=0.001").summary_file.unlink()  # as if it had been killed
    vit_jax.sweep(RUN, {"optim.lr": [1e-3, 2e-3, 4e-3]})
    assert done[3:] == ["run-sweep/lr=0.001"]
    named = replace(RUN, name="run-sweep")
    for run, fields, more, said in (
        (named, {"optim.lr": [1e-3]}, {}, "holds another sweep, with the point lr=0.002"),
        (named, {"batch": [32, 64]}, {}, "holds another sweep"),
        (replace(named, epochs=5), {"optim.lr": [1e-3, 2e-3, 4e-3]}, {}, "differs in epochs 9 -> 5"),
        (named, {"optim.lr": [1e-3, 2e-3, 4e-3]}, {"seeds": 2}, "holds a sweep without seeds"),
        (replace(named, name="lr=0.001", dir="runs/run-sweep"), {"batch": [1, 2]}, {}, "is a run and no sweep"),
        (replace(named, name="run-sweep", dir="."), {"batch": [1, 2]}, {}, "exists and is no sweep"),
    ):
        Path("run-sweep").mkdir(exist_ok=True)
        Path("run-sweep/mine.txt").touch()
        with pytest.raises(UserError, match=said):
            vit_jax.sweep(run, fields, **more)
    assert len(done) == 4
    vit_jax.sweep(RUN, {"batch": [32, 64]})
    vit_jax.sweep("digits", {"batch": [32]})
    assert done[4:] == ["run-sweep-2/batch=32", "run-sweep-2/batch=64", "digits-sweep/batch=32"]


def test_points_that_choose_by_different_metrics_are_compared_by_one(trained):
    """Where one lets classes count alike, by that: accuracy would praise the point that leaves out the rare ones."""
    trained[1].update({"sampling=natural": 0.9, "sampling=balanced": 0.8, "sampling=sqrt": 0.7})
    found = vit_jax.sweep(RUN, {"data.sampling": ["natural", "balanced", "sqrt"]})
    assert (found["metric"], found["best"]) == ("balanced_accuracy", "sampling=balanced")
    assert [point["values"] for point in found["points"]] == [[0.8], [0.7], [0.45]]


def test_seeds_are_runs_of_their_own_and_their_mean_decides(trained):
    done, results = trained
    results |= {"seed-5": 0.9, "seed-6": 0.1}
    found = vit_jax.sweep(replace(RUN, seed=5), {"model.pool": ["cls", "mean"], "model.patch": [4, (4, 8)]}, seeds=2)
    assert len(done) == 8 and done[-1] == "run-sweep/pool=mean,patch=4x8/seed-6"
    assert [point["values"] for point in found["points"]] == [[0.9, 0.1]] * 4
    picture = np.asarray(Image.open("runs/run-sweep/sweep.png").convert("L"))
    assert picture.shape[1] > 800 and (picture < 128).mean() > 0.005


@pytest.mark.slow
def test_sweeps_and_groups_in_a_store_go_on_elsewhere(trained, monkeypatch, tmp_path, capsys):
    def on_machine(name):  # of which there is another cache
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        mirror._root.cache_clear()
        mirror._MIRRORS.clear()

    url, run = "s3://bucket/runs/run-sweep", replace(RUN, dir="s3://bucket/runs")
    with loopback_s3.serving() as bucket:
        on_machine("a")
        assert vit_jax.sweep(run, {"optim.lr": [1e-3, 2e-3]}, seeds=2)["folder"] == url
        assert {"runs/run-sweep/sweep.json", "runs/run-sweep/sweep.png"} <= bucket.objects.keys()
        assert f"report {url} --out report.html" in capsys.readouterr().out
        on_machine("b")
        vit_jax.sweep(run, {"optim.lr": [1e-3, 2e-3, 4e-3]}, seeds=2)
        assert trained[0][4:] == ["run-sweep/lr=0.004/seed-0", "run-sweep/lr=0.004/seed-1"]
        on_machine("c")
        with pytest.raises(UserError, match=f"{url}: is a sweep, whose runs are in it"):
            runs.find(url)
        inside = members_of(f"{url}/lr=0.004")
        assert len(inside) == 2 and [str(each) for each in inside] == [f"{url}/lr=0.004/seed-{k}" for k in (0, 1)]
        sum_up(inside, [each.summary() for each in inside])
        assert {"runs/run-sweep/lr=0.004/summary.json"} <= bucket.objects.keys()
        on_machine("d")
        assert runs.Run(mirror.here(f"{url}/lr=0.004")).summary()["seeds"] == [0, 1]
        with pytest.raises(UserError, match="a plain server is only read"):
            vit_jax.sweep(replace(run, dir="https://host/runs"), {"optim.lr": [1e-3]})
    assert not any("s3:" in path.name for path in tmp_path.rglob("*")) and not Path("runs").exists()


def test_processes_end_as_their_runs_do(capfd, tmp_path):
    """Real ones, which print the version or fail: the variables of their places, their outputs and reasons."""
    units = [(Point({"batch": k}, RUN, words), replace(RUN, dir="runs", name=f"batch={k}"))
             for k, words in enumerate([("--version",), ("nope",), ("--version",)])]  # fmt: skip
    failures = processes.train_in_processes(units, [{"JAX_PLATFORMS": "cpu"}, {"JAX_PLATFORMS": "cpu"}])
    assert failures.keys() == {"batch=1"} and failures["batch=1"].startswith("there is no preset 'nope'")
    assert (
        Path("runs/batch=0.log").read_text()
        == Path("runs/batch=2.log").read_text()
        == f"vit-jax {vit_jax.__version__}\n"
    )
    assert "there is no preset 'nope'" in capfd.readouterr().err


def test_each_device_is_given_to_one_process(monkeypatch):
    monkeypatch.setattr(processes, "accelerators", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    assert processes.one_device_each() == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "GPU-5"}]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(processes.glob, "glob", lambda _: ["/dev/nvidia0"])
    assert processes.one_device_each() == [{}]


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["SIGKILL", "SIGINT"])
def test_a_sweep_that_is_stopped_goes_on_to_the_bit(stop, door):
    """The first point is not repeated, and the second is what the command train makes of it."""
    words = ["digits", *TINY, "--epochs", "12", "--save-minutes", "0.02"]
    sweep = [sys.executable, "-m", "vit_jax", "sweep", *words, "--optim.lr", "1e-3,1e-2"]
    process = subprocess.Popen(sweep, stdout=subprocess.DEVNULL)
    log = Path("runs/digits-sweep/lr=0.01/metrics.jsonl")
    while not (log.exists() and len(log.read_text().splitlines()) > 8):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(getattr(signal, stop))
    assert process.wait() == {"SIGKILL": -9, "SIGINT": 130}[stop]
    first = Path("runs/digits-sweep/lr=0.001/summary.json")
    before = first.stat().st_mtime_ns
    assert subprocess.run(sweep, stdout=subprocess.DEVNULL).returncode == 0 and first.stat().st_mtime_ns == before
    assert door("train", *words, "--optim.lr", "0.01", "--name", "alone").returncode == 0
    alone, point = (runs.Run(f"runs/{name}").saved(12 * 40)["arrays"] for name in ("alone", "digits-sweep/lr=0.01"))
    assert alone == point
