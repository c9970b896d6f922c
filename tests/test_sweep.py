"""Sweeps: what values mean, which trials are trained and go on, what is refused, and what Optuna has of them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vit_jax
from tests import loopback_s3
from tests.test_flags import options
from vit_jax import errors, runs
from vit_jax.config.flags import flags
from vit_jax.errors import CheckFailed, Interrupted, UserError
from vit_jax.extras.stores import copies as mirror
from vit_jax.extras.sweep import command as command
from vit_jax.extras.sweep import sweep as training
from vit_jax.files import places
from vit_jax.files.atomic import lock_file
from vit_jax.presets.table import preset
from vit_jax.reports import compare
from vit_jax.runs.several import members_of
from vit_jax.runs.values import flat, with_fields
from vit_jax.training.finish import sum_up
from vit_jax.training.hooks import Event

optuna = pytest.importorskip("optuna")

RUN = with_fields(preset("digits").run, {"epochs": 9, "model.depth": 1})
TINY = ["--model.width", "16", "--model.depth", "1", "--model.hidden", "16"]


def study(folder="runs/run-sweep"):
    """A sweep's study, as its users open it."""
    return optuna.load_study(study_name=None, storage=f"sqlite:///{folder}/study.db")


def told(folder):
    """What a study was told of each trial."""
    return [(t.number, t.params, t.state, t.value, t.intermediate_values) for t in study(folder).trials]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trained(monkeypatch):
    """The runs that were trained, by a stand-in that measures once an epoch: [(folder, run, epochs)].

    `results` may be replaced: a function of a run and an epoch that returns or raises its accuracy.
    """
    done, results = [], {"of": lambda run, epoch: 0.5}

    def stand_in(run, **_):
        where = places.join(run.dir, run.name)
        with places.own((folder := runs.Run(places.local_copy(where))).path):
            preprocess = {"image": [8, 8], "channels": 1, "fit": "crop", "size": 0, "interpolation": "bilinear"}
            preprocess |= {"background": 255, "mean": [0.3], "std": [0.4]}
            names = [str(k) for k in range(10)]
            its = replace(run, model=replace(run.model, classes=10))
            folder.create(runs.record_of(its, "digits", data={}, class_names=names, preprocess=preprocess))
            best = None
            done.append([where.partition("runs/")[2], run, 0])
            for epoch in range(1, run.epochs + 1):
                accuracy = results["of"](run, epoch)
                done[-1][2] = epoch
                row = {"accuracy": accuracy, "balanced_accuracy": accuracy / 2, "loss": 1.0}
                with open(folder.metrics_file, "a") as file:
                    place = {"kind": "eval", "split": "validation", "step": epoch, "epoch": epoch, "weights": "raw"}
                    file.write(json.dumps(place | row) + "\n")
                if best is None or accuracy > best["accuracy"]:
                    best = {"step": epoch, "accuracy": accuracy, "loss": 1.0, "weights": "raw"}
                yield Event("evaluation", epoch, float(epoch), row, split="validation", weights="raw")
            if run.data.sampling != "natural":
                best = {"balanced_accuracy" if name == "accuracy" else name: value for name, value in best.items()}
            summary = {"status": "finished", "step": run.epochs, "epoch": 9.0, "seconds": 1.0, "best": best}
            folder.write_summary(summary, {})
            yield Event("end", run.epochs, 9.0, summary=summary)

    monkeypatch.setattr(training, "steps", stand_in)
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
        ("--model.patch 4 8,2", "has commas and spaces; write values as 4x8,8x4"),
        ("--optim.lr 1e-3,0.001", "optim.lr has the value 0.001 twice"),
        ("--optim.lr 1e-3,fast", "--optim.lr fast: give a finite number"),
        ("--optim.lr 1e-2..1e-3 --trials 3", "optim.lr is 1e-2..1e-3: give the lower end first"),
        ("--optim.lr 1e-3..1e-2", "optim.lr is 0.001..0.01: say with `trials N` how many are tried"),
        ("--optim.lr -1..1e-2 --trials 3", "optim.lr is -1.0: give a number above 0"),
        ("--keep 1,2", "keep has 2 values, but it changes no result of a run"),
        ("--tune full,head", "--tune: is no field of a run"),
        ("--model.heads 4,5", "model.width 64 is not divisible by heads 5"),
        ("--batch 32,9999", "batch 9999 is larger than the training set of 1294"),
        ("--data.source digits nope.npz", "data.source nope.npz: data.source nope.npz: no such file"),
        ("--optim.lr 1,2 --init nope", "init nope: no such file"),
        ("--batch 32,64 --data.source a.npz,b.npz", "text follow as words: --data.source a.npz b.npz"),
        ("--seed 1,2 --seeds 2", "seed has several values and seeds is 2"),
        ("--optim.lr 1,2 --seeds 2 --pruner median", "seeds is 2 and pruner is median"),
        ("--optim.lr 1,2 --data.validation 0", "data.validation is 0"),
        ("--optim.lr 1,2 --resume x", "resume: belongs to the command train"),
        (
            f"--seed {','.join(map(str, range(1001)))}",
            "the sweep has 1,001 combinations",
        ),
        ("more --optim.lr 1,2", "the argument 'more' follows no --field"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_is_written(words, said):
    with pytest.raises(UserError) as error:
        command.command(["digits", *words.split()])
    assert said in str(error.value) and not os.listdir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"values": {"optim.lr": "fast"}}, "optim.lr is 'fast': give a list"),
        ({"values": {"optim.lr": []}}, "optim.lr has no values"),
        ({"values": {"nope": [1, 2]}}, "nope is no field"),
        ({}, "is None; give the values of fields"),
        ({"values": {"optim.lr": [1, 2]}, "trials": -1}, "trials is -1: give 0 or more"),
        ({"values": {"optim.lr": [1, 2]}, "sampler": "grid"}, "sampler is 'grid': give one of"),
        ({"values": {"optim.lr": [1, 2]}, "halving": True}, "halving is gone; `pruner halving`"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(arguments, said):
    with pytest.raises(UserError, match=re.escape(said)):
        vit_jax.sweep(RUN, **arguments)
    assert not os.listdir()


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"optuna is needed but not installed: pip install .*\[sweep\]"):
        vit_jax.sweep(RUN, {"optim.lr": [1e-3, 2e-3]})
    assert errors.require and not os.listdir()


def test_trials_are_the_runs_of_the_command_train(trained, monkeypatch, capsys):
    monkeypatch.setattr(command, "steps", training.steps)
    words = ["digits", "--optim.lr", "1e-3,3e-5", "--model.patch", "4x8,2", "--augment.flip", "true,false"]
    words += ["--epochs=2", "--name", "x"]
    assert command.command([*words, "--dry-run"]) == 0 and not os.listdir()
    shown = capsys.readouterr().out
    assert "8 trials, in runs/x" in shown and len(re.findall(r"^\d .*3e-05", shown, re.M)) == 4
    assert command.command(words) == 0
    assert [name for name, *_ in trained[0]] == [f"x/trial-{k}" for k in range(8)]
    run = trained[0][4][1]
    changed = {k: v for k, (v, _) in flat(run).items() if v != flat(preset("digits").run)[k][0]}
    place = {"dir": "runs/x", "name": "trial-4", "epochs": 2}
    assert changed == {"optim.lr": 3e-5, "model.patch": (4, 8), "augment.flip": True, **place}
    again = command.training.parse(
        ["digits", "--optim.lr", "3e-5", "--model.patch", "4", "8", "--augment.flip", "--epochs=2"]
    )
    assert again[1].run() == replace(run, dir="runs", name="")
    assert study("runs/x").trials[4].params == {"optim.lr": 3e-5, "model.patch": "4,8", "augment.flip": True}


def test_the_study_has_every_combination_and_one_that_fails_or_diverges_does_not_end_it(trained, capsys):
    def accuracy(run, epoch):
        if run.optim.lr == 2e-3:
            raise CheckFailed("the loss is nan")
        if run.optim.lr == 3e-3:
            raise UserError("no memory")
        return run.optim.lr * epoch

    trained[1]["of"] = accuracy
    found = vit_jax.sweep(RUN, {"optim.lr": np.array([1e-3, 2e-3, 3e-3, 4e-3])}, fields={"batch": 32})
    assert {run.batch for _, run, _ in trained[0]} == {32}
    assert (found["metric"], found["best"], found["folder"]) == ("accuracy", "trial-3", "runs/run-sweep")
    ended = {point["name"]: point["ended"] for point in found["points"]}
    assert ended == {"trial-3": "finished", "trial-0": "finished", "trial-1": "diverged: the loss is nan",
                     "trial-2": "failed: no memory"}  # fmt: skip
    shown = capsys.readouterr().out
    assert "best       trial-3: validation accuracy 0.0360" in shown and "--optim.lr 0.004 " in shown
    its = study()
    assert (its.best_trial.number, its.best_value, its.direction.name) == (3, 4e-3 * 9, "MAXIMIZE")
    assert [trial.state.name for trial in its.trials] == ["COMPLETE", "FAIL", "FAIL", "COMPLETE"]
    assert its.trials[0].intermediate_values == {epoch: 1e-3 * epoch for epoch in range(1, 10)}
    assert len(compare.compare("run-sweep")["lines"]) == 4
    with pytest.raises(UserError, match="is a sweep, whose runs are in it"):
        runs.find("run-sweep")
    trained[1]["of"] = lambda run, epoch: 0.9
    found = vit_jax.sweep(RUN, {"optim.lr": [1e-3, 2e-3, 3e-3, 4e-3]}, fields={"batch": 32})
    assert [name for name, *_ in trained[0]][4:] == ["run-sweep/trial-2"], "what failed is tried again in its folder"
    assert found["best"] == "trial-2"


def test_where_all_trials_fail_the_reason_is_the_error(trained):
    def fails(run, epoch):
        raise UserError("no memory")

    trained[1]["of"] = fails
    with pytest.raises(UserError, match="no trial of the sweep could be trained: trial-0: no memory"):
        vit_jax.sweep(RUN, {"optim.lr": [1e-3, 2e-3]})


def test_the_same_sweep_goes_on_and_more_numbers_add_their_trials(trained):
    done = trained[0]
    vit_jax.sweep(RUN, fields={"optim.lr": [1e-3, 2e-3]})
    assert len(done) == 2
    vit_jax.sweep(RUN, {"optim.lr": [1e-3, 4e-3, 2e-3]})
    assert [name for name, *_ in done[2:]] == ["run-sweep/trial-2"] and done[2][1].optim.lr == 4e-3
    vit_jax.sweep(RUN, {"optim.lr": "1e-4..1e-2"}, trials=5)
    assert len(done) == 5 and all(1e-4 < run.optim.lr < 1e-2 for _, run, _ in done)


def test_a_folder_of_something_else_is_refused(trained):
    named = replace(RUN, name="run-sweep")
    vit_jax.sweep(named, {"optim.lr": [1e-3, 2e-3]})
    Path("mine").mkdir()
    Path("mine/mine.txt").touch()
    Path("old").mkdir()
    Path("old/sweep.json").write_text("{}")
    for run, fields, more, said in (
        (named, {"batch": [32, 64]}, {}, "holds another run, which differs in optim.lr"),
        (named, {"optim.lr": [1e-3, 2e-3], "seed": [0, 1]}, {}, "holds a sweep with fields"),
        (named, {"optim.lr": [1e-3, 2e-3]}, {"trials": 3}, "holds a sweep with fields"),
        (replace(named, epochs=5), {"optim.lr": [1e-3, 2e-3]}, {}, "differs in epochs 9 -> 5"),
        (named, {"optim.lr": [1e-3, 2e-3]}, {"seeds": 2}, "holds a sweep with seeds 0, and this has 2"),
        (replace(named, name="trial-0", dir="runs/run-sweep"), {"batch": [1, 2]}, {}, "is a run and no sweep"),
        (replace(named, name="mine", dir="."), {"batch": [1, 2]}, {}, "exists and is no sweep"),
        (replace(named, name="old", dir="."), {"batch": [1, 2]}, {}, "is a sweep of an earlier version"),
    ):
        with pytest.raises(UserError, match=said):
            vit_jax.sweep(run, fields, **more)
    assert len(trained[0]) == 2 and len(study().trials) == 2
    Path("runs/run-sweep/study.db").write_text("damaged")
    with pytest.raises(UserError, match=r"study.db: is no study that can be read and written \(.*not a database"):
        vit_jax.sweep(named, {"optim.lr": [1e-3, 2e-3]})


@pytest.mark.parametrize(
    "pruner",
    [
        *("median", optuna.pruners.ThresholdPruner(lower=0.4)),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("halving", "hyperband")),
    ],
)
def test_trials_that_fall_behind_are_pruned(trained, pruner):
    trained[1]["of"] = lambda run, epoch: (0.9 if run.seed < 6 else 0.1) + epoch / 100 + run.seed / 1000
    found = vit_jax.sweep(RUN, {"seed": range(12)}, pruner=pruner)
    pruned = [trial for trial in study().trials if trial.state.name == "PRUNED"]
    assert pruned and all(trained[0][trial.number][2] < 9 for trial in pruned)
    assert {point["ended"] for point in found["points"]} == {"finished", "pruned"}
    assert found["points"][0]["fields"]["seed"] < 6 and study().best_trial.params["seed"] < 6


def test_a_sampler_draws_by_the_number_of_a_trial_and_not_by_when_it_was_interrupted(trained):
    space = {"optim.lr": "1e-4..1e-2", "model.depth": "1..4", "optim.name": ["adamw", "lion"], "model.pool": ["cls"]}
    arguments = {"trials": 12, "sampler": "tpe", "pruner": "halving"}

    def accuracy(run, epoch):
        return abs(np.log10(run.optim.lr) + 3) + run.model.depth / 10 + epoch / 100

    trained[1]["of"] = accuracy
    vit_jax.sweep(replace(RUN, name="whole"), space, **arguments)
    begun = set()

    def interrupted(run, epoch):
        if epoch == 4 and run.name not in begun:
            begun.add(run.name)
            raise Interrupted("SIGINT: saved at step 3; go on with: X", "SIGINT")
        return accuracy(run, epoch)

    trained[1]["of"] = interrupted
    for _ in range(12):
        with contextlib.suppress(Interrupted):
            vit_jax.sweep(replace(RUN, name="parts"), space, **arguments)
    assert len(begun) > 3
    whole = told("runs/whole")
    assert whole == told("runs/parts") and len(whole) == 12 and len({str(params) for _, params, *_ in whole}) == 12
    assert {1, 2, 3, 4} >= {params["model.depth"] for _, params, *_ in whole}


def test_what_a_killed_process_measured_and_did_not_report_is_reported(trained):
    """Killed between the end of an epoch and the report of it to the study."""
    vit_jax.sweep(RUN, {"optim.lr": [1e-3]})
    its = study()
    its.enqueue_trial({"optim.lr": 2e-3})
    its.ask().suggest_float("optim.lr", 1e-3, 2e-3, log=True)
    folder = runs.Run("runs/run-sweep/trial-1")
    folder.path.mkdir()
    folder.metrics_file.write_text(runs.Run("runs/run-sweep/trial-0").metrics_file.read_text().replace("0.5", "0.125"))
    folder.config_file.write_text(runs.Run("runs/run-sweep/trial-0").config_file.read_text())
    pruner = optuna.pruners.ThresholdPruner(lower=0.4, n_warmup_steps=3)
    found = vit_jax.sweep(RUN, {"optim.lr": [1e-3, 2e-3]}, pruner=pruner)
    assert len(trained[0]) == 1 and found["points"][1]["ended"] == "pruned"
    assert study().trials[1].intermediate_values == {1: 0.125, 2: 0.125, 3: 0.125}


def test_a_trial_that_another_process_has_is_left_to_it(trained):
    """Two trials that run: one whose lock is held, and one whose process was killed, which is gone on with."""
    vit_jax.sweep(RUN, {"optim.lr": [1e-3]})
    for _ in range(2):
        study().enqueue_trial({"optim.lr": 2e-3})
        study().ask().suggest_float("optim.lr", 1e-3, 2e-3, log=True)
    with lock_file(Path("runs/run-sweep/.trial-1.lock"), lambda process: pytest.fail("it is free")):
        found = vit_jax.sweep(RUN, {"optim.lr": [1e-3, 2e-3]})
    assert [name for name, *_ in trained[0]] == ["run-sweep/trial-0", "run-sweep/trial-2"]
    assert {point["name"]: point["ended"] for point in found["points"]}["trial-1"] == "running"


def test_points_that_choose_by_different_metrics_are_compared_by_one(trained):
    """Where one lets classes count alike, by that: accuracy would praise the point that leaves out the rare ones."""
    trained[1]["of"] = lambda run, epoch: {"natural": 0.9, "balanced": 0.8, "sqrt": 0.7}[run.data.sampling]
    found = vit_jax.sweep(RUN, {"data.sampling": ["natural", "balanced", "sqrt"]})
    assert (found["metric"], found["best"]) == ("balanced_accuracy", "trial-1")
    assert [point["values"] for point in found["points"]] == [[0.8], [0.7], [0.45]]


def test_seeds_are_runs_of_their_own_and_their_mean_decides(trained, capsys):
    trained[1]["of"] = lambda run, epoch: {5: 0.9, 6: 0.1}[run.seed] + (run.model.pool == "mean") / 100
    found = vit_jax.sweep(replace(RUN, seed=5), {"model.pool": ["cls", "mean"], "model.patch": [4, (4, 8)]}, seeds=2)
    assert len(trained[0]) == 8 and trained[0][-1][0] == "run-sweep/trial-3/seed-6"
    assert found["best"] == "trial-2" and found["points"][0]["fields"] == {"model.pool": "mean", "model.patch": 4}
    assert found["points"][-1]["values"] == [0.9, 0.1] and study().best_value == pytest.approx(0.51)
    assert "trial-2: validation accuracy 0.5100 +- 0.5657" in capsys.readouterr().out
    assert len(compare.compare("run-sweep")["lines"]) == 4


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
        assert "runs/run-sweep/study.db" in bucket.objects
        assert f"report {url} --out report.html" in capsys.readouterr().out
        on_machine("b")
        vit_jax.sweep(run, {"optim.lr": [1e-3, 2e-3, 4e-3]}, seeds=2)
        assert [name for name, *_ in trained[0][4:]] == [f"run-sweep/trial-2/seed-{k}" for k in (0, 1)]
        on_machine("c")
        with pytest.raises(UserError, match=f"{url}: is a sweep, whose runs are in it"):
            runs.find(url)
        inside = members_of(f"{url}/trial-2")
        assert len(inside) == 2 and [str(each) for each in inside] == [f"{url}/trial-2/seed-{k}" for k in (0, 1)]
        sum_up(inside, [each.summary() for each in inside])
        assert {"runs/run-sweep/trial-2/summary.json"} <= bucket.objects.keys()
        on_machine("d")
        assert runs.Run(places.local_copy(f"{url}/trial-2")).summary()["seeds"] == [0, 1]
        with pytest.raises(UserError, match="a plain server is only read"):
            vit_jax.sweep(replace(run, dir="https://host/runs"), {"optim.lr": [1e-3]})
    assert not any("s3:" in path.name for path in tmp_path.rglob("*")) and not Path("runs").exists()


def _weights(folder):
    steps = {str(path): runs.Run(path).complete_steps() for path in Path(folder).glob("trial-*")}
    return {Path(path).name: runs.Run(path).saved(found[0])["arrays"] for path, found in steps.items()}


@pytest.mark.slow
def test_a_study_that_is_killed_ends_as_one_that_never_was():
    """With Optuna's sampler and pruner: the same trials, values and weights, to the bit; and no trial is lost."""
    words = ["digits", *TINY, "--epochs", "9", "--save-minutes", "0.02", "--optim.lr", "1e-3..1e-1", "--optim.name"]
    words += ["adamw,lion", "--trials", "6", "--pruner", "halving"]
    sweep = [sys.executable, "-m", "vit_jax", "sweep", *words]
    assert subprocess.run([*sweep, "--name", "whole"], stdout=subprocess.DEVNULL).returncode == 0
    killed = 0
    for number, rows in ((0, 4), (1, 1), (3, 2)):
        process = subprocess.Popen([*sweep, "--name", "killed"], stdout=subprocess.DEVNULL)
        log = Path(f"runs/killed/trial-{number}/metrics.jsonl")
        while process.poll() is None and not (log.exists() and len(log.read_text().splitlines()) >= rows):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -9
    assert subprocess.run([*sweep, "--name", "killed"], stdout=subprocess.DEVNULL).returncode == 0
    assert killed == 3 and told("runs/killed") == told("runs/whole")
    assert {t.state.name for t in study("runs/killed").trials} == {"COMPLETE", "PRUNED"}
    assert _weights("runs/killed") == _weights("runs/whole")
    importances = optuna.importance.get_param_importances(study("runs/killed"))
    assert importances.keys() == {"optim.lr", "optim.name"}


@pytest.mark.slow
def test_two_processes_share_the_trials_of_a_sweep(door):
    """Each trial is trained once, as the command train would have done."""
    words = ["digits", *TINY, "--epochs", "3"]
    sweep = [sys.executable, "-m", "vit_jax", "sweep", *words, "--optim.lr", "1e-3,2e-3,3e-3,4e-3,5e-3,6e-3"]
    both = [subprocess.Popen(sweep, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    begun = [re.findall(r"^(trial-\d)  optim", text, re.M) for text in said]
    assert sorted(begun[0] + begun[1]) == [f"trial-{k}" for k in range(6)] and all(begun)
    trials = study("runs/digits-sweep").trials
    assert [t.params["optim.lr"] for t in trials] == [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3]
    assert {t.state.name for t in trials} == {"COMPLETE"}
    assert door("train", *words, "--optim.lr", "0.005", "--name", "alone").returncode == 0
    alone, trial = (runs.Run(f"runs/{name}").saved(3 * 40)["arrays"] for name in ("alone", "digits-sweep/trial-4"))
    assert alone == trial


@pytest.mark.slow
def test_an_interrupted_sweep_ends_with_the_code_of_its_signal():
    words = ["digits", *TINY, "--epochs", "300", "--optim.lr", "1e-3,1e-2"]
    process = subprocess.Popen([sys.executable, "-m", "vit_jax", "sweep", *words], stderr=subprocess.PIPE, text=True)
    log = Path("runs/digits-sweep/trial-0/metrics.jsonl")
    while not (log.exists() and len(log.read_text().splitlines()) > 8):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130 and "go on with: the same sweep" in process.stderr.read()
    assert [t.state.name for t in study("runs/digits-sweep").trials] == ["RUNNING"]
